"""Searches the web with a SearXNG of the user's.

The form of its answers: docs.searxng.org/dev/search_api.html. JSON has to be enabled there, in
`search.formats` of its settings.
"""

from __future__ import annotations

import msgspec
import urllib3
from urllib3.exceptions import HTTPError

from vllama.errors import UpstreamError

LIMIT_S = 15.0
MAX_ANSWER_BYTES = 8 * 1024 * 1024
MAX_RESULTS = 10
"""Ollama's limit."""


class SearchResult(msgspec.Struct, kw_only=True):
    """One result, in Ollama's form, which is also SearXNG's."""

    title: str = ""
    url: str = ""
    content: str | None = ""


class _Answer(msgspec.Struct):
    results: list[SearchResult]


def search_web(base_url: str, query: str, count: int) -> list[SearchResult]:
    """Return up to `count` results of the SearXNG at `base_url`; blocks. Raises UpstreamError."""
    try:
        with urllib3.PoolManager(timeout=urllib3.Timeout(total=LIMIT_S), retries=False) as pool:
            answer = pool.request(
                "GET",
                f"{base_url.rstrip('/')}/search",
                fields={"q": query, "format": "json"},
                headers={"Accept": "application/json", "User-Agent": "vllama"},
                preload_content=False,
            )
            body = answer.read(MAX_ANSWER_BYTES + 1)
    except (HTTPError, OSError) as error:
        raise UpstreamError(
            f"cannot search the web: {base_url} does not answer: {error}",
            hint="check the setting searxng",
        ) from None
    if answer.status == 403:
        raise UpstreamError(
            f"cannot search the web: {base_url} refuses to answer in JSON",
            hint="add json to search.formats in its settings.yml",
        )
    if answer.status != 200:
        raise UpstreamError(f"cannot search the web: {base_url} answers with {answer.status}")
    try:
        found = msgspec.json.decode(body, type=_Answer)
    except ValueError:
        raise UpstreamError(
            f"cannot search the web: {base_url} does not answer as SearXNG does"
        ) from None
    return [result for result in found.results if result.url][:count]
