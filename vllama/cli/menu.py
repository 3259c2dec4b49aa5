"""The menu that `vllama` alone opens on a terminal. Each choice is a command that exists."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from prompt_toolkit.shortcuts import choice

from vllama import config
from vllama.base.errors import VllamaError
from vllama.base.units import format_bytes_decimal as size
from vllama.cli.context import load_settings, local_library
from vllama.cli.output import say, say_aside
from vllama.models.types import Capability

Options = Sequence[tuple[str, str]]
"""Values and their lines; an empty value goes back."""

BACK = ("", "Back")
MAIN: Options = (
    ("run", "Chat with a model"),
    ("pull", "Download a model that suits this machine"),
    ("launch", "Start a coding agent on a model"),
    ("ps", "See what is running"),
    ("", "Quit"),
)


def show_menu(run: Callable[[Sequence[str]], int]) -> int:
    """Let the user choose commands until they quit; `run` runs one. Returns an exit code."""
    makers = {"run": choose_chat, "pull": choose_download, "launch": choose_agent}
    say("Other commands: vllama --help")
    while True:
        try:
            action = choice("\nWhat do you want to do?", options=MAIN)
            if not action:
                return 0
            args = makers[action]() if action in makers else [action]
        except (KeyboardInterrupt, EOFError):
            return 0
        except VllamaError as error:
            say_aside(error.sentence())
            continue
        if args:
            say_aside(f"vllama {' '.join(args)}")
            run(args)


def choose_model() -> str:
    """Return a chat model of this machine, or an empty name."""
    library = local_library(load_settings())
    found = sorted(library.list(), key=lambda bundle: -bundle.modified_s)
    options = [
        (bundle.name, f"{bundle.name} ({size(bundle.size_bytes)})")
        for bundle in found
        if Capability.COMPLETION in library.info(bundle).capabilities
    ]
    if not options:
        say_aside("There is no chat model on this machine yet: download one first.")
        return ""
    return choice("Which model?", options=[*options, BACK])


def choose_chat() -> list[str]:
    """Return the command that chats with a model, or nothing."""
    return ["run", name] if (name := choose_model()) else []


def choose_download() -> list[str]:
    """Return the command that downloads a model, or nothing."""
    from vllama.plan.recommend import list_recommendations
    from vllama.server.preflight import gather_facts

    rows = list_recommendations(gather_facts(load_settings()))
    options = [
        (row.model, f"{row.model} ({size(row.download_bytes)}): {', '.join(row.uses)}")
        for row in rows
        if row.fit == "fits"
    ]
    if not options:
        say_aside("None of the recommended models runs well here: vllama recommend --all")
        return []
    name = choice("Which one? The first ones are the most capable.", options=[*options, BACK])
    return ["pull", name] if name else []


def choose_agent() -> list[str]:
    """Return the command that starts an installed tool on a model, or nothing."""
    from vllama.cli.launch.target import INTEGRATIONS, is_made_for, program
    from vllama.cli.launch.types import Places

    own, environ = load_settings().data_dir / "launch", config.environ()
    places = Places(home=Path.home(), own=own, environ=environ, system=sys.platform)
    options = [
        (tool.name, tool.title)
        for tool in INTEGRATIONS
        if is_made_for(tool, places.system) and program(tool, places)
    ]
    if not options:
        say_aside("No coding agent is installed here; vllama launch lists those that it knows.")
        return []
    tool = choice("Which tool?", options=[*options, BACK])
    model = choose_model() if tool else ""
    return ["launch", tool, "--model", model] if model else []
