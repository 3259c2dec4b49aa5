"""The route table: path → method → handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from vllama.keys.key import Scope
from vllama.routes import (
    captures,
    event_stream,
    health,
    logs,
    metrics,
    openapi,
    planning,
    requests,
    settings,
    tokens,
    ui,
    usage,
)
from vllama.routes.anthropic import messages
from vllama.routes.ollama import chat, cloud, create, embed, models, web
from vllama.routes.openai import audio, completions, decisions, media, rerank, responses
from vllama.routes.openai import chat as openai_chat
from vllama.routes.openai import models as openai_models

if TYPE_CHECKING:
    from vllama.http.request import Request
    from vllama.routes.context import Gateway

Handler: TypeAlias = "Callable[[Gateway, Request], Awaitable[None]]"
Methods: TypeAlias = "Mapping[str, Handler]"

ROUTES: Mapping[str, Methods] = {
    "/": {"GET": health.get_root, "HEAD": health.get_root},
    "/metrics": {"GET": metrics.get_metrics},
    "/ui": {"GET": ui.redirect, "HEAD": ui.redirect},
    "/docs": {"GET": ui.redirect_to_reference, "HEAD": ui.redirect_to_reference},
    ui.PREFIX: {"GET": ui.get_file, "HEAD": ui.get_file},
    "/health": {"GET": health.get_health, "HEAD": health.get_health},
    "/livez": {"GET": health.get_live, "HEAD": health.get_live},
    "/readyz": {"GET": health.get_ready, "HEAD": health.get_ready},
    "/openapi.json": {"GET": openapi.get_document, "HEAD": openapi.get_document},
    "/api/version": {"GET": health.get_version, "HEAD": health.get_version},
    "/api/tags": {"GET": models.tags, "HEAD": models.tags},
    "/api/ps": {"GET": models.ps},
    "/api/events": {"GET": event_stream.stream_events},
    "/api/requests": {"GET": requests.list_requests},
    "/api/captures": {"GET": captures.list_captures},
    "/api/logs": {"GET": logs.list_logs},
    "/api/usage": {"GET": usage.list_usage},
    "/api/config": {"GET": settings.list_settings},
    "/api/engines": {"GET": planning.list_engines},
    "/api/plan": {"POST": planning.plan},
    "/instance/previews": {"GET": planning.list_previews},
    "/api/show": {"POST": models.show},
    "/api/pull": {"POST": models.pull, "DELETE": models.stop_pull},
    "/api/delete": {"DELETE": models.delete},
    "/api/create": {"POST": create.create},
    "/api/copy": {"POST": create.copy},
    "/api/push": {"POST": cloud.push},
    "/api/status": {"GET": cloud.status},
    "/api/me": {"POST": cloud.me},
    "/api/signout": {"POST": cloud.sign_out},
    "/api/web_search": {"POST": web.web_search},
    "/api/web_fetch": {"POST": web.web_fetch},
    "/api/experimental/web_search": {"POST": web.web_search},
    "/api/experimental/web_fetch": {"POST": web.web_fetch},
    "/api/experimental/model-recommendations": {"GET": cloud.recommendations},
    "/api/tokenize": {"POST": tokens.tokenize},
    "/api/detokenize": {"POST": tokens.detokenize},
    "/api/chat": {"POST": chat.chat},
    "/api/generate": {"POST": chat.generate},
    "/api/embed": {"POST": embed.embed},
    "/api/embeddings": {"POST": embed.legacy_embed},
    "/v1/models": {"GET": openai_models.models},
    "/v1/chat/completions": {"POST": openai_chat.chat},
    "/v1/completions": {"POST": completions.completions},
    "/v1/embeddings": {"POST": openai_chat.embeddings},
    "/v1/responses": {"POST": responses.responses},
    "/v1/messages": {"POST": messages.messages},
    "/v1/messages/count_tokens": {"POST": messages.count_tokens},
    "/v1/rerank": {"POST": rerank.rerank},
    "/v1/reranking": {"POST": rerank.rerank},
    "/v2/rerank": {"POST": rerank.rerank},
    "/rerank": {"POST": rerank.rerank},
    "/reranking": {"POST": rerank.rerank},
    "/v1/decisions": {"POST": decisions.decisions},
    "/v1/systemone": {"POST": decisions.systemone},
    "/v1/score": {"POST": rerank.score},
    "/score": {"POST": rerank.score},
    "/v1/audio/transcriptions": {"POST": audio.transcriptions},
    "/v1/audio/translations": {"POST": audio.translations},
    "/v1/audio/speech": {"POST": media.speech},
    "/v1/images/generations": {"POST": media.generate_images},
    "/v1/images/edits": {"POST": media.edit_images},
}
WHILE_STARTING = frozenset(
    {
        health.get_root,
        health.get_version,
        health.get_live,
        health.get_ready,
        openapi.get_document,
        ui.get_file,
        ui.redirect,
        ui.redirect_to_reference,
    }
)
"""The handlers that need only a server that runs, or that say what it still lacks.

