"""`vllama launch`: set up another tool to use this server, and start it."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from vllama import config
from vllama.base.errors import ConfigError, VllamaError
from vllama.cli.context import load_settings
from vllama.cli.options import argument, complete_model, option, yes_option
from vllama.cli.output import (
    console,
    is_terminal,
    require_agreement,
    say,
    say_aside,
    show_table,
    show_warning,
)

if TYPE_CHECKING:
    from vllama.cli.launch.settings_files import Change, Keeper
    from vllama.cli.launch.types import Integration, Places, Target

EXAMPLES = """\
\b
Examples:
  vllama launch                                   list the tools and their state
  vllama launch codex --model qwen3:8b
  vllama launch claude --model qwen3:8b -- -p "What does this project do?"
  vllama launch vscode --config                   write the settings only
  vllama launch vscode --restore                  restore the previous settings

Arguments after -- go to the tool. Each change is shown, and the file backed up, before it is
written; comments and other keys are preserved. JSON with comments is not changed: the lines to
add are printed.
"""


def complete_tool(incomplete: str) -> list[str]:
    """Return the tools that begin so, for the shell."""
    from vllama.cli.launch.target import INTEGRATIONS

    return [tool.name for tool in INTEGRATIONS if tool.name.startswith(incomplete)]


def launch(
    context: typer.Context,
    tool: Annotated[
        str | None, argument("TOOL", "Name of the tool. [list them]", complete_tool)
    ] = None,
    model: Annotated[
        str | None, option("--model -m NAME", "Model for the tool.", complete_model)
    ] = None,
    config_only: Annotated[
        bool, option("--config", "Write the settings without starting the tool.")
    ] = False,
    restore: Annotated[bool, option("--restore", "Restore the tool's settings.")] = False,
    yes: Annotated[bool, yes_option()] = False,
) -> int:
    """Configure a tool to use this server, and start it."""
    from vllama.cli.launch.target import check_system, choose_target, find
    from vllama.cli.launch.types import Places

    settings = load_settings()
    places = Places(
        home=Path.home(),
        own=settings.data_dir / "launch",
        environ=config.environ(),
        system=sys.platform,
    )
    folder = settings.data_dir / "integrations"
    if tool is None:
        if model or config_only or restore:
            raise ConfigError("no tool specified", hint="list them: vllama launch")
        _show_all(folder, places)
        return 0
    if config_only and restore:
        raise ConfigError("cannot use --config with --restore")
    chosen = find(tool)
    keeper = _keeper(folder, chosen)
    if restore:
        return _restore(chosen, keeper, yes=yes)
    check_system(chosen, places.system)
    target = choose_target(settings, model, chosen, needs_server=not config_only, yes=yes)
    if target.has_key and chosen.refuses_key:
        raise ConfigError(
            f"cannot use {chosen.title} with a server that requires a key: {chosen.refuses_key}"
        )
    if config_only or not chosen.overrides:
        _write(chosen, target, places, keeper, told=config_only, yes=yes)
    if not config_only:
        _start(chosen, target, places, context.obj or ())
    return 0


def _keeper(folder: Path, tool: Integration) -> Keeper:
    from vllama.cli.launch.settings_files import Keeper

    return Keeper(folder / (tool.shares or tool.name))


def _show_all(folder: Path, places: Places) -> None:
    """List the tools for this system, and what was changed in their settings."""
    from vllama.cli.launch.target import INTEGRATIONS, is_made_for, program

    show_table(
        ("NAME", "TOOL", "INSTALLED", "SETTINGS"),
        [
            (
                tool.name,
                tool.title,
                "yes" if program(tool, places) else "no",
                _keeper(folder, tool).state() or "-",
            )
            for tool in INTEGRATIONS
            if is_made_for(tool, places.system)
        ],
    )


def _write(
    tool: Integration, target: Target, places: Places, keeper: Keeper, *, told: bool, yes: bool
) -> None:
    """Write the tool's settings after showing the changes; `told`: also say what is left to do."""
    from vllama.cli.launch.settings_files import plan

    if tool.edits is None:
        if told:
            say_aside(f"{tool.title} reads its settings from the environment:")
            for name, value in tool.make_start(target, places, ()).environ.items():
                say(f"export {name}={shlex.quote(value)}")
        return
    planned = list(map(plan, tool.edits(target, places)))
    changes = [change for change in planned if change.differs]
    by_hand = [change for change in planned if change.lines]
    if changes:
        _show_changes(changes)
        require_agreement("Save these changes?", yes=yes)
        keeper.write(changes, has_key=target.has_key)
        say_aside(f"saved; 'vllama launch {tool.name} --restore' restores the previous settings")
    elif told and not by_hand:
        say_aside("the settings are already saved")
    for change in by_hand:
        say_aside(f"'{change.path}' has comments, so it was not changed; add these lines:")
        say(change.lines.rstrip())
    if by_hand and not told:
        say_aside(f"starting {tool.title}; it uses this server once the lines are in the file")
    if tool.after and (told or changes):
        say_aside(tool.after)
    if told and target.has_key and tool.key_variable:
        say_aside(f"it reads the API key from a variable: export {tool.key_variable}=KEY")


def _restore(tool: Integration, keeper: Keeper, *, yes: bool) -> int:
    """Put back what was there before the first change."""
    undone = keeper.undo()
    if not undone:
        say_aside(f"the settings of {tool.title} were not changed")
        return 0
    if keeper.state() == "changed since":
        show_warning("The file has been changed since then; those changes will be lost.")
    _show_changes([change for change in undone if change.differs])
    require_agreement("Restore the previous configuration?", yes=yes)
    for copy in keeper.restore():
        say_aside(f"Backup: {copy}")
    say_aside("Restored.")
    return 0


def _show_changes(changes: Sequence[Change]) -> None:
    """Print the changes of files as a diff on stderr."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for change in changes:
        if change.after is None:
            say_aside(f"delete {change.path}")
            continue
        before, after = (
            (content or b"").decode(errors="replace").splitlines()
            for content in (change.before, change.after)
        )
        verb = "create" if change.before is None else "change"
        say_aside(f"{verb} {change.path}")
        for line in list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]:
            if is_terminal(sys.stderr):
                console(stderr=True).print(f"  {line}", style=styles.get(line[:1]))
            else:
                say_aside(f"  {line}")


def _start(tool: Integration, target: Target, places: Places, args: Sequence[str]) -> NoReturn:
    """Replace this process by the tool."""
    from vllama.cli.launch.target import program

    found = program(tool, places)
    if found is None:
        raise VllamaError(
            f"cannot start {tool.title}: it is not installed", hint=f"to install it: {tool.install}"
        )
    start = tool.make_start(target, places, args)
    sys.stdout.flush()
    try:
        os.execve(found[0], [*found, *start.args], {**places.environ, **start.environ})
    except OSError as error:
        raise VllamaError(f"cannot start '{found[0]}': {error.strerror or error}") from error
