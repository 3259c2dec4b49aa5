"""Types of the integrations: the target, a user's places, edits of files, the start of a tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

NAME = "vllama"
"""What our entry is called in other tools' settings."""
TOKEN = "vllama"
"""The key for tools that require one when the server does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server and the model that a tool is to use.

    `url` is the server's root without a trailing slash. `context` is in tokens, None if unknown;
    `capabilities` are those of `/api/show`; `key` is one that the server accepts.
    """

    url: str
    model: str
    key: str = field(default=TOKEN, repr=False)
    context: int | None = None
    capabilities: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a user's settings may lie; `system` is `sys.platform`."""

    home: Path
    environ: Mapping[str, str]
    system: str = "linux"

    def named(self, variable: str, default: Path) -> Path:
        """Return the folder or file that a variable names, else `default`."""
        value = self.environ.get(variable, "")
        return _absolute(value, self.home) if value else default

    @property
    def config(self) -> Path:
        """The folder of the XDG base directory specification, which wants an absolute path."""
        value = self.environ.get("XDG_CONFIG_HOME", "")
        return Path(value) if Path(value).is_absolute() else self.home / ".config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A change of one file: `change` takes its text ("" if there is no file), returns the new one.

    It raises ValueError, with the reason, for a text that it cannot read.
    """

    path: Path
    change: Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a tool is started: its arguments, and variables over those of this process."""

    args: tuple[str, ...] = ()
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Integration:
    """One tool.

    `commands` are the programs to look for, the best first; `folders` are further places for them,
    below the home. `start` also gets the user's own arguments. `edits` write the settings down;
    None for a tool without a settings file. `overrides`: the settings would also change what the
    tool does when the user starts it alone, so launching it does not write them; `start` passes
    them for the session instead. `after` tells the user what to do once settings are written.
    """

    name: str
    title: str
    commands: tuple[str, ...]
    install: str
    start: Callable[[Target, Sequence[str]], Start]
    edits: Callable[[Target, Places], tuple[Edit, ...]] | None = None
    overrides: bool = False
    after: str = ""
    aliases: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


def _absolute(text: str, home: Path) -> Path:
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return Path(text).absolute()
