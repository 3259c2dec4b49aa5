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
    from vllama.gateway.app import Gateway
    from vllama.gateway.http import Request

Handler: TypeAlias = "Callable[[Gateway, Request], Awaitable[None]]"

ROUTES: Mapping[str, Mapping[str, str]] = {
    "/": {"GET": "alive.root", "HEAD": "alive.root"},
    "/metrics": {"GET": "alive.metrics"},
    "/health": {"GET": "ready.health", "HEAD": "ready.health"},
    "/livez": {"GET": "alive.live", "HEAD": "alive.live"},
    "/readyz": {"GET": "ready.ready", "HEAD": "ready.ready"},
    "/api/version": {"GET": "alive.version", "HEAD": "alive.version"},
    "/api/tags": {"GET": "ollama_models.tags", "HEAD": "ollama_models.tags"},
    "/api/ps": {"GET": "ollama_models.ps"},
    "/api/show": {"POST": "ollama_models.show"},
    "/api/pull": {"POST": "ollama_models.pull"},
    "/api/delete": {"DELETE": "ollama_models.delete"},
    "/api/create": {"POST": "ollama_create.create"},
    "/api/copy": {"POST": "ollama_create.copy"},
    "/api/push": {"POST": "ollama_cloud.push"},
    "/api/status": {"GET": "ollama_cloud.status"},
    "/api/me": {"POST": "ollama_cloud.me"},
    "/api/signout": {"POST": "ollama_cloud.sign_out"},
    "/api/experimental/web_search": {"POST": "ollama_cloud.web_search"},
    "/api/experimental/web_fetch": {"POST": "ollama_cloud.web_fetch"},
    "/api/experimental/model-recommendations": {"GET": "ollama_cloud.recommendations"},
    "/api/tokenize": {"POST": "tokens.tokenize"},
    "/api/detokenize": {"POST": "tokens.detokenize"},
    "/api/chat": {"POST": "ollama_chat.chat"},
    "/api/generate": {"POST": "ollama_generate.generate"},
    "/api/embed": {"POST": "embedding.embed"},
    "/api/embeddings": {"POST": "embedding.legacy_embed"},
    "/v1/models": {"GET": "openai.models"},
    "/v1/chat/completions": {"POST": "openai.chat"},
    "/v1/completions": {"POST": "completions.completions"},
    "/v1/embeddings": {"POST": "openai.embeddings"},
    "/v1/responses": {"POST": "responses.responses"},
    "/v1/messages": {"POST": "anthropic.messages"},
    "/v1/messages/count_tokens": {"POST": "anthropic.count_tokens"},
    "/v1/rerank": {"POST": "tokens.rerank"},
    "/v1/audio/transcriptions": {"POST": "audio.transcriptions"},
    "/v1/audio/translations": {"POST": "audio.translations"},
}
FIRST = frozenset({"alive.root", "alive.version", "alive.live", "ready.ready"})
"""The handlers that need nothing of a server but that it runs, or that say what it still needs.

Not `/health`: a load balancer asks whether it may send requests that do need the rest.
"""
WRITES = frozenset(
    {
        "ollama_models.pull",
        "ollama_models.delete",
        "ollama_create.create",
        "ollama_create.copy",
        "ollama_create.upload_blob",
        "ollama_cloud.push",
    }
)
"""The handlers that change what models there are, here or at a registry."""
PREFIXES: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("/v1/models/", {"GET": "openai.model"}),
    ("/api/blobs/", {"HEAD": "ollama_create.blob_exists", "POST": "ollama_create.upload_blob"}),
    ("/api/user/keys/", {"DELETE": "ollama_cloud.sign_out"}),
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
    module, _, function = name.partition(".")
    return cast("Handler", getattr(import_module(f"vllama.gateway.{module}"), function))


def import_handlers() -> None:
    """Import the handlers of all routes, so that no request waits for that."""
    for methods in (*ROUTES.values(), *(table for _, table in PREFIXES)):
        for name in methods.values():
            handler(name)
