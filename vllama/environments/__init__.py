"""Python environments beside our own, so that nothing of their pins touches ours.

Made with uv where it is on PATH, else with venv and pip. Knows no engine: whoever needs one says
what goes into it.
"""
