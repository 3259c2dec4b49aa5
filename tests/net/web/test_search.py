"""Searching with a SearXNG."""

import pytest

from vllama.base.errors import UpstreamError
from vllama.net.web.fetch import search_web


def test_results(site):
    results = search_web(f"{site.url}/", "gray whales & co", 3)
    assert site.searches == [{"q": ["gray whales & co"], "format": ["json"]}]
    assert [(row.title, row.url, row.content) for row in results] == [
        (f"Result {number}", f"https://example.org/{number}", "about gray whales & co")
        for number in range(3)
    ]


def test_json_is_not_enabled(site):
    with pytest.raises(UpstreamError, match="refuses to answer in JSON") as failed:
        search_web(site.url, "forbidden", 3)
    assert "search.formats" in failed.value.hint


def test_another_server(site):
    site.pages["/other/search"] = (200, {}, b"<html>")
    with pytest.raises(UpstreamError, match="does not answer as SearXNG does"):
        search_web(f"{site.url}/other", "x", 3)
    with pytest.raises(UpstreamError, match="answers with 404"):
        search_web(f"{site.url}/nothing", "x", 3)


def test_nobody_is_there(site):
    url = site.url
    site.server_close()
    with pytest.raises(UpstreamError, match="does not answer"):
        search_web(url, "x", 3)
