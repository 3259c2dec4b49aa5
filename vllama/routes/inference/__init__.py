"""A request's way to an engine: the lease, fallbacks, outages, reservations."""
