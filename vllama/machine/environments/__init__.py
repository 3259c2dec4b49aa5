"""Python environments for engines and tools, made by uv, so that their pins do not touch ours.

Nothing here knows an engine: the caller says what to install.
"""
