"""Measure a running server, and compare it with others that have the same API."""
