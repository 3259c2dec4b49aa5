"""A route is declared once, beside its handler, and found by everything that depends on it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.observe.tracing.test_traces import Collector
from tests.routes.test_ollama_chat import until
from tests.server_process import LIMIT_S, Server
from vllama.routes.route import Dialect, Route, RouteKind
from vllama.routes.route_table import ROUTES, RouteTable

NEW = """
import sys
from vllama.__main__ import main
from vllama.routes.route import Dialect, Route, RouteKind, Task
from vllama.routes.server import tokens

async def shout(gateway, request):
    '''Answer with all its might.'''
    from vllama.routes.ollama.chat import chat
    await chat(gateway, request)

tokens.ROUTES += (
    Route("POST /v3/shout", shout, RouteKind.MODEL, dialect=Dialect.ANTHROPIC, task=Task.CHAT),
)
sys.exit(main())
"""
"""A server with one more route, whose record is all that it has."""
KEY = "sk-0123456789abcd"
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": False}


class WithNewRoute(Server):
    """That server."""

    @property
    def command(self) -> list[str]:
        """Return the command line of the server."""
        return [sys.executable, "-c", NEW, "serve", "--port", "0", *self.arguments]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("new")
    config = home / "config.toml"
    config.write_text('[models."broken"]\nfallback = ["plain"]\n')
    env = {
        "VLLAMA_CONFIG": str(config),
        "OLLAMA_DEBUG_LOG_REQUESTS": "1",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
    }
    options = ("--capture", "9", "--api-key", KEY, "--otlp-endpoint", collector.url)
    with WithNewRoute(home, *options, env=env) as running:
        running.model("plain")
        running.model("broken", "--exit-before-ready", "--exit-code", "3")
        yield running


def ask(server: Server, method: str, path: str, body: object = None) -> tuple[int, dict, bytes]:
    return server.request(method, path, body, {"x-api-key": KEY})


@pytest.mark.slow
def test_a_new_route_is_found_everywhere(server: Server, collector: Collector) -> None:
    # routing, and the chain of its model
    status, headers, data = ask(server, "POST", "/v3/shout", BODY | {"model": "broken"})
    assert (status, headers["x-vllama-served-by"]) == (200, "plain"), data
    assert json.loads(data)["message"]["content"]
    # the form of errors, and keys
    status, _, data = server.request("POST", "/v3/shout", BODY | {"model": "plain"})
    assert (status, json.loads(data)["type"]) == (401, "error")
    # scopes
    env = server.env | {"OLLAMA_HOST": server.url, "OLLAMA_API_KEY": KEY}
    add = [sys.executable, "-m", "vllama", "keys", "add", "reader", "--scope", "read"]
    added = subprocess.run(add, env=env, check=True, capture_output=True, text=True)
    reader = {"x-api-key": added.stdout.strip()}
    status, _, data = server.request("POST", "/v3/shout", BODY | {"model": "plain"}, reader)
    assert status == 403 and b"needs the scope 'infer'" in data
    # metering
    rows = json.loads(ask(server, "GET", "/api/usage?by=model")[2])["usage"]
    assert [(row["model"], row["requests"]) for row in rows] == [("plain:latest", 1)]
    # captures
    until(lambda: json.loads(ask(server, "GET", "/api/captures")[2])["captures"], LIMIT_S)
    kept = json.loads(ask(server, "GET", "/api/captures")[2])["captures"]
    assert [one["request"]["path"] for one in kept] == ["/v3/shout"]
    # the request log
    (script,) = server.home.rglob("*_request.sh")
    assert "/v3/shout" in script.read_text()
    # metrics
    metrics = ask(server, "GET", "/metrics")[2].decode()
    counted = [line for line in metrics.splitlines() if "/v3/shout" in line and "_total" in line]
    assert any('dialect="anthropic"' in line and 'outcome="ok"' in line for line in counted)
    # traces
    root = collector.trace(headers["x-request-id"])["root"]
    assert root.name.startswith("chat "), root.name
    # the description
    document = json.loads(server.request("GET", "/openapi.json")[2])
    described = document["paths"]["/v3/shout"]["post"]
    assert (described["summary"], described["tags"]) == ("Answer with all its might", ["Anthropic"])
    assert {"401", "404", "429", "502"} <= described["responses"].keys()


async def handle(gateway: object, request: object) -> None:
    """Do nothing."""


def test_a_record_tells_its_methods_paths_and_scopes() -> None:
    route = Route("GET HEAD /x /y/{name}", handle, RouteKind.OWN)
    assert (route.methods, route.paths) == (("GET", "HEAD"), ("/x", "/y/{name}"))
    assert route.scopes == ("infer", "read", "node")
    assert [route.make_label(path) for path in ("/x", "/y/a/b")] == ["/x", "/y/*"]
    table = RouteTable([route])
    assert table.find("GET", "/x") is table.find("HEAD", "/y/a/b") is route
    assert table.find("GET", "/y/") is not route


@pytest.mark.parametrize(
    ("method", "path", "label", "dialect"),
    [
        ("POST", "/api/chat", "/api/chat", Dialect.OLLAMA),
        ("GET", "/api/chat", "/api/chat", Dialect.OLLAMA),
        ("POST", "/api//chat", "other", Dialect.OLLAMA),
        ("GET", "/api/nothing", "other", Dialect.OLLAMA),
        ("GET", "/v1/nothing", "other", Dialect.OPENAI),
        ("GET", "/v1/messages/batches", "other", Dialect.ANTHROPIC),
        ("GET", "/v1/responses/a/b", "/v1/responses/*", Dialect.RESPONSES),
        ("GET", "/v1/responses/a/cancel", "/v1/responses/*", Dialect.RESPONSES),
        ("POST", "/v1/systemone", "/v1/systemone", Dialect.OLLAMA),
        ("GET", "/v1/models/org/x", "/v1/models/*", Dialect.OPENAI),
        ("POST", "/api/group", "other", Dialect.OLLAMA),
        ("GET", "/nothing", "other", Dialect.NONE),
        ("GET", "//", "other", Dialect.NONE),
        ("GET", "/" * 100_000, "other", Dialect.NONE),
    ],
)
def test_each_request_has_a_label_and_a_dialect(
    method: str, path: str, label: str, dialect: Dialect
) -> None:
    route = RouteTable().find(method, path)
    assert (route.make_label(path), route.dialect) == (label, dialect)


def test_a_page_stays_keyless_whatever_its_path() -> None:
    """The redirect to a clean path needs no key where the path that was sent needs none."""
    find = RouteTable().find
    assert find("GET", "/ui/../api/tags").keyless and find("POST", "/health").keyless
    assert not find("GET", "/api/../ui/").keyless


def test_no_two_routes_share_a_method_and_a_path() -> None:
    places = [
        (method, path) for route in ROUTES for path in route.paths for method in route.methods
    ]
    assert len(places) == len({*places})
