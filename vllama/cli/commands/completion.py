"""`vllama completion`: a script for the shell; and the answers to what that script asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama.cli.declare import argument

if TYPE_CHECKING:
    import click

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


@argument("shell", help="bash, zsh or fish.")
def completion(shell: str) -> None:
    """Print a script that completes commands in a shell."""
    from click.shell_completion import get_completion_class

    from vllama.cli.output import say
    from vllama.cli.parser import root
    from vllama.errors import ConfigError

    maker = get_completion_class(shell) if shell in SHELLS else None
    if maker is None:
        raise ConfigError(
            f'cannot complete commands in "{shell}"', hint=f"use one of {', '.join(SHELLS)}"
        )
    say(maker(root(), {}, "vllama", VARIABLE).source().rstrip())
    if shell == "bash":
        say(NO_COLON)


def is_asked() -> bool:
    """Tell whether the shell's script has started this process."""
    from vllama import config

    return VARIABLE in config.environ()


def answer() -> int:
    """Answer the shell's script; what it asks is in variables."""
    from click.shell_completion import shell_complete

    from vllama import config
    from vllama.cli.parser import root

    return shell_complete(root(), {}, "vllama", VARIABLE, config.environ()[VARIABLE])


def model_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of models that begin so; none where there is no server."""
    from vllama import config
    from vllama.cli.client import Client
    from vllama.errors import VllamaError

    try:
        loaded = config.load({}, config.environ())
        with Client(loaded.url, key=loaded.key_to_send, limit_s=LIMIT_S) as client:
            models = client.get("/api/tags").get("models") or []
    except VllamaError:
        return []
    names = [str(model.get("name", "")) for model in models]
    return [name for name in names if name.startswith(incomplete)]
