"""Web search and pages over a real socket, with a SearXNG of the tests' own."""

import pytest

from tests.net.web.site import run_site
from tests.server_process import Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site():
    with run_site() as running:
        yield running


@pytest.fixture(scope="module")
def searching(site, tmp_path_factory):
    """Return a server that searches with the site."""
    with Server(tmp_path_factory.mktemp("web"), "--searxng", site.url) as running:
        yield running


@pytest.mark.parametrize("path", ["/api/web_search", "/api/experimental/web_search"])
def test_search(searching, path):
    status, reply = searching.post(path, {"query": "whales", "max_results": 2})
    assert (status, reply) == (
        200,
        {
            "results": [
                {"title": f"Result {number}", "url": f"https://example.org/{number}",
                 "content": "about whales"}
                for number in range(2)
            ]
        },
    )  # fmt: skip
    assert len(searching.post(path, {"query": "whales"})[1]["results"]) == 5


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/api/web_search", {}, 400, "query is required"),
        ("/api/web_search", {"query": " "}, 400, "query is required"),
        ("/api/web_search", {"query": 5}, 400, "Invalid value for 'query': expected a string"),
        ("/api/web_search", {"query": "x", "max_results": 11}, 400, "max_results must be"),
        ("/api/web_search", {"query": "x", "max_results": 0}, 400, "max_results must be"),
        ("/api/web_search", {"query": "forbidden"}, 502, "cannot search the web"),
        ("/api/web_fetch", {}, 400, "url is required"),
        ("/api/web_fetch", {"url": "file:///etc/passwd"}, 400, "cannot fetch the page"),
        ("/api/web_fetch", {"url": "http://169.254.169.254/latest"}, 400, "cannot fetch the page"),
    ],
)
def test_refused(searching, path, body, status, text):
    got, reply = searching.post(path, body)
    assert (got, reply["error"][: len(text)]) == (status, text)


def test_nothing_is_fetched_from_where_only_the_server_reaches(searching, site):
    site.pages["/secret"] = (200, {"Content-Type": "text/plain"}, b"secret")
    before = len(site.hosts)
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
        status, reply = searching.post(
            "/api/web_fetch", {"url": f"http://{host}:{site.server_port}/secret"}
        )
        assert status == 400 and "is not on the public internet" in reply["error"]
    status, reply = searching.post("/api/web_fetch", {"url": searching.url})
    assert status == 400
    assert len(site.hosts) == before
