"""How a request gets an engine: the lease, fallbacks, outages, reservations."""
