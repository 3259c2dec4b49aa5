"""The parts of a route's record that describe its request and its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any

from vllama.dialects.go_structs import Struct
from vllama.dialects.go_types import Schema


class Tag(StrEnum):
    """The API that a route belongs to."""

    OLLAMA = "Ollama"
    OPENAI = "OpenAI"
    ANTHROPIC = "Anthropic"
    SERVER = "Server"


class Framing(StrEnum):
    """How a streamed answer is framed."""

    NDJSON = "JSON lines"
    EVENTS = "events, and `[DONE]` at the end"
    NAMED_EVENTS = "events with names"


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A request's body: the type that is checked, and what is known beyond it.

    `name` is by default that of the type. `fields` are added to those of the type, or refine them;
    `parts` refine the types within it, by their names. `form`: it is sent as a form, with files.
    `examples` are whole bodies by their titles, but for the model of a request to one.
    """

    name: str = ""
    type: Struct[Any] | None = None
    required: Sequence[str] = ()
    fields: Mapping[str, Schema] = field(default_factory=dict)
    parts: Mapping[str, Schema] = field(default_factory=dict)
    form: bool = False
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stream:
    """A streamed answer: `type` is that of a line, or of an event's data.

    A tuple are the types that it may have. Any line or event without a name may be an error.
    """

    framing: Framing
    type: Any


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of the path, which is always required, or something after the question mark."""

    name: str
    help: str
    schema: Schema = field(default_factory=lambda: {"type": "string", "minLength": 1})
    _: KW_ONLY
    required: bool = False
    example: Any = None
