"""Command lines that are read without click: they mean what click would make of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

import click
import pytest

from vllama.cli.command_index import COMMANDS
from vllama.cli.declare import declared, function_at, plain_call
from vllama.cli.parser import PlainCommand, root

LIGHT = [name for name, place in COMMANDS.items() if declared(function_at(place)[0])]
PLAIN = (
    "list",
    "list qwen",
    "list --json",
    "list qwen --json",
    "ps --json tiny",
    "show tiny",
    "show --license tiny --json",
    "show tiny -v --modelfile --parameters --template --system",
    "stop tiny",
    "completion bash",
)
LEFT = ("list --help", "list a b", "list --jso", "show", "show -", "show -vv x", "stop", "ps -- x")


def by_click(name: str, words: list[str]) -> Mapping[str, Any]:
    parser = root()
    with parser.make_context("vllama", [name, *words]) as outer:
        command = parser.get_command(outer, name)
        assert isinstance(command, PlainCommand)
        with command.make_context(name, words, parent=outer) as context:
            return context.params


def meant(line: str) -> tuple[str, list[str], Callable[[], Any] | None]:
    name, *words = shlex.split(line)
    return name, words, plain_call(function_at(COMMANDS[name])[0], words)


def test_the_commands_that_end_at_once_are_read_without_click() -> None:
    assert {"list", "ps", "show", "stop"} <= {*LIGHT}


@pytest.mark.parametrize("line", PLAIN)
def test_what_is_plainly_right_means_what_click_makes_of_it(line: str) -> None:
    name, words, call = meant(line)
    assert call is not None
    assert call.keywords == by_click(name, words)  # type: ignore[attr-defined]


@pytest.mark.parametrize("line", LEFT)
def test_anything_else_is_left_to_click(line: str) -> None:
    assert meant(line)[2] is None


@pytest.mark.parametrize("name", LIGHT)
def test_click_knows_all_that_a_command_declares(name: str) -> None:
    function = function_at(COMMANDS[name])[0]
    parser = root()
    with parser.make_context("vllama", [name]) as context:
        command = parser.get_command(context, name)
    assert command is not None
    shown = [(each.name, isinstance(each, click.Option)) for each in command.params]
    assert shown == [(each.variable, each.is_option) for each in declared(function)]
