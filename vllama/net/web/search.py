"""Searches the web with a SearXNG of the user's.

The form of its answers: docs.searxng.org/dev/search_api.html. JSON has to be enabled there, in
`search.formats` of its settings.
"""

from __future__ import annotations

from urllib.parse import urlencode

import msgspec

from vllama.base.errors import SourceError, UpstreamError, describe_connection_error
from vllama.dialects.ollama.answer_types import SearchResult
from vllama.net.web.bodies import read_body
from vllama.net.web.connections import Connections, RequestFailed

LIMIT_S = 15.0
MAX_ANSWER_BYTES = 2 * 1024 * 1024
MAX_RESULTS = 10
"""Ollama's limit."""


class _Answer(msgspec.Struct):
    results: list[SearchResult]


def search_web(base_url: str, query: str, count: int) -> list[SearchResult]:
    """Return up to `count` results of the SearXNG at `base_url`; blocks. Raises UpstreamError."""
    url = f"{base_url.rstrip('/')}/search?{urlencode({'q': query, 'format': 'json'})}"
    headers = {"Accept": "application/json", "User-Agent": "vllama"}
    body = b""
    try:
        with (
            Connections(connect_s=LIMIT_S, silence_s=LIMIT_S, direct=True) as connections,
            connections.ask(url, headers, follow=False) as answer,
        ):
            if answer.status == 200:
                body = read_body(answer, MAX_ANSWER_BYTES)
    except RequestFailed as error:
        reason = describe_connection_error(error)
        raise UpstreamError(
            f"cannot search the web: {base_url} does not answer: {reason}",
            hint="check the setting searxng",
        ) from None
    except SourceError:
        pass  # an answer that is too long, or compressed, is not SearXNG's
    if answer.status == 403:
        raise UpstreamError(
            f"cannot search the web: {base_url} refuses to answer in JSON",
            hint="add json to search.formats in its settings.yml",
        )
    if answer.status != 200:
        raise UpstreamError(f"cannot search the web: {base_url} answers with {answer.status}")
    try:
        found = msgspec.json.decode(body, type=_Answer)
    except (ValueError, RecursionError):
        raise UpstreamError(
            f"cannot search the web: {base_url} does not answer as SearXNG does"
        ) from None
    return [result for result in found.results if result.url][:count]
