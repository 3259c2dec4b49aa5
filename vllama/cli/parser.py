"""The command line as typer sees it: commands imported when asked for, and their help pages.

A module of a command has a function of its name, or `ACTIONS`: functions by the names of actions.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.main import get_command, get_install_completion_arguments

from vllama.base.errors import ConfigError
from vllama.base.spelling import suggest
from vllama.cli.command_index import ALIASES, COMMANDS, INTRODUCTION, LINES, find_place, help_page

MOST_HELP_COLUMNS, LEAST_HELP_COLUMNS = 100, 30
COMPLETION_VARIABLE = "_VLLAMA_COMPLETE"
ACTION_ALIASES = {"add": "install", "ls": "list", "rm": "remove", "uninstall": "remove"}
"""Other words for an action, where a command has no action of this name."""
HARMLESS = ("list", "show")
"""A command whose first action is one of these does it when none is named; others show help."""
Rows = list[tuple[str, str]]


def pass_text_on(parameters: list[Any]) -> list[Any]:
    """Make parameters pass text to the command unchanged, and return them.

    typer has pydantic convert every value, even None and text, and importing pydantic takes longer
    than most commands run.
    """
    for each in parameters:
        vars(each).setdefault("process_value", partial(process_value, each))
    return parameters


def process_value(parameter: Any, context: Any, value: Any) -> Any:
    """Return a value, which typer itself processes unless it is none or text as it should be."""
    if value is None:
        is_ready = not parameter.required
    else:
        is_text = parameter.type_descriptor.annotation in (str, list[str])
        is_ready = is_text and not parameter.callback and not parameter.value_is_missing(value)
    return value if is_ready else type(parameter).process_value(parameter, context, value)


class PlainCommand(TyperCommand):
    """A command whose help names its arguments as bare words, without types and braces."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, --help included."""
        return pass_text_on(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line."""
        return [
            piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)
        ]

    def get_short_help_str(self, limit: int = MOST_HELP_COLUMNS) -> str:
        """Return the line that a shell shows; typer leaves a straight apostrophe out for zsh."""
        return super().get_short_help_str(limit).replace("'", "’")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of the arguments and the options."""
        parameters = self.get_params(ctx)
        arguments = [each for each in parameters if isinstance(each, TyperArgument)]
        records = [each.get_help_record(ctx) for each in parameters if each not in arguments]
        _write_section(
            formatter, "Arguments", [(each.display_name_raw, each.help or "") for each in arguments]
        )
        _write_section(formatter, "Options", [record for record in records if record])


class Actions(TyperGroup):
    """A command with actions, each with options and a help page of its own."""

    def __init__(self, name: str, actions: Mapping[str, Callable[..., Any]], examples: str) -> None:
        first = next(iter(actions))
        self.actions, self.default = actions, first if first in HARMLESS else None
        super().__init__(
            name=name,
            help=LINES[name],
            epilog=examples,
            rich_markup_mode=None,
            subcommand_metavar=f"{'[ACTION]' if self.default else 'ACTION'} [ARGS]...",
        )

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, --help included."""
        return pass_text_on(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names to complete."""
        return list(self.actions)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of an action; None if there is no such one."""
        name = cmd_name if cmd_name in self.actions else ACTION_ALIASES.get(cmd_name, "")
        if name not in self.actions:
            return None
        start = f"vllama {self.name} {name}"
        own = [line for line in (self.epilog or "").splitlines() if start in line]
        return make_command(self.actions[name], "\n".join(["\b", "Examples:", *own]))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; those without an action are the default action's."""
        is_bare = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        if is_bare and not ctx.resilient_parsing:  # a shell that completes may want an action
            args = [self.default, *args] if self.default else ["--help"]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return an action, its command and its arguments. Raises ConfigError if it is unknown."""
        word, *rest = args
        command = self.get_command(ctx, word)
        if command or ctx.resilient_parsing:
            return word, command, rest
        from vllama.config import removed

        if advice := removed.OPTIONS.get((str(self.name), word)):
            raise ConfigError(f"'{ctx.command_path} {word}' was removed; {advice}")
        hint = suggest(word, self.actions)
        raise ConfigError(f"cannot run '{ctx.command_path} {word}': no such action", hint=hint)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the section of the actions."""
        rows = []
        for name, function in self.actions.items():
            line = (inspect.getdoc(function) or "").partition("\n")[0]
            rows.append((name, f"{line} [default]" if name == self.default else line))
        _write_section(formatter, "Actions", rows)


def _write_section(formatter: Any, title: str, rows: Rows) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


class Commands(TyperGroup):
    """All commands by name; an alias is found, but not shown."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, --help included."""
        return pass_text_on(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names to complete."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command; None if there is no such one."""
        return load_command(ALIASES.get(cmd_name, cmd_name))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write our own page, which needs no command to be imported."""
        formatter.write(help_page(terminal_width()))


def terminal_width() -> int:
    """Return how many columns help pages may use; long lines are hard to read."""
    columns = shutil.get_terminal_size().columns
    return min(max(columns, LEAST_HELP_COLUMNS), MOST_HELP_COLUMNS)


def root() -> Commands:
    """Return the parser of a whole command line, and answers a shell that completes one."""
    return Commands(
        name="vllama",
        help=INTRODUCTION,
        params=list(get_install_completion_arguments()),
        context_settings={
            "help_option_names": ["-h", "--help"],
            "terminal_width": terminal_width(),
        },
        rich_markup_mode=None,
    )


def list_actions(command: str) -> dict[str, Any]:
    """Return the actions of a command, made commands; empty if it has none."""
    parsed = load_command(command)
    if not isinstance(parsed, Actions):
        return {}
    return {name: parsed.get_command(None, name) for name in parsed.actions}


def list_options(command: Any) -> list[str]:
    """Return the flags of a command."""
    return [flag for each in command.params for flag in each.opts if flag.startswith("--")]


@cache
def load_command(name: str) -> Any:
    """Import a command's module, and make a command of it; None if no package has one."""
    place = find_place(name) or _find_plugin(name)
    if not place:
        return None
    module, _, function = place.partition(":")
    home = import_module(module)
    examples = getattr(home, "EXAMPLES", "")
    if actions := getattr(home, "ACTIONS", None):
        return Actions(name, actions, examples)
    return make_command(getattr(home, function), examples)


def make_command(function: Callable[..., Any], examples: str) -> Any:
    """Make a command of a function."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=PlainCommand, epilog=examples)(function)
    return get_command(app)


def _find_plugin(name: str) -> str:
    """Return the place of a command that a package declares; reading them takes some 20 ms."""
    from importlib.metadata import entry_points

    return next((each.value for each in entry_points(group="vllama.commands", name=name)), "")
