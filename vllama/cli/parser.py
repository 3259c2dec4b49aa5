"""The command line as click sees it: commands imported when asked for, and their help pages."""

from __future__ import annotations

from functools import cache

import click

from vllama.cli.command_index import ALIASES, COMMANDS, INTRODUCTION
from vllama.cli.declare import declared, function_at


class PlainCommand(click.Command):
    """A command whose help names its arguments as bare words."""

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the section of the arguments."""
        arguments = [each for each in self.get_params(ctx) if isinstance(each, click.Argument)]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(
                    [(each.human_readable_name, each.help or "") for each in arguments]
                )


class Commands(click.Group):
    """All commands by name; an alias is found, but not shown."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names to complete."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is no such one."""
        place = COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
        return _command(place) if place else None


def root() -> Commands:
    """Return what parses a whole command line."""
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return Commands("vllama", help=INTRODUCTION, context_settings=settings)


@cache  # click takes the options off the function that they were declared on
def _command(place: str) -> click.Command:
    function, examples = function_at(place)
    command = click.command(cls=PlainCommand, epilog=examples)(function)
    for each in declared(function):
        attach = click.option if each.is_option else click.argument
        attach(*each.names, **each.settings)(command)
    return command
