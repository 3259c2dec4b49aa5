"""Counting, and the format in which Prometheus reads the counts.

Counting (`instruments`, `server_metrics`) happens with every request, so it is plain arithmetic and
imports nothing. The library that reads and writes the formats is imported at the first scrape
(`exposition`).
"""
