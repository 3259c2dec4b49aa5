"""Tools that can use this server, what their settings look like, and how those are changed.

A leaf: knows no terminal, no model on this disk and no environment but the one it is given. What a
tool reads and where was taken from its maker's documentation, named beside each (autumn 2026).
"""
