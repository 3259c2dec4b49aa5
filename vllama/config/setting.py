"""What the declaration of one setting says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from vllama.config.kinds import Kind

ENV_PREFIX = "VLLAMA_"


class Effect(StrEnum):
    """When a change of the config file takes effect in a running server that reads it again."""

    NOW = "now"
    NEXT_LOAD = "next load"
    """Of a model; one that is loaded stays as it is."""
    RESTART = "restart"
    """Of the server, which keeps the old value until then."""
    COMMANDS = "commands"
    """The commands read the file themselves; it means nothing to a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting as it is declared.

    `foreign` is the variable of Ollama, or of the Hugging Face hub, that means the same. A `secret`
    is never shown. A `remote` one may be changed over HTTP: no path, command, address or key, and
    nothing that decides who may do what. `default` is None too where it depends on this machine.
    """

    field: str
    default: Any
    kind: Kind
    help: str
    example: str
    flag: str | None
    short: str | None
    foreign: str | None
    secret: bool
    effect: Effect
    remote: bool

    @property
    def key(self) -> str:
        """Name in the config file."""
        return self.field.removesuffix("_s").removesuffix("_bytes")

    @property
    def env(self) -> str:
        """Name of our own variable."""
        return ENV_PREFIX + self.key.upper()

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value."""
        return isinstance(self.default, bool)

    @property
    def default_text(self) -> str:
        """The default as a user would write it; empty if there is none to show."""
        return "" if self.default in (None, ()) else self.kind.text(self.default)


def setting(
    default: Any,
    kind: Kind,
    help: str,
    *,
    example: str,
    flag: str | None = None,
    short: str | None = None,
    foreign: str | None = None,
    factory: Callable[[], Any] | None = None,
    secret: bool = False,
    effect: Effect = Effect.NOW,
    remote: bool = False,
) -> Any:
    """Declare a field of `Config`; with `factory` its default depends on this machine."""
    declared = {
        "default": default,
        "kind": kind,
        "help": help,
        "example": example,
        "flag": flag,
        "short": short,
        "foreign": foreign,
        "secret": secret,
        "effect": effect,
        "remote": remote,
    }
    if factory is not None:
        return field(default_factory=factory, metadata=declared, repr=not secret)
    return field(default=default, metadata=declared, repr=not secret)
