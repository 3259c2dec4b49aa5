"""The server's own routes: health, logs, metrics, state, the page."""
