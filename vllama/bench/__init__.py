"""Measure a running server, beside another one that speaks the same API if one is named."""
