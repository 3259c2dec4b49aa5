"""Writes the man pages, man(7), from what the commands say of themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from typer.core import TyperArgument

from vllama.cli.command_index import EXIT_CODES, GROUPS, INTRODUCTION
from vllama.cli.parser import list_actions, load_command
from vllama.config import SETTINGS


def write_pages(version: str) -> dict[str, str]:
    """Return all pages by their names, such as `vllama-serve`."""
    commands = [row for rows in GROUPS.values() for row in rows.items()]
    pages = {f"vllama-{name}": write_command(name, about, version) for name, about in commands}
    return pages | {"vllama": write_overview(version)}


def write_overview(version: str) -> str:
    """Return the page of `vllama` itself: its commands, variables and exit codes."""
    lines = [*_head("vllama", INTRODUCTION, version)]
    lines += [".SH SYNOPSIS", r".B vllama", r"\fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGS\fR]..."]
    for title, rows in GROUPS.items():
        terms = _terms((f"vllama-{name}(1)", text) for name, text in rows.items())
        lines += [f".SH {title.upper()}", *terms]
    lines.append(".SH ENVIRONMENT")
    for one in SETTINGS:
        names = ", ".join(name for name in (one.env, one.foreign) if name)
        lines += _terms([(names, one.help)])
    lines += [".SH EXIT STATUS", *_terms((("0", "it succeeded"), *EXIT_CODES.items()))]
    return "\n".join(lines) + "\n"


def write_command(name: str, about: str, version: str) -> str:
    """Return the page of one command, with its actions."""
    command, actions = load_command(name), list_actions(name)
    lines = [*_head(f"vllama-{name}", about, version), ".SH SYNOPSIS", *_synopsis(name, command)]
    lines += [".SH DESCRIPTION", *_paragraphs(inspect.cleandoc(command.help or about))]
    for action, parsed in actions.items():
        lines += [f".SH {action.upper()}", *_synopsis(f"{name} {action}", parsed)]
        lines += [*_paragraphs(inspect.cleandoc(parsed.help)), *_parameters(parsed, ".SS")]
    if not actions:
        lines += _parameters(command, ".SH")
    if command.epilog:
        lines += _examples(command.epilog)
    lines += [".SH SEE ALSO", ".BR vllama (1)"]
    return "\n".join(lines) + "\n"


def _synopsis(words: str, command: Any) -> Iterator[str]:
    context = command.context_class(command)
    yield rf".B vllama {words}"
    yield _escape(" ".join(command.collect_usage_pieces(context)))


def _parameters(command: Any, macro: str) -> Iterator[str]:
    """Yield the sections of a command's arguments and options."""
    context = command.context_class(command)
    parameters = command.get_params(context)
    arguments = [each for each in parameters if isinstance(each, TyperArgument)]
    options = (each.get_help_record(context) for each in parameters if each not in arguments)
    if arguments:
        yield f"{macro} ARGUMENTS"
        yield from _terms((each.display_name_raw, each.help or "") for each in arguments)
    yield f"{macro} OPTIONS"
    yield from _terms(record for record in options if record)


def _head(name: str, about: str, version: str) -> Iterator[str]:
    yield f'.TH {name.upper()} 1 "" "vllama {version}" "User Commands"'
    yield ".SH NAME"
    yield rf"{_escape(name)} \- {_escape(about.rstrip('.'))}"


def _terms(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a list of terms, each with its explanation."""
    for term, text in rows:
        yield from (".TP", rf"\fB{_escape(term)}\fR", _escape(" ".join(text.split())))


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.replace("\b\n", "")):
        yield from (".PP", _escape(" ".join(paragraph.split())))


def _examples(epilog: str) -> Iterator[str]:
    """Yield the text below a command's options, whose line breaks stay."""
    yield ".SH EXAMPLES"
    yield ".nf"
    for line in epilog.replace("\b\n", "").strip().splitlines():
        if line.strip() != "Examples:":
            yield _escape(line)
    yield ".fi"


def _escape(text: str) -> str:
    """Return text that troff takes as it is."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text
