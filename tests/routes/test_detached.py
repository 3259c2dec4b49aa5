"""Responses that go on without their clients: who may read them, for how long, and their ends."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server_process import LIMIT_S, Server
from vllama.base.errors import NotFound
from vllama.net.http.request import Request
from vllama.routes.guards import Guards
from vllama.routes.recording import detached
from vllama.routes.recording.detached import MAX_BYTES, MAX_STREAMS, STORED_S, DetachedStreams

KEY, OTHER = "sk-0123456789abcd", "sk-of-somebody-else"
MODEL, STALLS = "plain-replays", "stalls"
TOKENS = 40
WHOLE = "".join(f"tok{number} " for number in range(TOKENS))
ASKED = f"@tokens={TOKENS} @delay=0.01"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("detached")
    keys = home / "keys"
    keys.write_text(f"{KEY}\n{OTHER}\n")
    options = ("--api-key-file", str(keys), "--hang-timeout", "0", "--num-parallel", "16")
    with Server(home, *options) as running:
        running.model(MODEL)
        running.model(STALLS, "--stall-after", "2")
        yield running


def shown(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def ask(
    server: Server,
    id_: str,
    *,
    key: str = KEY,
    model: str = MODEL,
    text: str = ASKED,
    **headers: str,
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Ask for a stream, and return its connection and response once that has begun."""
    connection = server.connect()
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    given = {"x-request-id": id_, "x-vllama-detach": "1"} | shown(key) | more
    connection.request("POST", "/api/chat", json.dumps(body), given)
    return connection, connection.getresponse()


def leave(server: Server, id_: str, **given: Any) -> bytes:
    """Ask for a stream and leave after its first line; return that."""
    connection, response = ask(server, id_, **given)
    line = response.readline()
    response.close()
    connection.close()
    return line


def get(server: Server, path: str, key: str = KEY, **headers: str) -> tuple[int, bytes]:
    status, _, body = server.request("GET", path, headers=shown(key) | headers)
    return status, body


def streams(server: Server, key: str = KEY) -> dict[str, Any]:
    status, body = get(server, "/api/streams", key)
    assert status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def ids(server: Server, key: str = KEY) -> set[str]:
    return {row["id"] for rows in streams(server, key).values() for row in rows}


def wait_until(is_so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def stop(server: Server, id_: str, key: str = KEY) -> int:
    return server.request("DELETE", f"/api/requests/{id_}", headers=shown(key))[0]


def read_text(body: bytes) -> str:
    lines = [json.loads(line) for line in body.splitlines()]
    assert lines[-1].get("done"), lines[-1]
    return "".join(line["message"]["content"] for line in lines)


# -- reading


def test_a_response_whose_client_left_is_read_whole_and_asked_for_once(server: Server) -> None:
    first = leave(server, "left")
    (row,) = streams(server)["running"]
    assert (row["id"], row["model"], row["state"]) == ("left", f"{MODEL}:latest", "running")
    assert "message" not in row
    status, body = get(server, "/api/streams/left")
    assert status == 200 and body.startswith(first) and read_text(body) == WHOLE
    (ended,) = (one for one in streams(server)["ended"] if one["id"] == "left")
    assert (ended["outcome"], ended["status"], ended["generated_tokens"]) == ("ok", 200, TOKENS)
    asked = [one for one in bodies(server) if one.get("messages")]
    assert len(asked) == 1
    for start in (0, 1, len(first), len(body) - 1, len(body)):  # from a byte on
        assert get(server, f"/api/streams/left?from={start}") == (200, body[start:])
    rows = json.loads(get(server, "/api/usage?by=key")[1])["usage"]
    assert sum(row["generated_tokens"] for row in rows) == TOKENS


def bodies(server: Server) -> list[dict[str, Any]]:
    """Return what the engine of the model was asked."""
    rows = json.loads(get(server, "/api/ps")[1])["models"]
    (pid,) = (row["pid"] for row in rows if row["name"].startswith(MODEL))
    import psutil

    found: list[dict[str, Any]] = server.ask_process(psutil.Process(pid), "/__stats")["bodies"]
    return found


def test_readers_follow_and_their_leaving_changes_nothing(server: Server) -> None:
    connection, response = ask(server, "followed")
    reader = server.connect()
    reader.request("GET", "/api/streams/followed", headers=shown(KEY))
    assert reader.getresponse().readline() == response.readline()
    reader.close()
    rest = response.read()
    connection.close()
    assert get(server, "/api/streams/followed")[1].endswith(rest)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": True}),
        ("/v1/responses", {"input": "x", "stream": True}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9}),
        ("/api/chat", {"messages": [{"role": "user", "content": "x"}], "stream": False}),
        ("/api/chat", {"messages": [{"role": "nobody", "content": "x"}]}),
    ],
)
def test_it_is_sent_again_byte_by_byte_whatever_it_was(
    server: Server, path: str, body: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    headers = shown(KEY) | {"x-vllama-detach": "1", "x-request-id": "same"}
    status, sent, data = server.request("POST", path, {"model": MODEL, **body}, headers)
    wait_until(lambda: all(row["id"] != "same" for row in streams(server)["running"]))
    again = server.request("GET", "/api/streams/same", headers=shown(KEY))
    assert (again[0], again[2]) == (status, data)
    assert again[1]["content-type"] == sent["content-type"]


@pytest.mark.parametrize("start", ["-1", "x", "1.5", ""])
def test_a_start_that_is_no_number_is_refused(server: Server, start: str) -> None:
    assert get(server, f"/api/streams/left?from={start}")[0] == 400


def test_a_response_that_does_not_ask_for_it_ends_with_its_client(server: Server) -> None:
    connection = server.connect()
    body = {"model": STALLS, "messages": [{"role": "user", "content": "x"}]}
    given = {"x-request-id": "ordinary"} | shown(KEY)
    connection.request("POST", "/api/chat", json.dumps(body), given)
    connection.getresponse().readline()
    assert "ordinary" not in ids(server)
    connection.close()
    server.wait_for(r"the client disconnected")
    assert get(server, "/api/streams/ordinary")[0] == 404


# -- whose it is


def test_it_belongs_to_the_key_that_asked(server: Server) -> None:
    leave(server, "mine", model=STALLS)
    assert "mine" in ids(server) and ids(server, OTHER) == set()
    assert get(server, "/api/streams/mine", OTHER)[0] == 404
    assert get(server, "/api/streams/mine", "")[0] == 401
    assert stop(server, "mine") == 200
    status, text = get(server, "/api/streams/mine")
    assert status == 200 and b'"error":"the request was stopped' in text.splitlines()[-1]
    (row,) = (one for one in streams(server)["ended"] if one["id"] == "mine")
    assert row["outcome"] == "stopped"


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("keyless"), "--hang-timeout", "0") as running:
        running.model(MODEL)
        yield running


