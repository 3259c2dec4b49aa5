"""Observability of the server: metrics, traces, captured requests."""
