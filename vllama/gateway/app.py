"""The front: route table, guards, and the boundary that turns errors into answers.

A plain dictionary instead of a framework's router: the routes are few and exact, and a token
passes nothing but `send()` (see docs/decisions).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from vllama.errors import Busy, VllamaError
from vllama.gateway import (
    anthropic,
    audio,
    completions,
    embedding,
    ollama_chat,
    ollama_cloud,
    ollama_create,
    ollama_generate,
    ollama_models,
    openai,
    responses,
    tokens,
)
from vllama.gateway.catalog import Catalog
from vllama.gateway.guards import Guards, cors_headers
from vllama.gateway.http import ClientGone, Message, Receive, Request, Send, now_ns
from vllama.gateway.upstream import Upstreams
from vllama.metrics import Metrics
from vllama.plan.types import Facts
from vllama.scheduler.scheduler import Scheduler
from vllama.translate.faults import anthropic_error, ollama_error, openai_error

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Gateway:
    """What the handlers work with."""

    catalog: Catalog
    scheduler: Scheduler
    upstreams: Upstreams
    facts: Facts
    guards: Guards
    metrics: Metrics


Handler: TypeAlias = Callable[[Gateway, Request], Awaitable[None]]

ROUTES: Mapping[str, Mapping[str, Handler]] = {
    "/": {"GET": ollama_models.root, "HEAD": ollama_models.root},
    "/metrics": {"GET": ollama_models.metrics},
    "/health": {"GET": ollama_models.health, "HEAD": ollama_models.health},
    "/api/version": {"GET": ollama_models.version, "HEAD": ollama_models.version},
    "/api/tags": {"GET": ollama_models.tags, "HEAD": ollama_models.tags},
    "/api/ps": {"GET": ollama_models.ps},
    "/api/show": {"POST": ollama_models.show},
    "/api/pull": {"POST": ollama_models.pull},
    "/api/delete": {"DELETE": ollama_models.delete},
    "/api/create": {"POST": ollama_create.create},
    "/api/copy": {"POST": ollama_create.copy},
    "/api/push": {"POST": ollama_cloud.push},
    "/api/status": {"GET": ollama_cloud.status},
    "/api/me": {"POST": ollama_cloud.me},
    "/api/signout": {"POST": ollama_cloud.sign_out},
    "/api/experimental/web_search": {"POST": ollama_cloud.web_search},
    "/api/experimental/web_fetch": {"POST": ollama_cloud.web_fetch},
    "/api/experimental/model-recommendations": {"GET": ollama_cloud.recommendations},
    "/api/tokenize": {"POST": tokens.tokenize},
    "/api/detokenize": {"POST": tokens.detokenize},
    "/api/chat": {"POST": ollama_chat.chat},
    "/api/generate": {"POST": ollama_generate.generate},
    "/api/embed": {"POST": embedding.embed},
    "/api/embeddings": {"POST": embedding.legacy_embed},
    "/v1/models": {"GET": openai.models},
    "/v1/chat/completions": {"POST": openai.chat},
    "/v1/completions": {"POST": completions.completions},
    "/v1/embeddings": {"POST": openai.embeddings},
    "/v1/responses": {"POST": responses.responses},
    "/v1/messages": {"POST": anthropic.messages},
    "/v1/messages/count_tokens": {"POST": anthropic.count_tokens},
    "/v1/rerank": {"POST": tokens.rerank},
    "/v1/audio/transcriptions": {"POST": audio.transcriptions},
    "/v1/audio/translations": {"POST": audio.translations},
}
PREFIXES: tuple[tuple[str, Mapping[str, Handler]], ...] = (
    ("/v1/models/", {"GET": openai.model}),
    (
        "/api/blobs/",
        {"HEAD": ollama_create.blob_exists, "POST": ollama_create.upload_blob},
    ),
    ("/api/user/keys/", {"DELETE": ollama_cloud.sign_out}),
)


class App:
    """The ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._numbers = itertools.count(1)
        self._prefix = f"{time.time_ns() // 1_000_000:x}"

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive, send, f"{self._prefix}-{next(self._numbers)}")
        origin = request.header(b"origin")
        host = request.header(b"host")
        guards = self._gateway.guards
        if not guards.host_allowed(host) or not guards.origin_allowed(origin, host):
            await self._forbid(request, origin, host)
            return
        if origin:
            preflight = request.method == "OPTIONS"
            request.send = _with_headers(send, cors_headers(origin, preflight=preflight))
            if preflight:
                await request.respond(204, b"")
                return
        await self._handle(request)
        took_s = (now_ns() - request.started_ns) / 1e9
        route = request.path if request.path in ROUTES else "other"
        self._gateway.metrics.request(route, request.status, took_s)
        level = logging.DEBUG if request.method in ("GET", "HEAD") else logging.INFO
        status = request.status or "-"
        log.log(
            level, "%s %s %s %.3fs %s", request.method, request.path, status, took_s, request.id
        )

    async def _handle(self, request: Request) -> None:
        """Find the handler and run it; the one place where a request's errors end."""
        try:
            handler = await self._route(request)
            if handler:
                await handler(self._gateway, request)
        except ClientGone:
            log.info("%s %s: the client has left", request.method, request.path)
        except VllamaError as error:
            await self._fail(request, error)
        except Exception:
            # boundary: a bug in one request must not end the server
            log.exception("%s %s: unexpected error", request.method, request.path)
            await self._fail(
                request, VllamaError("internal error", hint="see the server's log and report it")
            )

    async def _route(self, request: Request) -> Handler | None:
        """Return the handler, or answer 301/307, 404 or 405 and return None."""
        path = request.path
        methods = ROUTES.get(path)
        if methods is None:
            methods = next(
                (table for start, table in PREFIXES if path.startswith(start) and path != start),
                None,
            )
        if methods is None and path.endswith("/") and path.rstrip("/") in ROUTES:
            status = 301 if request.method == "GET" else 307
            await request.respond(status, b"", headers={"location": path.rstrip("/")})
            return None
        if methods is None:
            await request.text(404, "404 page not found")
            return None
        if request.method not in methods:
            text = b"405 method not allowed"
            allow = {"allow": ", ".join(methods)}
            await request.respond(405, text, b"text/plain; charset=utf-8", allow)
            return None
        return methods[request.method]

    @staticmethod
    async def _fail(request: Request, error: VllamaError) -> None:
        """Answer with an error in the dialect of the route; too late if the head is out."""
        log.log(
            logging.WARNING if error.status >= 500 else logging.INFO,
            "%s %s: %s",
            request.method,
            request.path,
            error.sentence(),
        )
        if request.status:
            await request.send({"type": "http.response.body", "body": b""})
            return
        if request.path.startswith("/v1/messages"):
            id_ = f"req_{anthropic.seed_of(request)}"
            status, body = anthropic_error(error, request_id=id_)
        elif request.path.startswith("/v1/"):
            status, body = openai_error(error)
        else:
            status, body = ollama_error(error)
        headers = {}
        if isinstance(error, Busy):
            headers["retry-after"] = str(max(1, round(error.retry_after_s)))
        await request.respond(status, body, headers=headers)

    @staticmethod
    async def _forbid(request: Request, origin: str, host: str) -> None:
        """Answer 403 and, unlike Ollama, say why and what to do."""
        if origin:
            text = f"origin '{origin}' is not allowed; add it to OLLAMA_ORIGINS"
        else:
            text = f"host '{host}' is not allowed; use localhost, or --host to listen elsewhere"
        log.warning("%s %s 403: %s", request.method, request.path, text)
        await request.json(403, {"error": text})


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """Return a `send` that adds headers to the head of the answer."""
    extra = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]

    def adding(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *extra]
        return send(message)

    return adding
