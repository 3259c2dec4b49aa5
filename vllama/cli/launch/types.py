"""Types of the integrations: the target, a user's places, edits of files, the start of a tool."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

NAME = "vllama"
"""What our entry is called in other tools' settings."""
TOKEN = "vllama"
"""The key for tools that require one when the server does not."""
ASSUMED_CONTEXT = 131_072
"""Taken where the model's context is not known and a tool wants a number."""
_ANSWER_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server and the model that a tool is to use.

    `url` is the server's root without a trailing slash. `context` is in tokens, None if unknown;
    `capabilities` are those of `/api/show`; `server_key` is None if the server requires no key.
    """

    url: str
    model: str
    server_key: str | None = field(default=None, repr=False)
    context: int | None = None
    capabilities: frozenset[str] = frozenset()

    @property
    def has_key(self) -> bool:
        """True if the server requires a key."""
        return self.server_key is not None

    @property
    def key(self) -> str:
        """The key to send: tools require one even where the server does not."""
        return self.server_key or TOKEN

    @property
    def openai_url(self) -> str:
        """The root of OpenAI's routes."""
        return f"{self.url}/v1"

    @property
    def inputs(self) -> list[str]:
        """Kinds of input, in the words that most tools share."""
        return ["text", "image"] if "vision" in self.capabilities else ["text"]

    @property
    def answer_tokens(self) -> int:
        """Maximum tokens of a response, for tools that require a number."""
        return min(_ANSWER_TOKENS, (self.context or ASSUMED_CONTEXT) // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Folders of a user's settings; `system` is `sys.platform`.

    `own` is a folder of vllama's. Tools that can be sent to other settings for one session find
    them there, so that the user's own stay as they are.
    """

    home: Path
    own: Path
    environ: Mapping[str, str]
    system: str = "linux"

    def find_named(self, variable: str, default: Path) -> Path:
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

    It raises ValueError, with the reason, for a text that it cannot read, and HasComments.
    """

    path: Path
    change: Callable[[str], str]


class HasComments(Exception):
    """The file has comments that would be lost: the user has to change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Command of a tool: its arguments, and variables over those of this process."""

    args: tuple[str, ...]
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Integration:
    """One tool.

    `commands` are the programs to look for, the best first, by default the one of its name;
    `folders` are further places for them, below the home; `apps` are macOS's bundles. `systems` are
    the values of `sys.platform` that the tool is made for; none means all. `args` come before the
    user's own, or before `default_args`; they and the values of `environ` may name the `{model}`,
    the server's `{url}`, its `{key}`, our `{own}` folder, and, in `args`, all variables as JSON.
    `variables` computes further ones. `edits` write the settings down; None for a tool without a
    settings file. `key_variable` is where a tool looks for a key that neither of them gives it,
    `refuses_key` says why it can be given none. `overrides`: the settings would also change what
    the tool does when the user starts it alone, so launching it does not write them; `args` pass
    them for the session instead. `shares` names the tool whose settings files this one writes too:
    both are restored together. `after` tells the user what to do once settings are written.
    """

    name: str
    title: str
    install: str
    commands: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    default_args: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    variables: Callable[[Target], Mapping[str, str]] | None = None
    edits: Callable[[Target, Places], tuple[Edit, ...]] | None = None
    key_variable: str = ""
    refuses_key: str = ""
    overrides: bool = False
    after: str = ""
    aliases: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    shares: str = ""

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs to look for, the best first; none for a desktop app."""
        return self.commands or (() if self.apps else (self.name,))

    def make_start(self, target: Target, places: Places, args: Sequence[str]) -> Launch:
        """Return how the tool is started with the user's arguments, and with the server's key."""
        known = {"url": target.url, "model": target.model, "key": target.key, "own": places.own}
        environ = {self.key_variable: target.key} if self.key_variable and target.has_key else {}
        environ |= {name: text.format_map(known) for name, text in self.environ.items()}
        if self.variables:
            environ.update(self.variables(target))
        known["variables"] = json.dumps(environ)
        ours = (text.format_map(known) for text in self.args)
        return Launch(args=(*ours, *(args or self.default_args)), environ=environ)


def _absolute(text: str, home: Path) -> Path:
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return Path(text).absolute()
