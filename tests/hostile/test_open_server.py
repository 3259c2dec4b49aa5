"""The routes that a server answers which other machines can reach, and which requires no key.

A new route stands in one of these lists before it is merged. Without a kind it is in the last one.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.loops import in_uvloop
from tests.net.http.test_connection import Running, running
from tests.server_process import Server
from vllama.accounts.keys.ring import KeyRing
from vllama.base.clock import RealClock
from vllama.base.errors import ConfigError
from vllama.config import Config
from vllama.net.http.request import Request
from vllama.observe.metrics.server_metrics import Metrics
from vllama.routes.app import App
from vllama.routes.context import Starting
from vllama.routes.in_use import InUse, Setup
from vllama.routes.route import Route, RouteKind
from vllama.routes.route_table import ROUTES
from vllama.server.preflight import check_open

ANYBODY = """
    GET HEAD   / /health /livez /readyz /ui /docs /ui/ /ui/{file} /openapi.json
    GET HEAD   /api/version /api/tags
    GET        /metrics /api/ps /api/status /v1/models /v1/models/{model}
    POST       /api/show /api/me /api/signout
    DELETE     /api/user/keys/{key}
    GET        /api/experimental/model-recommendations

    POST       /api/chat /api/generate /api/embed /api/embeddings /api/tokenize /api/detokenize
    POST       /v1/chat/completions /v1/completions /v1/embeddings /v1/messages
    POST       /v1/messages/count_tokens /v1/decisions /v1/systemone
    POST       /v1/rerank /v1/reranking /v2/rerank /rerank /reranking /v1/score /score
    POST       /v1/audio/transcriptions /v1/audio/translations /v1/audio/speech
    POST       /v1/images/generations /v1/images/edits
    POST       /tokenize /detokenize /pooling /classify
    GET POST   /engine/{route}
    POST       /api/web_search /api/experimental/web_search
    POST       /api/web_fetch /api/experimental/web_fetch

    POST       /v1/responses
    GET DELETE /v1/responses/{id}
    GET        /v1/responses/{id}/input_items
    POST       /v1/responses/{id}/cancel
    POST       /v1/files /v1/batches
    GET DELETE /v1/files/{id}
    GET        /v1/files/{id}/content /v1/batches/{id}
    POST       /v1/batches/{id}/cancel

    POST       /api/pull /api/push /api/create /api/copy
    DELETE     /api/pull /api/delete
    HEAD POST  /api/blobs/{digest}
    DELETE     /api/requests/{id}
    POST       /api/changes /api/commands
"""
"""Anybody who reaches it: models, as Ollama's server offers them, and what only who has made it
knows the random name of. `--read-only` takes the changes of models out of it. `/api/changes` and
`/api/commands` have a secret of their own.
"""

NETWORK = """
    GET        /api/events /api/samples /api/requests /api/requests/ended /api/usage /api/keys
    GET        /api/engines
    GET POST   /api/plan
    GET        /instance/previews /api/fits /api/search /api/nodes
"""
"""Only where the Host is a name of this machine or its network, which no page of a stranger has."""

KEY = """
    GET        /api/config /api/captures /api/captures/{id} /api/logs /api/logs/{name}
    GET        /api/streams /api/streams/{id}
    GET        /v1/files /v1/batches
    PATCH      /api/config /api/keys/{name}
    POST       /api/keys /api/keys/{name}/rotate
    DELETE     /api/keys/{name}
    POST       /api/nodes/{name}/drain /api/nodes/{name}/undrain
"""
"""Nobody, until there is a key: settings, keys, logs, others' texts, and new routes."""

OWN_PAGES = KEY.replace("/v1/files /v1/batches", "")
"""On loopback without keys, no page of another origin, although all of http://localhost:PORT may
use models, and change them, as with Ollama. Pages send them as text/plain, too, without asking.
"""


def places(text: str) -> set[tuple[str, str]]:
    """Return the methods and paths of a list."""
    found = set()
    for line in text.split("\n"):
        words = line.split()
        paths = [word for word in words if word.startswith("/")]
        found |= {(word, path) for word in words if word.isupper() for path in paths}
    return found


ALL = {(method, path) for route in ROUTES for path in route.paths for method in route.methods}


async def answer(starting: Starting, request: Request) -> None:
    request.respond(204, b"", b"")


def make_app(host: str) -> App:
    """Return the boundary of a server on `host` without keys, in front of routes that do nothing.

    No model works, so that no meter is needed; `check_open` treats MODEL as OPEN.
    """
    starting = Starting(
        in_use=InUse(Setup(config=Config(host=host))),
        keys=KeyRing((), None, RealClock()),
        metrics=Metrics(),
        routes=tuple(map(without_work, ROUTES)),
    )
    return App(starting)


