"""The route table: path → method → handler, named `module.function`.

Names and not functions: what a chat needs takes longer to import than all else of a start, and a
server that only just listens is asked for its version. A module is imported when a request wants
it, or by `import_handlers` soon after the start, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    from vllama.http.request import Request
    from vllama.routes.app import Gateway

Handler: TypeAlias = "Callable[[Gateway, Request], Awaitable[None]]"

ROUTES: Mapping[str, Mapping[str, str]] = {
    "/": {"GET": "health.root", "HEAD": "health.root"},
    "/metrics": {"GET": "health.metrics"},
    "/health": {"GET": "health.health", "HEAD": "health.health"},
    "/livez": {"GET": "health.live", "HEAD": "health.live"},
    "/readyz": {"GET": "health.ready", "HEAD": "health.ready"},
    "/api/version": {"GET": "health.version", "HEAD": "health.version"},
    "/api/tags": {"GET": "ollama.models.tags", "HEAD": "ollama.models.tags"},
    "/api/ps": {"GET": "ollama.models.ps"},
    "/api/show": {"POST": "ollama.models.show"},
    "/api/pull": {"POST": "ollama.models.pull"},
    "/api/delete": {"DELETE": "ollama.models.delete"},
    "/api/create": {"POST": "ollama.create.create"},
    "/api/copy": {"POST": "ollama.create.copy"},
    "/api/push": {"POST": "ollama.cloud.push"},
    "/api/status": {"GET": "ollama.cloud.status"},
    "/api/me": {"POST": "ollama.cloud.me"},
    "/api/signout": {"POST": "ollama.cloud.sign_out"},
    "/api/experimental/web_search": {"POST": "ollama.cloud.web_search"},
    "/api/experimental/web_fetch": {"POST": "ollama.cloud.web_fetch"},
    "/api/experimental/model-recommendations": {"GET": "ollama.cloud.recommendations"},
    "/api/tokenize": {"POST": "tokens.tokenize"},
    "/api/detokenize": {"POST": "tokens.detokenize"},
    "/api/chat": {"POST": "ollama.chat.chat"},
    "/api/generate": {"POST": "ollama.generate.generate"},
    "/api/embed": {"POST": "ollama.embed.embed"},
    "/api/embeddings": {"POST": "ollama.embed.legacy_embed"},
    "/v1/models": {"GET": "openai.chat.models"},
    "/v1/chat/completions": {"POST": "openai.chat.chat"},
    "/v1/completions": {"POST": "openai.completions.completions"},
    "/v1/embeddings": {"POST": "openai.chat.embeddings"},
    "/v1/responses": {"POST": "openai.responses.responses"},
    "/v1/messages": {"POST": "anthropic.messages.messages"},
    "/v1/messages/count_tokens": {"POST": "anthropic.messages.count_tokens"},
    "/v1/rerank": {"POST": "tokens.rerank"},
    "/v1/audio/transcriptions": {"POST": "openai.audio.transcriptions"},
    "/v1/audio/translations": {"POST": "openai.audio.translations"},
}
FIRST = frozenset({"health.root", "health.version", "health.live", "health.ready"})
"""The handlers that need nothing of a server but that it runs, or that say what it still needs.

Not `/health`: a load balancer asks whether it may send requests that do need the rest.
"""
WRITES = frozenset(
    {
        "ollama.models.pull",
        "ollama.models.delete",
        "ollama.create.create",
        "ollama.create.copy",
        "ollama.create.upload_blob",
        "ollama.cloud.push",
    }
)
"""The handlers that change what models there are, here or at a registry."""
PREFIXES: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("/v1/models/", {"GET": "openai.chat.model"}),
    ("/api/blobs/", {"HEAD": "ollama.create.blob_exists", "POST": "ollama.create.upload_blob"}),
    ("/api/user/keys/", {"DELETE": "ollama.cloud.sign_out"}),
)


def methods_of(path: str) -> Mapping[str, str] | None:
    """Return what can be done with a path; None if there is no such path."""
    methods = ROUTES.get(path)
    if methods is None:
        starts = (table for start, table in PREFIXES if path.startswith(start) and path != start)
        methods = next(starts, None)
    return methods


@cache
def handler(name: str) -> Handler:
    """Import and return the handler that the table names."""
    module, _, function = name.rpartition(".")
    return cast("Handler", getattr(import_module(f"vllama.routes.{module}"), function))


def import_handlers() -> None:
    """Import the handlers of all routes, so that no request waits for that."""
    for methods in (*ROUTES.values(), *(table for _, table in PREFIXES)):
        for name in methods.values():
            handler(name)
