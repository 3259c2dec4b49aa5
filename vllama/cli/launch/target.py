"""Target of a launch: a known tool, its program, and its model."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from vllama.base.errors import ConfigError, ModelNotFound, ServerUnreachable
from vllama.base.spelling import suggest
from vllama.cli.context import connect
from vllama.cli.launch.agents import AGENTS, YAML_AGENTS
from vllama.cli.launch.apps import APPS
from vllama.cli.launch.more_agents import MORE_AGENTS
from vllama.cli.launch.types import Integration, Places, Target
from vllama.cli.output import ask, confirm, is_terminal, say_aside, show_warning
from vllama.config import Config
from vllama.models.names.ref import list_spellings

if TYPE_CHECKING:
    from vllama.cli.client import Client, Reply

INTEGRATIONS = (*AGENTS, *MORE_AGENTS, *YAML_AGENTS, *APPS)
_SYSTEMS = {"darwin": "macOS", "linux": "Linux", "win32": "Windows"}
ENOUGH_CONTEXT = 32_768
"""Coding agents begin with prompts of 10,000 tokens and more."""


def find(name: str) -> Integration:
    """Return the tool of that name, in any case. Raises ConfigError."""
    names = {n: tool for tool in INTEGRATIONS for n in (tool.name, *tool.aliases)}
    if tool := names.get(name.lower()):
        return tool
    known = ", ".join(tool.name for tool in INTEGRATIONS)
    raise ConfigError(
        f"cannot launch '{name}': unknown tool",
        hint=suggest(name, names, f"choose one of {known}"),
    )


def is_made_for(tool: Integration, system: str) -> bool:
    """Tell whether there is such a tool for a system (a value of `sys.platform`)."""
    return not tool.systems or system in tool.systems


def check_system(tool: Integration, system: str) -> None:
    """Raise ConfigError if there is no such tool for this system."""
    if not is_made_for(tool, system):
        known = " and ".join(_SYSTEMS[name] for name in tool.systems)
        raise ConfigError(f"cannot set up {tool.title} here: only {known} is supported")


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


def choose_target(
    settings: Config, model: str | None, tool: Integration, *, needs_server: bool, yes: bool
) -> Target:
    """Return a tool's target: `model`, or the one that the user chooses.

    A missing model is pulled if the user agrees. Without a server, if none is needed, only the name
    is known. Raises VllamaError.
    """
    key = settings.key_to_send
    with connect(settings) as client:
        if model is None:
            model = _choose_model(client)
        try:
            shown = _describe_model(client, model, yes=yes)
            loaded_now = client.get("/api/ps").get("models") or []
        except ServerUnreachable:
            if needs_server:
                raise
            show_warning(f"no server at {settings.url}: the model's context length is unknown")
            return Target(url=settings.url, model=model, server_key=key)
    target = Target(
        url=settings.url,
        server_key=key,
        model=model,
        context=_context(shown, loaded_now, model),
        capabilities=frozenset(map(str, shown.get("capabilities") or ())),
    )
    _warn(target, tool)
    return target


def _choose_model(client: Client) -> str:
    """Let the user choose one of the server's models. Raises ConfigError if nobody is there."""
    models = [
        str(model["name"])
        for model in client.get("/api/tags").get("models") or []
        if "embedding" not in (model.get("capabilities") or [])
    ]
    if not models:
        raise ConfigError("no model is installed yet", hint="vllama pull NAME")
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise ConfigError("no model specified", hint=f"specify one: --model {models[0]}")
    width = len(str(len(models)))
    for number, name in enumerate(models, 1):
        say_aside(f"{number:>{width + 2}}  {name}")
    while True:
        answer = ask("Model", default="1")
        if answer in models:
            return answer
        if answer.isdecimal() and 1 <= int(answer) <= len(models):
            return models[int(answer) - 1]
        say_aside(f"enter a number from 1 to {len(models)}, or a name")


def _describe_model(client: Client, model: str, *, yes: bool) -> Reply:
    """Ask what the model is; offer to pull it if it is missing."""
    from vllama.cli.chat.session import pull_through

    asked = {"model": model, "plan": True}
    try:
        return client.post("/api/show", asked)
    except ModelNotFound:
        if not yes:
            if not is_terminal(sys.stdin):
                raise
            if not confirm(f"'{model}' is not installed; pull it?"):
                raise typer.Abort from None
    pull_through(client, model)
    return client.post("/api/show", asked)


def _context(shown: Reply, loaded_now: Sequence[Reply], model: str) -> int | None:
    """Return the context in tokens: what the model is or would be loaded with, else its own.

    Our server tells its plan; Ollama tells only what is loaded.
    """
    if length := (shown.get("vllama") or {}).get("context_length"):
        return int(length)
    wanted = list_spellings(model)
    for one in loaded_now:
        names = list_spellings(str(one.get("name"))) | list_spellings(str(one.get("model")))
        if wanted & names and (length := one.get("context_length")):
            return int(length)
    info = shown.get("model_info") or {}
    length = info.get(f"{info.get('general.architecture')}.context_length")
    length = length or (shown.get("details") or {}).get("context_length")
    return int(length) if length else None


def _warn(target: Target, tool: Integration) -> None:
    if "embedding" in target.capabilities:
        raise ConfigError(f"cannot use '{target.model}' with {tool.title}: an embedding model")
    if "tools" not in target.capabilities:
        show_warning(f"'{target.model}' does not support tools; {tool.title} can only chat with it")
    if target.context and target.context < ENOUGH_CONTEXT:
        show_warning(
            f"'{target.model}' has a context length of {target.context} tokens; "
            f"{tool.title} needs at least {ENOUGH_CONTEXT}"
        )
