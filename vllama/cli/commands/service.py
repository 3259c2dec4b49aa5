"""`vllama service`: run the server as a service of the machine or of a user."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllama import config
from vllama.base.errors import ConfigError
from vllama.cli.context import load_settings
from vllama.cli.options import argument, check_action, complete_words, option
from vllama.cli.output import say, say_aside

if TYPE_CHECKING:
    from vllama.admin.service import Service

EXAMPLES = """\
\b
Examples:
  vllama service install                         for you, with your settings
  vllama service install -- --model qwen3:8b     with arguments for serve
  sudo vllama service install --system           for the machine, confined
  vllama service show --system > vllama.service
  vllama service uninstall

It uses systemd on Linux and launchd on macOS, whose own tools show the state and the log:
'systemctl --user status vllama' and 'journalctl --user --unit vllama'; 'launchctl print
gui/$UID/vllama'. What comes after -- goes to 'vllama serve'.
"""
ACTIONS = ("install", "uninstall", "show")
HOMES = (Path("/home"), Path("/root"))
"""What a confined service cannot see."""


def service(
    context: typer.Context,
    action: Annotated[
        str, argument("ACTION", "install, uninstall or show.", complete_words(*ACTIONS))
    ],
    system: Annotated[
        bool, option("--system", "For the whole machine (Linux, needs root).")
    ] = False,
) -> None:
    """Run the server as a service: install, uninstall, show."""
    from vllama.admin import service as manager

    check_action(action, ACTIONS, "the service")
    made = make_service(context.obj or (), system=system)
    if action == "show":
        say(made.text.rstrip())
        return
    manager.check_manager(sys.platform)
    if action == "install":
        manager.install(made)
        say(f"installed and started: {made.file}")
        say_aside(made.hint)
        say_aside(f"to watch it: {made.watch}")
    else:
        removed = manager.uninstall(made)
        say(f"removed {made.file}" if removed else "there is no such service")


def make_service(words: Sequence[str], *, system: bool) -> Service:
    """Return the service that runs `vllama serve` with these words. Raises ConfigError."""
    from vllama.admin.service import make_launchd_service, make_systemd_service

    settings, environ = load_settings(), config.environ()
    home = Path(environ.get("HOME", "~")).expanduser()
    command = [*find_program(), "serve", *words]
    if sys.platform == "darwin":
        if system:
            raise ConfigError(
                "cannot install a service of the whole machine: only one of a user is supported",
                hint="leave out --system",
            )
        return make_launchd_service(
            command,
            home=home,
            log=settings.log_dir / "service.log",
            search_path=environ.get("PATH", ""),
            stop_limit_s=settings.stop_limit_s,
        )
    program = Path(command[0]).resolve()
    if system and any(program.is_relative_to(folder) for folder in HOMES):
        raise ConfigError(
            f"cannot run '{command[0]}' as a service of the machine: it is in a user's home, "
            "which the service cannot see",
            hint="install vllama for all users, such as into /opt/vllama, or leave out --system",
        )
    user_settings = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return make_systemd_service(
        command, system=system, config=user_settings, stop_limit_s=settings.stop_limit_s
    )


def find_program() -> list[str]:
    """Return how this vllama is started, independent of PATH and of the current folder."""
    script = Path(sys.executable).with_name("vllama")
    return [str(script)] if script.is_file() else [sys.executable, "-m", "vllama"]