`/health` is not one of them: a load balancer asks it whether it may send requests that need more.
"""
WRITES = frozenset(
    {
        models.pull,
        models.stop_pull,
        models.delete,
        create.create,
        create.copy,
        create.upload_blob,
        cloud.push,
    }
)
"""The handlers that change what models there are, here or at a registry."""
MODEL_HANDLERS = frozenset(
    {
        chat.chat,
        chat.generate,
        embed.embed,
        embed.legacy_embed,
        tokens.tokenize,
        tokens.detokenize,
        openai_chat.chat,
        openai_chat.embeddings,
        completions.completions,
        responses.responses,
        messages.messages,
        messages.count_tokens,
        rerank.rerank,
        rerank.score,
        decisions.decisions,
        decisions.systemone,
        audio.transcriptions,
        audio.translations,
        media.speech,
        media.generate_images,
        media.edit_images,
    }
)
"""The handlers that have a model work; the limits of keys are about their requests."""
_OPEN = frozenset({*WHILE_STARTING, health.get_health, cloud.status, cloud.me, cloud.sign_out})
_LISTS = frozenset({models.tags, models.ps, models.show, openai_models.models, openai_models.model})
_OWN = frozenset(
    {
        requests.list_requests,
        requests.end_request,
        usage.list_usage,
        responses.get_response,
        responses.cancel_response,
        responses.delete_response,
        cloud.recommendations,
        web.web_search,
        web.web_fetch,
    }
)
_OBSERVES = frozenset(
    {
        metrics.get_metrics,
        event_stream.stream_events,
        planning.plan,
        planning.list_engines,
        planning.list_previews,
    }
)


def list_scopes(handler: Handler) -> tuple[Scope, ...]:
    """Return the scopes one of which a key needs for a handler; () if any key will do.

    What is not named here, now or later, needs the scope admin.
    """
    if handler in MODEL_HANDLERS:
        return (Scope.INFER,)
    if handler in _OPEN:
        return ()
    if handler in _LISTS or handler in _OWN:
        return (Scope.INFER, Scope.READ)
    return (Scope.READ,) if handler in _OBSERVES else (Scope.ADMIN,)


RESPONSE_PARTS: Mapping[str, Methods] = {
    f"/{responses.INPUT_ITEMS}": {"GET": responses.get_response},
    f"/{responses.CANCEL}": {"POST": responses.cancel_response},
}
"""What can be done with a part of a stored response, by the end of its path."""
PREFIXES: tuple[tuple[str, Methods], ...] = (
    (ui.PREFIX, {"GET": ui.get_file, "HEAD": ui.get_file}),
    ("/v1/models/", {"GET": openai_models.model}),
    (
        "/v1/responses/",
        {"GET": responses.get_response, "DELETE": responses.delete_response},
    ),
    ("/api/blobs/", {"HEAD": create.head_blob, "POST": create.upload_blob}),
    (logs.PREFIX, {"GET": logs.get_log}),
    (requests.PREFIX, {"DELETE": requests.end_request}),
    (captures.PREFIX, {"GET": captures.get_capture}),
    ("/api/user/keys/", {"DELETE": cloud.sign_out}),
)


def name_route(path: str) -> str:
    """Return the name of a path's route for metrics: a limited number, whatever clients ask for."""
    if path in ROUTES:
        return path
    found = (f"{start}*" for start, _ in PREFIXES if path.startswith(start) and path != start)
    return next(found, "other")


def find_methods(path: str) -> Methods | None:
    """Return what can be done with a path; None if there is no such path."""
    methods = ROUTES.get(path)
    if methods is None and path.startswith(responses.RESPONSES):
        parts = (table for end, table in RESPONSE_PARTS.items() if path.endswith(end))
        methods = next(parts, None)
    if methods is None:
        starts = (table for start, table in PREFIXES if path.startswith(start) and path != start)
        methods = next(starts, None)
    return methods
