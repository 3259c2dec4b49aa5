"""`vllama completion`: a script that completes commands in a shell."""

from __future__ import annotations

from typing import Annotated

from typer.completion import shell_complete

from vllama.base.errors import ConfigError
from vllama.cli.options import argument, complete_words
from vllama.cli.output import say

EXAMPLES = """\
\b
Examples:
  eval "$(vllama completion bash)"                     in ~/.bashrc
  eval "$(vllama completion zsh)"                      in ~/.zshrc, after compinit
  vllama completion fish > ~/.config/fish/completions/vllama.fish
"""

SHELLS = ("bash", "zsh", "fish")
NO_COLON = 'COMP_WORDBREAKS="${COMP_WORDBREAKS//:/}"'
"""bash would take the name of a model for two words."""


def completion(
    shell: Annotated[str, argument("SHELL", "bash, zsh or fish.", complete_words(*SHELLS))],
) -> None:
    """Print a script that completes commands in a shell."""
    from vllama.cli.parser import COMPLETION_VARIABLE, root

    if shell not in SHELLS:
        raise ConfigError(
            f'cannot complete commands in "{shell}"', hint=f"use one of {', '.join(SHELLS)}"
        )
    shell_complete(root(), {}, "vllama", COMPLETION_VARIABLE, f"source_{shell}")
    if shell == "bash":
        say(NO_COLON)