@pytest.mark.parametrize(
    ("origin", "may"), [("", True), ("own", True), ("http://localhost:3000", False)]
)
def test_without_keys_only_the_servers_own_pages_detach_and_read(
    keyless: Server, origin: str, may: bool
) -> None:
    own = f"http://127.0.0.1:{keyless.port}"
    headers = {"origin": own if origin == "own" else origin} if origin else {}
    id_ = f"from-{origin or 'a-program'}".replace("/", "").replace(":", "")
    connection, response = ask(keyless, id_, key="", **headers)
    response.read()
    connection.close()
    wait_until(lambda: not streams(keyless, "")["running"])
    assert (id_ in ids(keyless, "")) is may
    leave(keyless, "target", key="")
    assert get(keyless, "/api/streams/target", "", **headers)[0] == (200 if may else 403)
    assert get(keyless, "/api/streams", "", **headers)[0] == (200 if may else 403)


# -- its limits


Own = Callable[..., SimpleNamespace]


def make_streams(*, keyed: bool = True, loopback: bool = True) -> DetachedStreams:
    in_use: Any = SimpleNamespace(now=SimpleNamespace(guards=Guards(loopback=loopback)))
    keys: Any = SimpleNamespace(is_required=keyed)
    return DetachedStreams(in_use, keys)


async def begin(streams: DetachedStreams, id_: str, owner: str = "a") -> Any:
    """Return a running request that has asked to be detached."""
    request = Request.without_socket("/api/chat", b"{}", "")
    request.headers[detached.DETACH_HEADER] = b"1"
    ended: list[str] = []
    running: Any = SimpleNamespace(
        id=id_,
        owner=owner,
        request=request,
        route=SimpleNamespace(stream=object()),
        ends=ended,
        end=lambda: ended.append(id_),
    )
    await streams.admitted(running)
    return running


def finish(streams: DetachedStreams, running: Any) -> None:
    running.request.done = True
    streams.ended(running, SimpleNamespace(id=running.id))  # type: ignore[arg-type]


def names(streams: DetachedStreams, owner: str = "a") -> list[str]:
    return [one.key[1] for one in streams.list_streams(owner)]


def test_a_key_has_eight_and_the_first_that_has_ended_gives_way() -> None:
    async def run() -> None:
        streams = make_streams()
        many = [await begin(streams, str(number)) for number in range(MAX_STREAMS)]
        ninth = await begin(streams, "ninth")
        assert ninth.request.detached is None and "ninth" not in names(streams)
        assert (await begin(streams, "x", "b")).request.detached  # another key has its own
        ninth.request.note_disconnect()
        assert ninth.request.disconnected  # an ordinary request
        for number in (5, 2):
            finish(streams, many[number])
        assert (await begin(streams, "tenth")).request.detached
        assert "5" not in names(streams) and "2" in names(streams)
        assert len(names(streams)) == MAX_STREAMS
        many[0].request.note_disconnect()
        assert not many[0].request.disconnected

    asyncio.run(run())


