"""Record of a route, declared in `ROUTES` beside its handler.

`route_table` collects the records. Routing, scopes, metering, fallback chains, captures,
traces, metrics, the form of errors and `/openapi.json` read them, and list no paths.
The answer of a handler is a struct, which its record names.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from vllama.accounts.keys.key import Scope
from vllama.base.errors import VllamaError
from vllama.base.meaning import Schema
from vllama.dialects import errors

if TYPE_CHECKING:
    from vllama.net.http.request import Request


Handler: TypeAlias = "Callable[[Any, Request], Awaitable[None]]"
"""It is given the `Gateway`, parts of which know of routes: hence `Any`."""


class Dialect(StrEnum):
    """The APIs that clients speak; `NONE` for routes that are no part of one, such as /health."""

    OLLAMA = "ollama"
    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    NONE = ""

    def make_error(self, error: VllamaError, id_: str = "") -> errors.ErrorBody:
        """Return an error as its clients expect it; `id_` is the request's, for Anthropic's."""
        if self is Dialect.ANTHROPIC:
            return errors.make_anthropic_error(error, id_)
        if self in (Dialect.OPENAI, Dialect.RESPONSES):
            return errors.make_openai_error(error)
        return errors.make_ollama_error(error)


class Tag(StrEnum):
    """The API that a route belongs to."""

    OLLAMA = "Ollama"
    OPENAI = "OpenAI"
    ANTHROPIC = "Anthropic"
    SERVER = "Server"


_TAGS = {
    Dialect.OLLAMA: Tag.OLLAMA,
    Dialect.OPENAI: Tag.OPENAI,
    Dialect.RESPONSES: Tag.OPENAI,
    Dialect.ANTHROPIC: Tag.ANTHROPIC,
    Dialect.NONE: Tag.SERVER,
}


class RouteKind(StrEnum):
    """Kind of a handler: it decides which keys may use it, and when.

    A request to a `MODEL` is metered, and falls back along the chain of its model.
    """

    OPEN = "exposes nothing that needs a key"
    MODEL = "runs a model; subject to the limits of API keys"
    LISTS = "lists models"
    OWN = "shows a key its own data, and other data to keys with the scope read"
    DETACHED = "shows a key its own responses; without keys, only for this machine's pages"
    OBSERVES = "shows the server's state"
    WRITTEN = "shows prompts and responses"
    WRITES = "changes models, here or at a registry"
    SETS = "changes settings or keys"
    ADMIN = "anything else"


_SCOPES = {
    RouteKind.OPEN: (),
    RouteKind.MODEL: (Scope.INFER, Scope.NODE),
    RouteKind.LISTS: (Scope.INFER, Scope.READ, Scope.NODE),
    RouteKind.OWN: (Scope.INFER, Scope.READ, Scope.NODE),
    RouteKind.DETACHED: (Scope.INFER, Scope.NODE),
    RouteKind.OBSERVES: (Scope.READ, Scope.NODE),
}
"""The scopes one of which a key needs, () if any key will do; all others need the scope admin."""


class Task(StrEnum):
    """Task of a model, as OpenTelemetry names it: `gen_ai.operation.name`."""

    CHAT = "chat"
    COMPLETION = "text_completion"
    EMBEDDINGS = "embeddings"


class Framing(StrEnum):
    """Framing of a streamed response."""

    NDJSON = "JSON lines"
    EVENTS = "events, with `[DONE]` at the end"
    NAMED_EVENTS = "named events"


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


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The methods and paths of a handler, as in `GET HEAD /health` and `GET /api/logs/{name}`.

    What varies in a path may contain slashes. Clients read the handler's docstring: `/openapi.json`
    has its first line as the summary, and the rest as the description.
    """

    spelling: str
    handler: Handler
    kind: RouteKind = RouteKind.ADMIN
    _: KW_ONLY
    # the form of its errors, and a label of metrics
    dialect: Dialect = Dialect.NONE
    task: Task | None = None
    # requests to a model are captured where captures are made
    captured: bool = True
    # tells whether a request gives a model no work, so that no limit of a key holds for it
    is_free: Callable[[Request], Awaitable[bool]] | None = None
    # it is about a model's files or a stored response: in a cluster the node that has it answers
    on_nodes: bool = False
    # it is about other clients, or about this machine, so no page of a stranger's may ask
    tells: bool = False
    # without keys it is about everybody's, so a server that others can reach requires a key for it
    shared: bool = False
    # it needs no key even where keys are required
    keyless: bool = False
    # what answers before the server has started, from a `Starting`; all others wait
    starting: Handler | None = None
    # False for pages that people look at, which are no part of an API
    described: bool = True
    # the API that it is listed with, by default that of its dialect
    tag: Tag | None = None
    parameters: Sequence[Parameter] = ()
    # the type of a request's body; `describe.examples` has examples of it
    body: type[Struct] | None = None
    # the body is a form, with files
    form: bool = False
    # the body is a file
    upload: bool = False
    # the type of the JSON that is answered; a tuple are the types that it may have
    answer: Any = None
    stream: Stream | None = None
    # the schemas of answers of other types, by their media types
    media: Mapping[str, Schema] = field(default_factory=dict)
    # the statuses of answers
    statuses: Sequence[int] = (200,)
    # those of refusals beside the common ones; what is named in a path may not be there
    errors: Sequence[int] = ()
    methods: tuple[str, ...] = field(init=False)
    paths: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        words = self.spelling.split()
        paths = tuple(word for word in words if word.startswith("/"))
        object.__setattr__(self, "methods", tuple(words[: len(words) - len(paths)]))
        object.__setattr__(self, "paths", paths)
        object.__setattr__(self, "tag", self.tag or _TAGS[self.dialect])

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The scopes one of which a key needs; () if any key will do."""
        scopes = _SCOPES.get(self.kind, (Scope.ADMIN,))
        return (*scopes, Scope.NODE) if self.on_nodes and Scope.NODE not in scopes else scopes

    def read_docstring(self) -> tuple[str, str]:
        """Return the summary and the description, which may be empty."""
        summary, _, text = inspect.cleandoc(self.handler.__doc__ or "").partition("\n")
        return summary.removesuffix("."), " ".join(text.split())

    def make_label(self, path: str) -> str:
        """Return a path as metrics and traces have it: a limited number, whatever clients send."""
        if path in self.paths:
            return path
        starts = (one.partition("{")[0] for one in self.paths if "{" in one)
        return next((f"{start}*" for start in starts), "other")


ollama_route = partial(Route, dialect=Dialect.OLLAMA)
openai_route = partial(Route, dialect=Dialect.OPENAI)
server_route = partial(ollama_route, tag=Tag.SERVER)
