"""The agent of vllama for launchd on macOS: launchd.plist(5)."""

from __future__ import annotations

import plistlib
from collections.abc import Sequence
from pathlib import Path

LABEL = "vllama"


def make_agent(command: Sequence[str], *, log: Path, search_path: str, stop_timeout_s: int) -> str:
    """Return the property list that runs `command` when the user logs in.

    launchd starts programs with a short PATH, so `search_path` is the one of now. A server that
    ends with an error is started again, not more than once in ten seconds (its default).
    """
    agent = {
        "Label": LABEL,
        "ProgramArguments": list(command),
        "EnvironmentVariables": {"PATH": search_path},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ExitTimeOut": stop_timeout_s,
        "ProcessType": "Interactive",  # else macOS slows it down in the background
        "StandardOutPath": str(log),
        "StandardErrorPath": str(log),
    }
    return plistlib.dumps(agent).decode()


def find_agent(home: Path) -> Path:
    """Return the agent's file."""
    return home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