def test_the_key_that_fills_the_room_gives_way() -> None:
    async def run() -> None:
        streams = make_streams()
        other = await begin(streams, "other", "b")
        other.request.detached(b"x")
        finish(streams, other)
        part = bytes(MAX_BYTES // 4)
        first, second, third = [await begin(streams, str(number)) for number in range(3)]
        for running in (first, second, second):
            running.request.detached(part)
        finish(streams, first)
        third.request.detached(part)
        assert names(streams) == ["1", "2"] and names(streams, "b") == ["other"]
        third.request.detached(part)  # no room, and none has ended: the largest is stopped
        await asyncio.sleep(0)
        assert (second.ends, third.ends, names(streams)) == (["1"], [], ["2"])
        second.request.detached(b"late")
        with pytest.raises(NotFound):
            streams.find("a", "1")
        finish(streams, second)
        assert names(streams) == ["2"]

    asyncio.run(run())


class Leaping(asyncio.SelectorEventLoop):
    """A loop whose clock can be moved."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


def test_it_is_stored_for_ten_minutes_after_its_end() -> None:
    async def run() -> None:
        loop: Any = asyncio.get_running_loop()
        streams = make_streams()
        for id_ in ("first", "second"):
            finish(streams, await begin(streams, id_))
        loop.ahead_s = STORED_S - 1
        await asyncio.sleep(0)
        assert names(streams) == ["first", "second"]
        again = await begin(streams, "first")  # a new one of the same id
        loop.ahead_s = STORED_S + 1
        for _ in range(3):
            await asyncio.sleep(0)
        assert names(streams) == ["first"]
        assert streams.find("a", "first").running is again

    with asyncio.Runner(loop_factory=Leaping) as runner:
        runner.run(run())


@pytest.mark.parametrize(
    ("keyed", "loopback", "detaches"),
    [(True, True, True), (True, False, True), (False, True, True), (False, False, False)],
)
def test_an_open_server_detaches_nothing(keyed: bool, loopback: bool, detaches: bool) -> None:
    streams = make_streams(keyed=keyed, loopback=loopback)
    running = asyncio.run(begin(streams, "x"))
    assert (running.request.detached is not None) is detaches


# -- its end


def test_a_stop_waits_for_it(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        server.model(MODEL)
        leave(server, "left", key="")
        assert server.process
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(LIMIT_S) == 0
        assert f"{TOKENS} tokens" in server.output and "unfinished" not in server.output


def test_a_stop_that_waits_no_longer_ends_it_with_an_error(tmp_path: Path) -> None:
    with Server(tmp_path, "--hang-timeout", "0", env={"VLLAMA_DRAIN_TIMEOUT": "0.5"}) as server:
        server.model(STALLS, "--stall-after", "2")
        leave(server, "left", key="", model=STALLS)
        reader = server.connect()
        reader.request("GET", "/api/streams/left")
        response = reader.getresponse()
        response.readline()
        assert server.process
        server.process.send_signal(signal.SIGTERM)
        assert "error" in json.loads(response.read().splitlines()[-1])
        reader.close()
        assert server.process.wait(LIMIT_S) == 0


def test_it_goes_on_after_its_engine_was_killed(server: Server) -> None:
    server.model("dies-replays", "--die-after", "5", once=True)
    leave(server, "died", model="dies-replays")
    status, body = get(server, "/api/streams/died")
    assert status == 200 and read_text(body) == WHOLE
    (row,) = (one for one in streams(server)["ended"] if one["id"] == "died")
    assert row["resumed"] == 1


@pytest.mark.slow
def test_the_head_of_a_cluster_stores_it(tmp_path: Path) -> None:
    key = tmp_path / "node.key"
    key.write_text("sk-between-the-servers\n")
    own = ("--node-key-file", str(key))
    with Server(tmp_path / "node", *own) as node:
        node.model(MODEL)
        with Server(tmp_path / "head", *own, "--no-local", "--node", node.url) as head:
            wait_until(lambda: head.get("/api/nodes")["nodes"][0]["state"] == "up")
            leave(head, "far", key="")
            status, body = get(head, "/api/streams/far", "")
            assert status == 200 and read_text(body) == WHOLE
            found = node.request("GET", "/api/streams", headers=shown("sk-between-the-servers"))
            assert json.loads(found[2]) == {"running": [], "ended": []}


@pytest.mark.parametrize("switches", [(), ("--exit-before-ready", "--exit-code", "3")])
def test_signs_of_life_and_a_late_error_are_sent_again(
    tmp_path: Path, switches: tuple[str, ...]
) -> None:
    with Server(tmp_path, env={"VLLAMA_EARLY_HEAD": "0.1s"}) as server:
        server.model("late", "--ready-after", "1", *switches)
        connection, response = ask(server, "late", key="", model="late", text="x")
        sent = response.read()
        connection.close()
        assert response.status == 200 and sent.count(b"\n") > 2
        assert get(server, "/api/streams/late", "") == (200, sent)
