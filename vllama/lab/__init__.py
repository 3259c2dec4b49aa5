"""Measurement of engines and search for regressions, with commands of its own."""
