"""The web for models: search, and pages as text.

The form is that of ollama.com's `/api/web_search` and `/api/web_fetch`, which a signed-in Ollama
passes on. Here the user's own SearXNG searches; without one both answer as Ollama does without its
cloud.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from vllama.chat.go_json import Fields, decode_object
from vllama.errors import BadRequest
from vllama.http.departure import unless_gone
from vllama.http.request import Request
from vllama.models.ref import CloudDisabled
from vllama.web.fetch import fetch_page
from vllama.web.search import MAX_RESULTS, search_web

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

DEFAULT_RESULTS = 5
HINT = "start the server with --searxng URL to search with a SearXNG of your own"


async def web_search(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/web_search`: search the web with the user's SearXNG."""
    searxng = gateway.searxng
    if searxng is None:
        raise CloudDisabled("web search is unavailable", hint=HINT)
    fields = Fields(decode_object(await request.body(), "WebSearchRequest"), "WebSearchRequest")
    query, count = fields.text("query").strip(), fields.raw("max_results")
    if not query:
        raise BadRequest("query is required")
    if count is None:
        count = DEFAULT_RESULTS
    if isinstance(count, float) and count.is_integer():
        count = int(count)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_RESULTS:
        raise BadRequest(f"max_results must be a number from 1 to {MAX_RESULTS}")
    work = asyncio.to_thread(search_web, searxng, query, count)
    results = await unless_gone(request, work)
    request.respond(200, msgspec.json.encode({"results": results}))


async def web_fetch(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/web_fetch`: return the text of a page of the public internet."""
    if gateway.searxng is None:
        raise CloudDisabled("web fetch is unavailable", hint=HINT)
    fields = Fields(decode_object(await request.body(), "WebFetchRequest"), "WebFetchRequest")
    url = fields.text("url").strip()
    if not url:
        raise BadRequest("url is required")
    page = await unless_gone(request, asyncio.to_thread(fetch_page, url))
    request.respond(200, msgspec.json.encode(page))
