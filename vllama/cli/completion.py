"""`vllama completion`: a script for the shell; and the answers to what that script asks."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = """\
\b
Examples:
  eval "$(vllama completion bash)"                     in ~/.bashrc
  eval "$(vllama completion zsh)"                      in ~/.zshrc, after compinit
  vllama completion fish > ~/.config/fish/completions/vllama.fish
"""

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_VLLAMA_COMPLETE"
LIMIT_S = 1.0
NO_COLON = 'COMP_WORDBREAKS="${COMP_WORDBREAKS//:/}"'
"""bash would take the name of a model for two words."""


def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script that completes commands in a shell."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    from vllama.cli.output import say
    from vllama.errors import ConfigError

    if shell not in SHELLS:
        raise ConfigError(
            f'cannot complete commands in "{shell}"', hint=f"use one of {', '.join(SHELLS)}"
        )
    say(get_completion_script(prog_name="vllama", complete_var=VARIABLE, shell=shell))
    if shell == "bash":
        say(NO_COLON)


def is_asked() -> bool:
    """Tell whether the shell's script has started this process."""
    from vllama import config

    return VARIABLE in config.environ()


def answer(app: typer.Typer) -> int:
    """Answer the shell's script; what it asks is in variables."""
    from typer.completion import completion_init, shell_complete  # type: ignore[attr-defined]

    from vllama import config

    completion_init()
    asked = config.environ()[VARIABLE]
    command = typer.main.get_command(app)
    return shell_complete(command, {"resilient_parsing": True}, "vllama", VARIABLE, asked)


def model_names(incomplete: str) -> list[str]:
    """Return the names of models that begin so; none where there is no server."""
    from vllama import config
    from vllama.cli.client import Client
    from vllama.errors import VllamaError

    try:
        loaded = config.load({}, config.environ())
        with Client(loaded.url, limit_s=LIMIT_S) as client:
            models = client.get("/api/tags").get("models") or []
    except VllamaError:
        return []
    names = [str(model.get("name", "")) for model in models]
    return [name for name in names if name.startswith(incomplete)]
