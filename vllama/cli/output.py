"""Output to the terminal: errors, tables, plain text; fancy on a terminal, plain when piped."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from vllama.base.log_lines import escape_control
from vllama.cli.table import align_cells, fit_cells

if TYPE_CHECKING:
    from rich.console import Console


_CONTROL = re.compile(r"(\x1b\[[0-9;:]*m)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What steers a terminal or turns text, but colors, tabs, line feeds; a sequence's rest is text."""
LEAST_COLUMN = 16
"""Characters of a narrow column that is still readable."""


def is_terminal(stream: TextIO) -> bool:
    """Tell whether a person looks at `stream`."""
    return stream.isatty()


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is: no markup, no guessing of colors."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)


def strip_control(text: str) -> str:
    """Return text without what steers a terminal; colors stay."""
    return _CONTROL.sub(lambda found: found[1] or "", text)


def say(text: str = "") -> None:
    """Print a line of a command's result, as UTF-8 even if a file's name in it is not.

    It may be a stranger's, such as a model's license.
    """
    text = text.encode(errors="replace").decode()
    print(strip_control(text) if is_terminal(sys.stdout) else text, flush=True)


def say_prose(text: str) -> None:
    """Print lines of a command's result that are for people; nobody copies them."""
    say(wrap_words(text, sys.stdout))


def say_aside(text: str) -> None:
    """Print a line that is no result, on stderr."""
    text = strip_control(text) if is_terminal(sys.stderr) else text
    print(wrap_words(text, sys.stderr), file=sys.stderr, flush=True)


def wrap_words(text: str, stream: TextIO, indent: int = 0) -> str:
    """Return `text`, which follows `indent` characters, with no word broken at a terminal's edge.

    Later lines begin below the first word, or the last column if two blanks precede it. What a
    program reads stays as it is.
    """
    if not is_terminal(stream):
        return text
    width = os.get_terminal_size(stream.fileno()).columns or 80
    lines: list[str] = []
    for line in text.split("\n"):
        first = indent or len(line) - len(line.lstrip())
        below = line.rfind("  ", first) + 2
        lines += textwrap.wrap(
            line.lstrip(),
            width,
            initial_indent=" " * first,
            subsequent_indent=" " * (below if first + 1 < below < width - LEAST_COLUMN else first),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)[indent:]


def show_error(message: str, hint: str | None = None) -> None:
    """Print an error and, on a line of its own, what to do."""
    _print_labeled("Error:", "bold red", message)
    if hint:
        _print_labeled("Hint:", "bold cyan", hint)


def show_warning(message: str) -> None:
    """Print a warning."""
    _print_labeled("Warning:", "bold yellow", message)


def _print_labeled(label: str, style: str, text: str) -> None:
    # what other servers and programs have said must not move the cursor
    text = "\n".join(map(escape_control, text.splitlines()))
    if not is_terminal(sys.stderr):
        say_aside(f"{label} {text}")
        return
    from rich.text import Text

    text = wrap_words(text, sys.stderr, len(label) + 1)
    console(stderr=True).print(Text.assemble((label, style), " ", text))


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str] = ()
) -> None:
    """Print a table as Ollama does: aligned, four spaces apart, no borders.

    On a terminal that is too narrow the `optional` columns go, in their order.
    """
    if not is_terminal(sys.stdout):
        for line in align_cells(columns, rows):
            say(line)
        return
    out = console()
    header, *lines = fit_cells(columns, rows, out.width, optional)
    out.print(header, style="bold")
    for line in lines:
        out.print(strip_control(line))


def show_json(value: object) -> None:
    """Print a value for programs."""
    say(json.dumps(value, indent=2, ensure_ascii=False, default=_to_builtins))


def _to_builtins(value: object) -> object:
    import msgspec  # most values need it not

    return msgspec.to_builtins(value)


def show_json_line(value: object) -> None:
    """Print a value for programs on one line, as one of several."""
    say(json.dumps(value, ensure_ascii=False))


def ask(question: str, default: str) -> str:
    """Ask on stderr, and return the answer; `default` for an empty one. Raises KeyboardInterrupt.

    typer's own prompts write to stdout, where only results belong.
    """
    print(f"{question} [{default}]: ", end="", file=sys.stderr, flush=True)
    try:
        return input().strip() or default
    except EOFError:  # nobody answers any more, as after Ctrl-C
        raise KeyboardInterrupt from None


def require_agreement(question: str, *, yes: bool, cannot: str = "cannot confirm") -> None:
    """Return if the user agrees. Raises Exit if not, ConfigError if nobody can be asked."""
    import typer

    from vllama.base.errors import ConfigError

    if yes:
        return
    if not can_ask():
        raise ConfigError(f"{cannot}: stdin is not a terminal", hint="pass --yes")
    if not confirm(question):
        say_aside("nothing was changed")
        raise typer.Exit(1)


def can_ask() -> bool:
    """Tell whether a person can be asked a question."""
    return sys.stdin.isatty() and is_terminal(sys.stderr)


def confirm(question: str) -> bool:
    """Ask a question that is answered with yes, the default, or no. Raises KeyboardInterrupt."""
    while True:
        match ask(question, "Y/n").lower():
            case "y" | "yes" | "y/n":
                return True
            case "n" | "no":
                return False
        say_aside("enter y or n")
