"""Diagnosis of this machine: checks of machine, engines, stores and network.

Each check has a time limit and runs in a thread of its own; one that hangs is told as such.
"""
