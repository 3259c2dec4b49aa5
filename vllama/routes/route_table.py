"""The routes of all handlers, and which of them a request belongs to."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from vllama.routes import anthropic, embeddings
from vllama.routes.ollama import chat, cloud, create, models
from vllama.routes.openai import batches, engine, media, responses, scores
from vllama.routes.openai import chat as openai_chat
from vllama.routes.openai import models as openai_models
from vllama.routes.route import Dialect, Handler, Route, RouteKind
from vllama.routes.server import (
    changes,
    commands,
    health,
    keys,
    logs,
    metrics,
    nodes,
    planning,
    search,
    settings,
    state,
    tokens,
    ui,
)

if TYPE_CHECKING:
    from vllama.net.http.request import Request
    from vllama.routes.context import Starting

_MODULES = (
    *(health, ui, metrics, state, settings, keys, logs, planning, search, nodes, changes, commands),
    *(models, create, cloud, tokens, chat, embeddings),
    *(openai_models, openai_chat, responses, anthropic, scores, media, engine, batches),
)
ROUTES: tuple[Route, ...] = tuple(route for module in _MODULES for route in module.ROUTES)


class RouteTable:
    """Finds the route of a request.

    A plain dictionary instead of a framework's router: most paths are fixed.
    """

    def __init__(self, routes: Iterable[Route] = ROUTES) -> None:
        self.routes = tuple(routes)
        paths: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            for path in route.paths:
                paths.setdefault(path, {}).update(dict.fromkeys(route.methods, route))
        self._fixed = {path: found for path, found in paths.items() if "{" not in path}
        self._ready = {
            (method, path): route
            for path, found in self._fixed.items()
            for method, route in found.items()
        }
        patterns = [(*_split(path), found) for path, found in paths.items() if "{" in path]
        # `/v1/responses/{id}/cancel` before `/v1/responses/{id}`
        self._patterns = sorted(patterns, key=lambda one: -len(one[1]))
        self._dialects: dict[str, Dialect] = {}
        for path, found in paths.items():
            for start in _list_starts(path):
                self._dialects.setdefault(start, next(iter(found.values())).dialect)

    def find(self, method: str, path: str) -> Route:
        """Return the route of a request; one that has none gets a route whose handler says so."""
        if (ready := self._ready.get((method, path))) is not None:
            return ready
        methods = self._find_methods(path)
        clean, short = clean_path(path), path.removesuffix("/")
        if clean != path:
            return self._refuse(path, methods, partial(redirect, place=clean))
        if methods is None and (method, short) in self._ready:
            is_permanent = method == "GET"
            return self._refuse(
                path, None, partial(redirect, place=short, is_permanent=is_permanent)
            )
        if methods is None:
            return self._refuse(path, None, refuse_path)
        if method not in methods:
            return self._refuse(path, methods, partial(refuse_method, allowed=methods))
        return methods[method]

    def _find_methods(self, path: str) -> Mapping[str, Route] | None:
        """Return the methods of a path; None if there is no such path."""
        if path in self._fixed:
            return self._fixed[path]
        for start, end, methods in self._patterns:
            if len(path) > len(start) + len(end) and path.startswith(start) and path.endswith(end):
                return methods
        return None

    def _refuse(self, path: str, methods: Mapping[str, Route] | None, handler: Handler) -> Route:
        """Return a route for what no handler serves, with the dialect of its neighbors."""
        if methods is not None:
            known = next(iter(methods.values()))
            return replace(
                known, handler=handler, kind=RouteKind.OPEN, tells=False, starting=handler
            )
        dialects = (self._dialects[one] for one in _list_starts(path) if one in self._dialects)
        dialect = next(dialects, Dialect.NONE)
        return Route("", handler, RouteKind.OPEN, dialect=dialect, starting=handler)


def _split(path: str) -> tuple[str, str]:
    """Return the fixed parts of a path around its variable."""
    start, _, rest = path.partition("{")
    return start, rest.partition("}")[2]


def _list_starts(path: str) -> list[str]:
    """Return the first two parts of a path, which tell its API, and the first one."""
    parts = path.split("/", 3)[1:3]
    return ["/".join(parts), *parts[:1]] if any(parts[:1]) else []


def clean_path(path: str) -> str:
    """Return a path without doubled slashes, `.` and `..`; a slash at its end stays."""
    if "//" not in path and "/." not in path:
        return path
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    clean = "/" + "/".join(parts)
    return clean + "/" if path.endswith("/") and parts else clean


async def redirect(
    starting: Starting, request: Request, *, place: str, is_permanent: bool = False
) -> None:
    """Send the client to another path of this server, with a page for browsers as Go's."""
    status, reason = (301, "Moved Permanently") if is_permanent else (307, "Temporary Redirect")
    place = quote(place)
    page, kind = b"", b""
    if request.method in ("GET", "HEAD"):
        page = f'<a href="{html.escape(place)}">{reason}</a>.\n\n'.encode()
        kind = b"text/html; charset=utf-8"
    request.respond(status, page, kind, {"location": place})


async def refuse_path(starting: Starting, request: Request) -> None:
    """Say that there is no such path."""
    request.text(404, "404 page not found")


async def refuse_method(starting: Starting, request: Request, *, allowed: Iterable[str]) -> None:
    """Say which methods a path has."""
    headers = {"allow": ", ".join(allowed)}
    request.respond(405, b"405 method not allowed", b"text/plain; charset=utf-8", headers)
