"""The page of `vllama --help`, made of the index of commands; it imports none of them."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from vllama.cli.command_index import GROUPS, INTRODUCTION

HEAD = """\
Usage: vllama [OPTIONS] COMMAND [ARGS]...

{introduction}

Options:
  -v, --version  Show the version.
  -h, --help     Show this message and exit.
"""
EXAMPLES = (
    ("vllama serve --model smollm2:135m", "start the server and load a model"),
    ('vllama run smollm2:135m "Why?"', "ask it, from another terminal"),
    ("vllama pull Qwen/Qwen3-0.6B", "download a model of the Hugging Face hub"),
    ("vllama launch codex", "use a coding agent with a model of your own"),
    ("vllama list", "see what is there"),
)
EXIT_CODES = (
    ("1", "it failed; the error says why"),
    ("2", "the command line or a setting is wrong"),
    ("3", "nothing here can serve the model, or a check has failed"),
    ("4", "another program listens on the port"),
    ("130", "interrupted by Ctrl-C"),
)
MORE = (
    "'vllama COMMAND --help' tells more about a command. The server is found at OLLAMA_HOST.",
    "'vllama completion bash' (zsh, fish) prints what makes the shell complete commands, models "
    "and engines.",
)
LEAST_TEXT = 20
"""Columns that a text needs beside its name; else it goes below."""


def help_page(width: int) -> str:
    """Return the page for a terminal with so many columns."""
    introduction = fill(INTRODUCTION, width, initial_indent="  ", subsequent_indent="  ")
    names = max(len(name) for _, rows in GROUPS for name, _, _ in rows)
    sections = [HEAD.format(introduction=introduction)]
    for title, rows in GROUPS:
        sections.append(
            write_section(title, [(name, text) for name, _, text in rows], names, width)
        )
    for title, lines in (("Examples", EXAMPLES), ("Exit codes", EXIT_CODES)):
        sections.append(write_section(title, lines, max(len(name) for name, _ in lines), width))
    sections.append("".join(f"{fill(line, width)}\n" for line in MORE))
    return "\n".join(sections)


def write_section(title: str, rows: Sequence[tuple[str, str]], names: int, width: int) -> str:
    """Return a title and its rows: names in `names` columns, and a text about each beside it."""
    lines = [f"{title}:"]
    indent = " " * (names + 4)
    for name, text in rows:
        if len(indent) + LEAST_TEXT > width:
            lines += [
                f"  {name}",
                fill(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6),
            ]
        else:
            start = f"  {name.ljust(names)}  "
            lines.append(fill(text, width, initial_indent=start, subsequent_indent=indent))
    return "".join(f"{line}\n" for line in lines)
