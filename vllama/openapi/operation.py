"""What is said of a route: its request, its answers and its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from vllama.dialects.go_types import Schema, Struct


class Tag(StrEnum):
    """The API that a route belongs to."""

    OLLAMA = "Ollama"
    OPENAI = "OpenAI"
    ANTHROPIC = "Anthropic"
    SERVER = "Server"


class StreamKind(StrEnum):
    """How a streamed answer is framed."""

    NDJSON = "application/x-ndjson"
    EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A request's body: the type that is checked, and what is known beyond it.

    `fields` are added to those of the type, or refine them. It has one of the forms
    `either`. `form`: it is sent as a form, with files. `examples` are whole bodies by their titles.
    """

    type: Struct | None = None
    required: Sequence[str] = ()
    either: Sequence[Schema] = ()
    fields: Mapping[str, Schema] = field(default_factory=dict)
    form: bool = False
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A streamed answer.

    `type` is that of a line, or of an event's data; a tuple are the types that it may have.
    `named`: each event has a name. `ends_with` is the data of the last event, which is no JSON.
    """

    kind: StreamKind
    type: Any
    named: bool = False
    ends_with: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A part of the path, which is always required, or something after the question mark."""

    name: str
    help: str
    where: str = "path"
    required: bool = False
    schema: Schema = field(default_factory=lambda: {"type": "string", "minLength": 1})
    example: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A method of a path, or of several that do the same.

    `answer` is the type of the JSON that is answered; a tuple are the types that it may have.
    `media` are answers of other types, by their media types. `statuses` are those of answers,
    `errors` those of refusals beside the common ones. `error_form` is the API in whose form errors
    are, if that is not its own. `runs_model`: the answer comes from a model. `upload`: the body is
    a file.
    """

    paths: Sequence[str]
    methods: Sequence[str] = ("post",)
    tag: Tag
    summary: str
    help: str = ""
    parameters: Sequence[Parameter] = ()
    body: Body | None = None
    upload: bool = False
    answer: Any = None
    stream: Stream | None = None
    media: Mapping[str, Schema] = field(default_factory=dict)
    statuses: Sequence[int] = (200,)
    errors: Sequence[int] = ()
    error_form: Tag | None = None
    keyless: bool = False
    runs_model: bool = False
