"""What a command takes, declared without click: its import takes longer than `vllama ps` itself.

`argument` and `option` are written as click's decorators of these names are. `plain_call` reads a
command line that is plainly right; click, made from the same declarations, reads any other one,
words the errors and prints the help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Parameter(NamedTuple):
    """An argument or an option: its names and its settings, both in click's terms."""

    names: tuple[str, ...]
    settings: dict[str, Any]

    @property
    def is_option(self) -> bool:
        """Whether it is an option."""
        return any(name.startswith("-") for name in self.names)

    @property
    def is_flag(self) -> bool:
        """Whether it is an option without a value."""
        return bool(self.settings.get("is_flag"))

    @property
    def variable(self) -> str:
        """The function's parameter: the name without dashes if there is one, else the longest."""
        bare = [name for name in self.names if name.isidentifier()]
        return bare[0] if bare else max(self.names, key=len).lstrip("-").replace("-", "_")


def function_at(place: str) -> tuple[Callable[..., Any], str | None]:
    """Import the function at a place of `command_index`; return it and its examples, if any."""
    module, _, name = place.partition(":")
    home = import_module(f"vllama.cli.commands.{module}")
    return getattr(home, name), getattr(home, "EXAMPLES", None)


def argument(*names: str, **settings: Any) -> Callable[[F], F]:
    """Declare an argument of the command below."""
    return _declaring(Parameter(names, settings))


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Declare an option of the command below."""
    return _declaring(Parameter(names, settings))


def declared(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Return what a command takes; nothing for one that is declared with click."""
    found: tuple[Parameter, ...] = getattr(function, "parameters", ())
    return found


def plain_call(function: Callable[..., Any], words: Sequence[str]) -> Callable[[], Any] | None:
    """Return the call that the words mean: flags, and a value for each argument.

    None for everything else (help, a value of an option, a mistake), and for commands that are
    declared with click.
    """
    parameters = declared(function)
    if not parameters:
        return None
    flags = {name: each for each in parameters if each.is_flag for name in each.names}
    given: dict[str, Any] = {
        each.variable: each.settings.get("default", False if each.is_flag else None)
        for each in parameters
        if each.is_option
    }
    values: list[str] = []
    for word in words:
        if flag := flags.get(word):
            given[flag.variable] = True
        elif word.startswith("-"):
            return None
        else:
            values.append(word)
    places = [each for each in parameters if not each.is_option]
    if len(values) > len(places):
        return None
    for place, value in zip(places, values, strict=False):
        given[place.variable] = value
    for place in places[len(values) :]:
        if "default" not in place.settings:
            return None
        given[place.variable] = place.settings["default"]
    return partial(function, **given)


def _declaring(parameter: Parameter) -> Callable[[F], F]:
    def declare(function: F) -> F:
        function.parameters = (parameter, *declared(function))  # type: ignore[attr-defined]
        return function

    return declare
