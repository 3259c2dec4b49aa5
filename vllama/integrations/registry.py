"""The tools that can be launched, and where their programs are."""

from __future__ import annotations

import difflib
import shutil

from vllama.errors import BadRequest
from vllama.integrations.agents import AGENTS
from vllama.integrations.editors import EDITORS
from vllama.integrations.more_agents import MORE_AGENTS
from vllama.integrations.types import Integration, Places

INTEGRATIONS = (*AGENTS, *MORE_AGENTS, *EDITORS)


def find(name: str) -> Integration:
    """Return the tool of that name, in any case. Raises BadRequest."""
    names = {n: tool for tool in INTEGRATIONS for n in (tool.name, *tool.aliases)}
    if tool := names.get(name.lower()):
        return tool
    near = difflib.get_close_matches(name.lower(), names, n=1)
    known = ", ".join(tool.name for tool in INTEGRATIONS)
    raise BadRequest(
        f"unknown integration: {name}",
        hint=f"did you mean {near[0]}?" if near else f"known are {known}",
    )


def program(tool: Integration, places: Places) -> str | None:
    """Return the path of the tool's program; None if it is not installed."""
    usual = places.environ.get("PATH", "")
    others = [str(places.home / folder) for folder in tool.folders]
    for command in tool.commands:
        for path in (usual, *others):
            if found := shutil.which(command, path=path):
                return found
    return None
