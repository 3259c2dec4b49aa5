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
BASH = """\
_vllama_completion() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" IFS=$' \\t\\n'
    local words=($line) typed="${{line##* }}"
    local place=$(( ${{#words[@]}} - (${{#typed}} > 0) ))
    IFS=$'\\n'
    COMPREPLY=( $( COMP_WORDS="$line" COMP_CWORD=$place {variable}=complete_bash "$1" ) )
    [[ $COMP_WORDBREAKS != *:* ]] || COMPREPLY=( "${{COMPREPLY[@]#"${{typed%"${{typed##*:}}"}}"}}" )
}}

complete -o default -F _vllama_completion vllama
"""
"""Typer's takes a model's name for two words, since bash divides words at colons."""


def completion(
    shell: Annotated[str, argument("SHELL", "Shell: bash, zsh or fish.", complete_words(*SHELLS))],
) -> None:
    """Print a shell completion script."""
    from vllama.cli.parser import COMPLETION_VARIABLE, root

    if shell not in SHELLS:
        raise ConfigError(
            f'no completion for the shell "{shell}"', hint=f"use one of {', '.join(SHELLS)}"
        )
    if shell == "bash":
        say(BASH.format(variable=COMPLETION_VARIABLE))
    else:
        shell_complete(root(), {}, "vllama", COMPLETION_VARIABLE, f"source_{shell}")
