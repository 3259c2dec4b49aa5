"""Requests with their answers as files: their form, their folder, and what the answers say."""
