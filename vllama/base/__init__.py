"""Foundations of every room: errors, units, clocks, log lines, private files, executors."""
