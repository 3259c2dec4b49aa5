"""The HTTP server, the relay, connections to engines, and requests to the web."""
