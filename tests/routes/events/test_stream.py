"""The event stream of a real server: what it tells while models come and go, and how it ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.routes.events.stream import Stream
from tests.routes.test_running import Asking, end
from tests.server_process import LIMIT_S, Server

pytestmark = pytest.mark.slow

KEY = "sk-0123456789abcd"
SHOWS_KEY = {"authorization": f"Bearer {KEY}"}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": False}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("events")
    options = ("--api-key", KEY, "--max-loaded-models", "1", "--hang-timeout", "0")
    with Server(home, *options, env={"VLLAMA_DRAIN_TIMEOUT": "10000"}) as running:
        running.model("stalls", "--stall-after", "2")
        running.model("plain")
        running.model("other")
        running.model("pale", "--print", "no such color: pink", "--exit-before-ready")
        yield running


@pytest.fixture
def stream(server: Server) -> Iterator[Stream]:
    with Stream(server, headers=SHOWS_KEY) as opened:
        yield opened


def ask(server: Server, model: str, **more: object) -> int:
    body = {"model": model, **CHAT, **more}
    return int(server.request("POST", "/api/chat", body, SHOWS_KEY)[0])


def test_a_stream_begins_with_everything(server: Server, stream: Stream) -> None:
    told = stream.snapshot
    assert told["version"]
    lists = ("models", "requests", "ended", "pulls", "samples", "marks")
    assert all(isinstance(told[name], list) for name in lists)


def test_a_load_that_fails_is_told_with_its_cause_until_it_loads(
    server: Server, stream: Stream
) -> None:
    assert ask(server, "pale") == 500
    stream.until(lambda: stream.state("pale") == "failed")
    row = stream.models["pale:latest"]
    assert "the color pink is unknown" in row["error"]["cause"]
    assert row["error"]["hint"] == "paint it" and row["error"]["since"]
    stream.until(lambda: "fail" in stream.kinds("pale"))
    stream.until(lambda: any(one["model"] == "pale:latest" for one in stream.ended))
    (ended,) = (one for one in stream.ended if one["model"] == "pale:latest")
    assert (ended["outcome"], ended["status"]) == ("error", 500)
    assert "the color pink is unknown" in ended["error"]

    server.model("pale", "--ready-after", "0.1")
    assert ask(server, "pale") == 200
    # while it loads the old error stands, and then it is gone
    stream.until(lambda: stream.state("pale") == "ready")
    assert stream.models["pale:latest"]["error"] is None


def test_models_are_loaded_evicted_and_crash(server: Server, stream: Stream) -> None:
    assert ask(server, "plain", keep_alive=-1) == 200
    stream.until(lambda: stream.state("plain") == "ready" and "load" in stream.kinds("plain"))
    row = stream.models["plain:latest"]
    assert row["engine"] == "fake" and row["pinned"] and row["expires_at"] is None
    assert row["size"] > 0 and row["context_length"] > 0 and row["slots"] == 1
    assert row["memory"]["ram"]["planned"] > 0
    assert row["log"] == "plain:latest" and row["error"] is None

    assert ask(server, "other", keep_alive=600) == 200
    stream.until(lambda: "plain:latest" not in stream.models and stream.state("other") == "ready")
    stream.until(lambda: stream.kinds("plain")[-1] == "evict")
    (reason,) = (
        mark["reason"]
        for mark in stream.marks
        if (mark["kind"], mark["model"]) == ("evict", "plain:latest")
    )
    assert reason.startswith("evicted for other:latest: ")
    stream.until(lambda: stream.models["other:latest"]["expires_at"])

    running = json.loads(server.request("GET", "/api/ps", headers=SHOWS_KEY)[2])["models"]
    (pid,) = (row["pid"] for row in running)
    psutil.Process(pid).kill()
    stream.until(lambda: "restart" in stream.kinds("other"))
    stream.until(lambda: stream.state("other") == "ready")
    assert ask(server, "other") == 200
    assert stream.ids == sorted(set(stream.ids))


def test_requests_wait_run_and_end(server: Server, stream: Stream) -> None:
    body = {"messages": CHAT["messages"]}
    first = Asking(server, "/v1/chat/completions", body | {"stream": True}, "first")
    stream.until(lambda: stream.requests.get("first", {}).get("generated_tokens") == 2)
    second = Asking(server, "/v1/messages", body | {"max_tokens": 9}, "second")
    stream.until(lambda: stream.requests.get("second", {}).get("queue_place") == 1)
    third = Asking(server, "/api/chat", body, "third")
    stream.until(lambda: stream.requests.get("third", {}).get("queue_place") == 2)
    row = stream.requests["first"]
    assert (row["state"], row["dialect"], row["client"]) == ("running", "openai", "127.0.0.1")
    assert row["key"] == "…abcd" and row["model"] == "stalls:latest"
    assert row["first_token_s"] > 0 and row["queue_place"] is None
    assert stream.requests["second"]["dialect"] == "anthropic"
    assert stream.models["stalls:latest"]["queued"] == 2

    end(server, "second")
    stream.until(lambda: stream.requests["third"]["queue_place"] == 1)
    for name, asking in (("first", first), ("third", third)):
        stream.until(lambda name=name: stream.requests[name]["generated_tokens"] == 2)  # type: ignore[misc]
        end(server, name)
        asking.ended()
    second.ended()
    stream.until(lambda: not stream.requests)
    done = {row["id"]: row for row in stream.ended}
    for id_ in ("first", "second", "third"):
        assert done[id_]["outcome"] == "stopped" and "another client" in done[id_]["error"]
    assert done["first"]["generated_tokens"] == 2 and done["second"]["generated_tokens"] == 0
    assert done["first"]["first_token_s"] == row["first_token_s"]
    assert done["second"]["first_token_s"] is None

    assert ask(server, "plain") == 200
    stream.until(lambda: any(one["model"] == "plain:latest" for one in stream.ended))
    (ended,) = (one for one in stream.ended if one["model"] == "plain:latest")
    assert (ended["outcome"], ended["status"], ended["error"]) == ("ok", 200, None)
    assert ended["generated_tokens"] > 0 and ended["prompt_tokens"] > 0


def test_a_failed_request_without_a_model_is_told(server: Server, stream: Stream) -> None:
    assert ask(server, "nobody") == 404
    stream.until(lambda: any("nobody" in (one["error"] or "") for one in stream.ended))


def test_a_client_chooses_its_topics(server: Server) -> None:
    with Stream(server, "?events=marks,pulls", SHOWS_KEY) as stream:
        told = set(stream.snapshot)
        assert told == {"time", "version", "marks", "pulls"}
        for model in ("plain", "other"):  # one of them is loaded, and the other takes its place
            ask(server, model)
        stream.until(lambda: stream.kinds("other")[-1:] == ["load"])
        assert set(stream.names) <= {"snapshot", "mark", "pulls"}
    status, _, body = server.request("GET", "/api/events?events=weather", headers=SHOWS_KEY)
    assert status == 400 and "cannot stream 'weather'; choose from models, " in body.decode()


def test_a_stream_needs_a_key(server: Server) -> None:
    assert server.request("GET", "/api/events")[0] == 401


def test_a_stop_does_not_wait_for_streams(server: Server) -> None:
    """Keep this test the last one: it ends the server, whose time to drain is nearly endless."""
    with Stream(server, headers=SHOWS_KEY) as first, Stream(server, headers=SHOWS_KEY) as second:
        assert server.process
        server.process.send_signal(signal.SIGTERM)
        for stream in (first, second):
            while stream.read()[0]:
                pass
        assert server.process.wait(LIMIT_S) == 0
