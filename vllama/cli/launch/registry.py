"""The tools that can be launched, and where their programs are."""

from __future__ import annotations

import shutil
from pathlib import Path

from vllama.base.errors import BadRequest, ConfigError
from vllama.base.spelling import suggest
from vllama.cli.launch.agents import AGENTS, YAML_AGENTS
from vllama.cli.launch.apps import APPS
from vllama.cli.launch.more_agents import MORE_AGENTS
from vllama.cli.launch.types import Integration, Places

INTEGRATIONS = (*AGENTS, *MORE_AGENTS, *YAML_AGENTS, *APPS)
_SYSTEMS = {"darwin": "macOS", "linux": "Linux", "win32": "Windows"}


def find(name: str) -> Integration:
    """Return the tool of that name, in any case. Raises BadRequest."""
    names = {n: tool for tool in INTEGRATIONS for n in (tool.name, *tool.aliases)}
    if tool := names.get(name.lower()):
        return tool
    known = ", ".join(tool.name for tool in INTEGRATIONS)
    raise BadRequest(
        f"cannot launch '{name}': it is not a tool that vllama knows",
        hint=suggest(name, names, f"choose one of {known}"),
    )


def is_made_for(tool: Integration, system: str) -> bool:
    """Tell whether there is such a tool for a system (a value of `sys.platform`)."""
    return not tool.systems or system in tool.systems


def check_system(tool: Integration, system: str) -> None:
    """Raise ConfigError if there is no such tool for this system."""
    if not is_made_for(tool, system):
        known = " and ".join(_SYSTEMS[name] for name in tool.systems)
        raise ConfigError(f"cannot set up {tool.title} here: it is supported on {known} only")


def program(tool: Integration, places: Places) -> tuple[str, ...] | None:
    """Return the words that start the tool; None if it is not installed."""
    usual = places.environ.get("PATH", "")
    others = [str(places.home / folder) for folder in tool.folders]
    for command in tool.programs:
        for path in (usual, *others):
            if found := shutil.which(command, path=path):
                return (found,)
    for app in tool.apps if places.system == "darwin" else ():
        for folder in (Path("/Applications"), places.home / "Applications"):
            if (folder / app).is_dir():
                return ("/usr/bin/open", "-a", str(folder / app))
    return None
