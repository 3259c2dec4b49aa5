"""The command line as typer sees it: commands imported when asked for, and their help pages."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.main import get_command, get_install_completion_arguments

from vllama.cli.command_index import ALIASES, COMMANDS, INTRODUCTION, help_page

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
COMPLETION_VARIABLE = "_VLLAMA_COMPLETE"


class PlainCommand(TyperCommand):
    """A command whose help names its arguments as bare words, without types and braces."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line."""
        return [
            piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)
        ]

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


class Commands(TyperGroup):
    """All commands by name; an alias is found, but not shown."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names to complete."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command; None if there is no such one."""
        place = COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
        return _load_command(place) if place else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write our own page, which needs no command to be imported."""
        formatter.write(help_page())


def root() -> Commands:
    """Return what parses a whole command line, and answers a shell that completes one."""
    return Commands(
        name="vllama",
        help=INTRODUCTION,
        params=list(get_install_completion_arguments()),
        context_settings=CONTEXT_SETTINGS,
        rich_markup_mode=None,
    )


@cache
def _load_command(place: str) -> Any:
    """Import the function at a place of the index, and make a command of it."""
    module, _, name = place.partition(":")
    home = import_module(f"vllama.cli.commands.{module}")
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=PlainCommand, epilog=getattr(home, "EXAMPLES", None))(getattr(home, name))
    return get_command(app)
