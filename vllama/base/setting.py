"""The declaration of one setting, and of one field of a table in the config file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Any, get_type_hints

from vllama.base.kinds import SWITCH, ValueKind, find_kind, nest
from vllama.base.spelling import suggest
from vllama.base.toml_lines import write_toml

ENV_PREFIX = "VLLAMA_"


class Effect(StrEnum):
    """Time when a change of the config file takes effect in a server that reloads it."""

    NOW = "now"
    NEXT_LOAD = "next load"
    """Of a model; one that is loaded stays as it is."""
    RESTART = "restart"
    """Of the server, which keeps the old value until then."""
    COMMANDS = "commands"
    """The commands read the file themselves; it means nothing to a server."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """One setting, or one field of a table, as it is declared.

    `foreign` is the variable of Ollama, or of the Hugging Face hub, that means the same. A `secret`
    is never shown. A `remote` one may be changed over HTTP: no path, command, address or key, and
    nothing that decides who may do what. `default` is None too where it depends on this machine.
    """

    field: str
    default: Any
    kind: ValueKind
    help: str
    example: str = ""
    has_flag: bool = False
    short: str | None = None
    foreign: str | None = None
    secret: bool = False
    effect: Effect = Effect.NOW
    remote: bool = False

    @property
    def key(self) -> str:
        """Name in the config file."""
        return self.field.removesuffix("_s").removesuffix("_bytes").removesuffix("_fields")

    @property
    def flag(self) -> str | None:
        """Name of the flag; that of a list is singular, as it is given once for each item."""
        name = self.key.removesuffix("s") if self.kind.is_list else self.key
        return f"--{name.replace('_', '-')}" if self.has_flag else None

    @property
    def env(self) -> str:
        """Name of our own variable."""
        return ENV_PREFIX + self.key.upper()

    @property
    def is_switch(self) -> bool:
        """True if the flag takes no value."""
        return isinstance(self.default, bool)

    @property
    def default_text(self) -> str:
        """The default as a user would write it; empty if there is none to show."""
        return "" if self.default in (None, ()) else self.kind.text(self.default)


def setting(
    help: str,
    default: Any = None,
    *,
    factory: Callable[[], Any] | None = None,
    secret: bool = False,
    flag: bool = False,
    **more: Any,
) -> Any:
    """Declare a field of a dataclass as a setting; its type says what it takes.

    With `factory` its default depends on this machine. `more` are fields of `Setting`; the
    `example` may be left out where the default, or `true`, is one.
    """
    declared = {"help": help, "secret": secret, "has_flag": flag, **more}
    if factory is not None:
        return field(default_factory=factory, metadata=declared, repr=not secret)
    return field(default=default, metadata=declared, repr=not secret)


def list_declared(group: type) -> tuple[Setting, ...]:
    """Return the declarations of a dataclass's fields, in their order."""
    types = get_type_hints(group, include_extras=True)
    found = []
    for each in fields(group):
        if each.metadata:
            default = None if each.default is MISSING else each.default
            kind = find_kind(types[each.name])
            usual = "true" if kind is SWITCH else kind.text(default)
            declared = {"example": usual, **each.metadata}
            found.append(Setting(field=each.name, default=default, kind=kind, **declared))
    return tuple(found)


class TableError(ValueError):
    """A table is wrong; `path` are the keys down to the wrong one."""

    def __init__(self, path: Sequence[str], reason: str, hint: str) -> None:
        super().__init__(reason)
        self.path = tuple(path)
        self.reason = reason
        self.hint = hint


def read_fields(
    path: tuple[str, ...], table: Mapping[str, object], declared: Sequence[Setting]
) -> dict[str, Any]:
    """Return the values of a table by the names of the declared fields. Raises TableError."""
    known = {each.key: each for each in declared}
    found = {}
    for key, value in table.items():
        if key not in known:
            raise TableError((*path, key), "no such field", hint=suggest(key, known))
        one = known[key]
        try:
            found[one.field] = one.kind.read(value)
        except TableError as error:
            raise TableError((*path, key, *error.path), error.reason, error.hint) from None
        except ValueError as error:
            hint = f"use the form {key} = {one.example} ({one.help})"
            raise TableError((*path, key), str(error), hint=hint) from None
    return found


def list_given(table: object, declared: Sequence[Setting]) -> dict[Setting, Any]:
    """Return the values of a table that are not the defaults."""
    values = ((each, getattr(table, each.field)) for each in declared)
    return {each: value for each, value in values if value != each.default}


def describe_fields(declared: Sequence[Setting]) -> dict[str, Any]:
    """Return the JSON schema of a table."""
    known = {each.key: {**each.kind.schema, "description": each.help} for each in declared}
    return {"type": "object", "additionalProperties": False, "properties": known}


def make_kind(group: type) -> ValueKind:
    """Return the kind of tables with the fields that a dataclass declares."""
    declared = list_declared(group)

    def read(value: object) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError("not a table")
        return group(**read_fields((), value, declared))

    def write(value: object) -> str:
        given = list_given(value, declared).items()
        return write_toml({each.key: one for each, one in given})

    return nest(read, describe_fields(declared), write)
