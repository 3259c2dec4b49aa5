"""Captured requests, sent again: what was answered, how far that agrees, and since when it differs.

Pure: the command line sends requests and starts servers. Nothing here prints.
"""
