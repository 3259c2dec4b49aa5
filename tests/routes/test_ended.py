"""The requests that have ended: which are kept, and how older ones are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dialects.test_cached_tokens import TIMINGS, USAGE, stream
from tests.scripted import Scripted, list_models
from tests.server_process import Server

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("ended")) as running:
        running.model("plain")
        yield running


def chat(server: Server, id_: str, model: str = "plain", **more: Any) -> int:
    body = {"model": model, "messages": MESSAGES, "stream": False, **more}
    status, _, _ = server.request("POST", "/api/chat", body, {"x-request-id": id_})
    return status


def ended(server: Server, query: str = "") -> tuple[list[str], bool]:
    told = server.get(f"/api/requests/ended{query}")
    return [row["id"] for row in told["requests"]], told["more"]


def find(server: Server, id_: str) -> dict[str, Any]:
    rows = server.get("/api/requests/ended")["requests"]
    return next(row for row in rows if row["id"] == id_)


def test_older_ones_are_read_in_pages(server: Server) -> None:
    for number in range(5):
        assert chat(server, f"page-{number}") == 200
    assert ended(server, "?limit=2") == (["page-4", "page-3"], True)
    older = ended(server, "?limit=2&before=page-3")[0]
    assert older == ["page-2", "page-1"]
    oldest = ended(server, "?limit=200")[0][-1]
    assert ended(server, f"?before={oldest}") == ([], False)
    assert ended(server, "?before=never-seen") == ([], False)


def test_an_id_that_is_used_twice_does_not_lead_round_in_circles(server: Server) -> None:
    for id_ in ("before-it", "twice", "between", "twice"):
        assert chat(server, id_) == 200
    assert ended(server, "?limit=1&before=twice")[0] == ["before-it"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"usage": USAGE, "timings": TIMINGS}, (6, 3000.0)),  # 3 tokens in 1 ms
        ({"usage": USAGE, "timings": TIMINGS | {"cache_n": 0, "prompt_n": 9}}, (0, 9000.0)),
        ({"usage": USAGE, "timings": TIMINGS | {"prompt_ms": 0}}, (6, None)),
        ({"usage": USAGE}, (None, None)),
    ],
)
def test_a_row_has_what_the_engine_says_of_the_prompt(tmp_path, counts, told) -> None:
    answer = (200, {"content-type": "text/event-stream"}, stream(**counts))
    routes = {"/v1/models": list_models("m"), "/v1/chat/completions": answer}
    with Scripted(routes) as there:
        (tmp_path / "config.toml").write_text(
            f'[upstreams.bee]\nurl = "{there.url}"\nmodels = {{ m = "m" }}\n'
        )
        with Server(tmp_path, "--config", str(tmp_path / "config.toml"), fake=False) as server:
            assert chat(server, "counted", "m") == 200
            row = find(server, "counted")
            assert (row["cached_tokens"], row["prompt_tokens_per_s"]) == told


@pytest.mark.parametrize("limit", ["0", "201", "-1", "many", ""])
def test_a_wrong_limit_is_refused(server: Server, limit: str) -> None:
    assert server.request("GET", f"/api/requests/ended?limit={limit}")[0] == 400


def test_a_missing_model_is_named(server: Server) -> None:
    assert chat(server, "missing", "nothing-like-it") == 404
    row = find(server, "missing")
    assert (row["model"], row["requested"]) == ("", "nothing-like-it")
    assert chat(server, "no-name", "x" * 300) >= 400
    assert find(server, "no-name")["requested"] == "x" * 200
    assert chat(server, "too-long", "plain", options={"num_ctx": "many"}) == 400
    assert chat(server, "there") == 200
    assert find(server, "there")["requested"] == "plain:latest"


def test_refusals_of_what_only_tells_are_no_errors_of_the_server(server: Server) -> None:
    seen = {"x-request-id": "only-tells"}
    assert server.request("POST", "/api/plan", {"model": "no-such-model!"}, seen)[0] >= 400
    assert server.request("POST", "/api/show", {"model": "no-such-model"}, seen)[0] == 404
    assert server.request("GET", "/api/captures/none", None, seen)[0] == 404
    changes = {"x-request-id": "changes"}
    assert server.request("DELETE", "/api/delete", {"model": "no-such-model"}, changes)[0] == 404
    ids, _ = ended(server)
    assert "only-tells" not in ids and "changes" in ids
    assert find(server, "changes")["requested"] == "no-such-model"


def test_a_snapshot_has_the_newest_hundred(server: Server) -> None:
    for number in range(101):
        assert server.request("DELETE", "/api/delete", {"model": f"none-{number}"})[0] == 404
    connection = server.connect()
    connection.request("GET", "/api/events?events=requests")
    answer = connection.getresponse()
    while not (line := answer.readline()).startswith(b"data: "):
        pass
    connection.close()
    assert len(json.loads(line[6:])["ended"]) == 100
    assert len(ended(server)[0]) > 100
