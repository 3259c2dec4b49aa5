"""The command line as typer sees it: commands imported when asked for, and their help pages.

A module of a command has a function of its name, or `ACTIONS`: functions by the names of actions.
"""

from __future__ import annotations

import shutil
from functools import cache, partial
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.main import get_command, get_install_completion_arguments

from vllama.cli.command_index import ALIASES, COMMANDS, INTRODUCTION, LINES, find_place, help_page

MOST_HELP_COLUMNS, LEAST_HELP_COLUMNS = 100, 30
COMPLETION_VARIABLE = "_VLLAMA_COMPLETE"
ACTION_ALIASES = {"add": "install", "ls": "list", "rm": "remove", "uninstall": "remove"}
"""Other words for an action, where a command has no action of this name."""
HARMLESS = ("list", "show")
"""A command whose first action is one of these does it when none is named; others show help."""


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


class _Quick:
    """A part of a command that spares pydantic."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, --help included."""
        return pass_text_on(super().get_params(ctx))  # type: ignore[misc]


class PlainCommand(_Quick, TyperCommand):
    """A command whose help names its arguments as bare words, without types and braces."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line."""
        return [
            piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)
        ]

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the first line, whole; typer would leave a straight apostrophe out for zsh."""
        return (self.help or "").partition("\n")[0].replace("'", "’")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of the arguments and the options."""
        parameters = self.get_params(ctx)
        arguments = [each for each in parameters if isinstance(each, TyperArgument)]
        records = [each.get_help_record(ctx) for each in parameters if each not in arguments]
        sections = {
            "Arguments": [(each.display_name_raw, each.help or "") for each in arguments],
            "Options": [record for record in records if record],
        }
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Actions(_Quick, TyperGroup):
    """A command with actions, each with options and a help page of its own."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return an action; None if there is no such one."""
        return self.commands.get(cmd_name) or self.commands.get(ACTION_ALIASES.get(cmd_name, ""))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; those without an action are the first one's, if it changes nothing.

        A shell that completes may still want an action.
        """
        is_bare = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        if is_bare and not ctx.resilient_parsing:
            first = next(iter(self.commands))
            args = [first, *args] if first in HARMLESS else ["--help"]
        return super().parse_args(ctx, args)


class Commands(_Quick, TyperGroup):
    """All commands by name; an alias is found, but not shown."""

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
    """Return the actions of a command; empty if it has none."""
    parsed = load_command(command)
    return dict(parsed.commands) if isinstance(parsed, Actions) else {}


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
    app = typer.Typer(
        name=name, cls=Actions, help=LINES.get(name), epilog=examples, add_completion=False,
        rich_markup_mode=None, subcommand_metavar="[ACTION] [ARGS]...", suggest_commands=False,
    )  # fmt: skip
    actions = getattr(home, "ACTIONS", {})
    for action, run in actions.items():
        lines = [line for line in examples.splitlines() if f"vllama {name} {action}" in line]
        app.command(action, cls=PlainCommand, epilog="\n".join(["\b", "Examples:", *lines]))(run)
    if not actions:
        app.command(cls=PlainCommand, epilog=examples)(getattr(home, function))
    return get_command(app)


def _find_plugin(name: str) -> str:
    """Return the place of a command that a package declares; reading them takes some 20 ms."""
    from importlib.metadata import entry_points

    return next((each.value for each in entry_points(group="vllama.commands", name=name)), "")
