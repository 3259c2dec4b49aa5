"""The web for models: search, and pages as text.

The form is that of ollama.com's `/api/web_search` and `/api/web_fetch`, which a signed-in Ollama
passes on. Here the user's own SearXNG searches; without one both answer as Ollama does without its
cloud.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from vllama.base import executors
from vllama.base.errors import BadRequest
from vllama.dialects.go_structs import decode_request
from vllama.dialects.ollama.answer_types import SearchResults
from vllama.dialects.ollama.request_types import WEB_FETCH, WEB_SEARCH
from vllama.models.names.ref import CloudDisabled
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import Request
from vllama.net.web.fetch import MAX_RESULTS, fetch_page, search_web
from vllama.net.web.page_text import Page
from vllama.routes.ollama import model_bodies
from vllama.routes.route import RouteKind, ollama_route

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

DEFAULT_RESULTS = 5
HINT = "start the server with --searxng URL to search with a SearXNG of your own"


async def web_search(gateway: Gateway, request: Request) -> None:
    """Search the web.

    Needs a SearXNG of yours: `--searxng URL`.
    """
    searxng = gateway.in_use.config.searxng
    if searxng is None:
        raise CloudDisabled("web search is unavailable", hint=HINT)
    given = decode_request(await request.body(), WEB_SEARCH)
    query = given.query.strip()
    count = DEFAULT_RESULTS if given.max_results is None else given.max_results
    if not query:
        raise BadRequest("query is required")
    if isinstance(count, float) and count.is_integer():
        count = int(count)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_RESULTS:
        raise BadRequest(f"max_results must be a number from 1 to {MAX_RESULTS}")
    work = executors.web.run(search_web, searxng, query, count)
    results = await unless_gone(request, work)
    request.respond(200, msgspec.json.encode(SearchResults(results)))


async def web_fetch(gateway: Gateway, request: Request) -> None:
    """Fetch a page of the public internet as text.

    Needs the setting `--searxng URL`, too.
    """
    if gateway.in_use.config.searxng is None:
        raise CloudDisabled("web fetch is unavailable", hint=HINT)
    url = decode_request(await request.body(), WEB_FETCH).url.strip()
    if not url:
        raise BadRequest("url is required")
    document = await unless_gone(request, executors.web.run(fetch_page, url))
    answer = await unless_gone(request, gateway.renderer.read_page(document.read))
    request.respond(200, answer.encode())


_api = partial(ollama_route, kind=RouteKind.OWN, errors=(502,))
ROUTES = (
    _api(
        "POST /api/web_search /api/experimental/web_search",
        web_search,
        body=model_bodies.WEB_SEARCH,
        answer=SearchResults,
    ),
    _api(
        "POST /api/web_fetch /api/experimental/web_fetch",
        web_fetch,
        body=model_bodies.WEB_FETCH,
        answer=Page,
    ),
)
