"""Parameters that several commands share, and the completion of models' names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer

COMPLETION_LIMIT_S = 1.0

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Insecure: TypeAlias = Annotated[bool, typer.Option("--insecure", hidden=True)]


def yes_option(help: str = "Do not ask.") -> Any:
    """Return the option that answers all questions beforehand."""
    return typer.Option("--yes", "-y", help=help)


def argument(metavar: str, help: str, complete: Callable[[str], list[str]] | None = None) -> Any:
    """Return an argument; `complete` returns the values that begin with what is typed."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete, show_default=False)


def model_argument(help: str, metavar: str = "MODEL") -> Any:
    """Return an argument that takes a model's name, which the shell completes."""
    return argument(metavar, help, complete_model)


def model_option(*names: str, help: str, metavar: str = "NAME") -> Any:
    """Return an option that takes a model's name, which the shell completes."""
    return typer.Option(*names, metavar=metavar, help=help, autocompletion=complete_model)


def complete_model(incomplete: str) -> list[str]:
    """Return the names of the server's models that begin so; none where there is no server."""
    from vllama import config
    from vllama.cli.client import Client
    from vllama.errors import VllamaError

    try:
        loaded = config.load({}, config.environ())
        with Client(loaded.url, key=loaded.key_to_send, limit_s=COMPLETION_LIMIT_S) as client:
            models = client.get("/api/tags").get("models") or []
    except VllamaError:
        return []
    names = [str(model.get("name", "")) for model in models]
    return [name for name in names if name.startswith(incomplete)]
