"""What a route is: one record, declared in `ROUTES` beside its handler.

`route_table` collects the records. Routing, scopes, metering, fallback chains, captures, the
request log, traces, metrics, the form of errors and `/openapi.json` read them, and list no paths.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from vllama.accounts.keys.key import Scope

if TYPE_CHECKING:
    from vllama.net.http.request import Request
    from vllama.routes.context import Gateway

Handler: TypeAlias = "Callable[[Gateway, Request], Awaitable[None]]"


class Dialect(StrEnum):
    """The APIs that clients speak; `NONE` for routes that are no part of one, such as /health."""

    OLLAMA = "ollama"
    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    NONE = ""


class RouteKind(StrEnum):
    """What a handler does: it decides which keys may ask for it, and when.

    A request to a `MODEL` is metered, and falls back along the chain of its model.
    """

    OPEN = "tells nothing that a key would protect"
    MODEL = "has a model work; the limits of keys are about these requests"
    LISTS = "tells which models there are"
    OWN = "shows a key what is its own, and what is not to those that may read"
    OBSERVES = "tells what the server does"
    WRITTEN = "shows what clients have written"
    WRITES = "changes what models there are, here or at a registry"
    ADMIN = "anything else"


_SCOPES = {
    RouteKind.OPEN: (),
    RouteKind.MODEL: (Scope.INFER,),
    RouteKind.LISTS: (Scope.INFER, Scope.READ),
    RouteKind.OWN: (Scope.INFER, Scope.READ),
    RouteKind.OBSERVES: (Scope.READ,),
}
"""The scopes one of which a key needs, () if any key will do; all others need the scope admin."""


class Task(StrEnum):
    """What a model is to do, as OpenTelemetry names it: `gen_ai.operation.name`."""

    CHAT = "chat"
    COMPLETION = "text_completion"
    EMBEDDINGS = "embeddings"

    @property
    def generates_text(self) -> bool:
        """Whether text is generated. The request log keeps these requests, as Ollama's does."""
        return self is not Task.EMBEDDINGS


@dataclass(frozen=True, slots=True)
class Route:
    """The methods and paths of a handler, as in `GET HEAD /health` and `GET /api/logs/{name}`.

    What varies in a path may contain slashes.
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
    # it is about other clients, or about this machine, so no page of a stranger's may ask
    tells: bool = False
    # it needs no key even where keys are required
    keyless: bool = False
    # it is answered before the server has started
    starting: bool = False
    # False for pages that people look at, which are no part of an API
    described: bool = True
    methods: tuple[str, ...] = field(init=False)
    paths: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        words = self.spelling.split()
        paths = tuple(word for word in words if word.startswith("/"))
        object.__setattr__(self, "methods", tuple(words[: len(words) - len(paths)]))
        object.__setattr__(self, "paths", paths)

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The scopes one of which a key needs; () if any key will do."""
        return _SCOPES.get(self.kind, (Scope.ADMIN,))

    def make_label(self, path: str) -> str:
        """Return a path as metrics and traces have it: a limited number, whatever clients send."""
        if path in self.paths:
            return path
        starts = (one.partition("{")[0] for one in self.paths if "{" in one)
        return next((f"{start}*" for start in starts), "other")


ollama_route = partial(Route, dialect=Dialect.OLLAMA)
openai_route = partial(Route, dialect=Dialect.OPENAI)
