"""API keys, their limits, and the usage of requests."""
