"""The menu that `vllama` alone opens on a terminal. Each choice is a command that exists."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import choice

from vllama import config
from vllama.base.errors import ServerUnreachable, VllamaError
from vllama.base.units import format_bytes_binary
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
KEYS = KeyBindings()


@KEYS.add("escape")
def _go_back(event: KeyPressEvent) -> None:
    event.app.exit(result="")


def ask(question: str, options: Options) -> str:
    """Return the value of the option that the user chooses; an empty one for Esc."""
    return choice(question, options=options, key_bindings=KEYS)


def show_menu(run: Callable[[Sequence[str]], int]) -> int:
    """Let the user choose commands until they quit; `run` runs one. Returns an exit code."""
    makers = {
        "run": choose_chat, "pull": choose_download, "launch": choose_agent, "ps": look_at_server
    }  # fmt: skip
    say("Move with the arrow keys, choose with Enter, go back with Esc.")
    say("Other commands: vllama --help")
    while True:
        try:
            action = ask("\nWhat do you want to do?", MAIN)
            if not action:
                return 0
            args = makers[action]()
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
    return ask("Which model?", [*options, BACK])


def choose_chat() -> list[str]:
    """Return the command that chats with a model, or nothing."""
    return ["run", name] if (name := choose_model()) else []


def choose_download() -> list[str]:
    """Return the command that downloads a model, or nothing."""
    from vllama.plan.recommend import list_recommendations
    from vllama.server.preflight import gather_facts

    rows = list_recommendations(gather_facts(load_settings()))
    options = [
        (
            row.model,
            f"{row.model}: {', '.join(row.uses)} ({size(row.download_bytes)} to download, "
            f"{format_bytes_binary(row.memory_bytes)} of memory, {row.where})",
        )
        for row in rows
        if row.fit == "fits"
    ]
    if not options:
        say_aside("None of the recommended models runs well here: vllama recommend --all")
        return []
    name = ask("Which one? The first ones are the most capable.", [*options, BACK])
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
        say_aside("No coding agent is installed here; vllama launch lists those that it supports.")
        return []
    tool = ask("Which tool?", [*options, BACK])
    model = choose_model() if tool else ""
    return ["launch", tool, "--model", model] if model else []


def look_at_server() -> list[str]:
    """Return the command that shows what runs, or nothing if there is no server."""
    from vllama.cli.context import connect

    try:
        with connect() as client:
            client.get("/api/version")
    except ServerUnreachable:
        say_aside("No server is running: chat with a model, or run 'vllama serve'.")
        return []
    return ["ps"]