def without_work(route: Route) -> Route:
    kind = RouteKind.OPEN if route.kind is RouteKind.MODEL else route.kind
    return replace(route, handler=answer, kind=kind, starting=answer)


async def find_answered(server: Running, host: str, *headers: str) -> set[tuple[str, str]]:
    """Return what a server answers with anything but 403, of all routes and methods."""
    found = set()
    for method, path in sorted(ALL):
        real = re.sub(r"{\w+}", "x", path)
        lines = [f"{method} {real} HTTP/1.1", f"host: {host}", *headers, "connection: close"]
        if method not in ("GET", "HEAD"):
            lines += ["content-type: text/plain", "content-length: 2"]
        asked = "\r\n".join([*lines, "", "" if method in ("GET", "HEAD") else "{}"])
        status = int((await server.said(asked.encode())).split()[1])
        assert status in (204, 403), (method, path, status)
        if status == 204:
            found.add((method, path))
    return found


def test_each_route_stands_in_one_list() -> None:
    lists = [places(text) for text in (ANYBODY, NETWORK, KEY)]
    assert set.union(*lists) == ALL
    assert sum(map(len, lists)) == len(ALL)


@in_uvloop
async def test_what_an_open_server_answers() -> None:
    async with running(make_app("0.0.0.0")) as server:
        for host in ("gpu.lan", "10.0.0.7:11434", "localhost"):
            assert await find_answered(server, host) == places(ANYBODY) | places(NETWORK), host
        # whose page may have led its own name here
        assert await find_answered(server, "evil.example") == places(ANYBODY)


@in_uvloop
async def test_what_a_page_may_ask_of_the_same_machine() -> None:
    async with running(make_app("127.0.0.1")) as server:
        page = "origin: http://localhost:3000"
        assert await find_answered(server, "localhost:11434", page) == ALL - places(OWN_PAGES)
        own = "origin: http://localhost:11434"
        assert await find_answered(server, "localhost:11434", own) == ALL
        assert await find_answered(server, "localhost:11434") == ALL  # a program
        assert (
            await find_answered(server, "localhost:11434", "origin: http://evil.example") == set()
        )
        assert await find_answered(server, "localhost:11434", "origin: null") == set()


def test_a_route_without_a_kind_is_for_keys() -> None:
    assert Route("GET /new", answer).kind is RouteKind.ADMIN


# -- the setting `open` ---------------------------------------------------------------------------

NODE_KEY = {"node_key_file": "node.key"}


@pytest.mark.parametrize(
    ("settings", "starts"),
    [
        ({"host": "0.0.0.0"}, False),
        ({"host": "::"}, False),
        ({"host": "10.0.0.7"}, False),
        ({"host": "gpu.lan"}, False),
        ({"host": "127.0.0.1"}, True),
        ({"host": "localhost"}, True),
        ({"host": "::1"}, True),
        ({"host": "0.0.0.0", "open": True}, True),
        ({"host": "0.0.0.0", "api_key": ("k",)}, True),
        ({"host": "0.0.0.0", "require_keys": True}, True),
        ({"host": "0.0.0.0", **NODE_KEY}, True),  # a node answers its head alone
        ({"host": "0.0.0.0", **NODE_KEY, "nodes": ("http://10.0.0.8:11434",)}, False),
    ],
)
def test_a_server_that_must_not_be_open(settings: dict, starts: bool, tmp_path) -> None:
    config = Config(**{"open": False, "data_dir": tmp_path} | settings)
    if starts:
        check_open(config)
        return
    with pytest.raises(ConfigError, match="without a key: other machines can reach it") as caught:
        check_open(config)
    assert "VLLAMA_API_KEY" in str(caught.value.hint) and "VLLAMA_OPEN=1" in str(caught.value.hint)


@pytest.mark.slow
def test_it_does_not_start(tmp_path) -> None:
    closed = {"VLLAMA_HOST": "127.1", "VLLAMA_OPEN": "0"}
    refused = Server(tmp_path, env=closed)
    with pytest.raises(AssertionError, match=r"cannot listen on 127\.1 without a key"):
        refused.start()
    assert refused.process.wait() == 2
    for told in ({"VLLAMA_OPEN": "1"}, {"VLLAMA_API_KEY": "k"}):
        with Server(tmp_path, env=closed | told) as server:
            assert server.request("GET", "/livez")[0] == 200
