"""A head whose nodes die, lose models or are away: what clients get, and what it remembers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from tests.routes.test_ollama_chat import until
from tests.server_process import Server
from tests.targets.test_nodes import KEY, Cluster, cluster
from vllama.chat.replay import Departed
from vllama.dialects.ollama.answer_types import LocalModel, ModelDetails
from vllama.targets.nodes.sent_events import MAX_KEPT_BYTES, SentEvents

__all__ = ["cluster"]

TEXT = "@tokens=60 @delay=0.05"
BODY = {
    "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 100,
    "input": TEXT, "prompt": TEXT,
    "messages": [{"role": "user", "content": TEXT}],
}  # fmt: skip
PATHS = (
    "/api/chat", "/api/generate", "/v1/chat/completions", "/v1/completions", "/v1/messages",
    "/v1/responses",
)  # fmt: skip
VARYING = re.compile(
    rb'"(id|created|created_at|completed_at|[a-z_]+_duration)": ?("[^"]*"|\d+)|[0-9a-f]{24}'
)


def share(cluster: Cluster, name: str, *switches: tuple[str, ...]) -> None:
    """Give both nodes one model; each may have other switches of the engine."""
    for node, given in zip(cluster.nodes, switches or ((), ()), strict=True):
        node.model(name, *given)
        os.utime(node.models / f"{name}.gguf", ns=(0, 0))  # digests of such files have their time
    full = f"{name}:latest"
    cluster.wait_for(
        lambda: all(full in row["models"] for row in cluster.head.get("/api/nodes")["nodes"])
    )


def kill_busy(cluster: Cluster, *, politely: bool = False) -> int:
    """Kill the node that answers, or stop it before its responses end; return its number."""
    busy: list[str] = []
    cluster.wait_for(
        lambda: (
            busy.extend(
                row["node"] for row in cluster.head.get("/api/ps")["models"] if row.get("requests")
            )
            or busy
        )
    )
    (where,) = busy
    number = [cluster.name(cable) for cable in cluster.cables].index(where)
    process = cluster.nodes[number].process
    process.send_signal(signal.SIGTERM if politely else signal.SIGKILL)
    if politely:
        cluster.wait_for(lambda: "is stopping" in cluster.row(where)["trouble"])
        process.send_signal(signal.SIGTERM)  # its time to drain is over
    return number


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "politely"), [*((path, False) for path in PATHS), ("/api/chat", True)]
)
def test_a_stream_goes_on_at_another_node(cluster, path, politely) -> None:
    share(cluster, "both-replays")
    body = BODY | {"model": "both-replays"}
    _, _, whole = cluster.head.request("POST", path, body)
    with cluster.head.open(path, body) as answer:
        begun = answer.readline()
        kill_busy(cluster, politely=politely)
        seen = begun + answer.read()
    assert VARYING.sub(b"", seen) == VARYING.sub(b"", whole)
    if path in ("/v1/messages", "/v1/responses"):  # both nodes make the same id
        assert len(set(re.findall(rb'"((?:msg|resp)_[0-9a-f]{24})"', seen))) == 1
    cluster.head.wait_for("response resumes on")
    usage = cluster.head.get("/api/usage")["usage"]
    assert sum(row["generated_tokens"] for row in usage) == 120


def break_off(cluster: Cluster, model: str) -> list[dict]:
    """Return the lines of a response whose node, the first, is killed after one line."""
    second = f"/api/nodes/{cluster.name(cluster.cables[1])}"
    assert cluster.head.request("POST", f"{second}/drain", {})[0] == 200
    with cluster.head.open("/api/chat", BODY | {"model": model}) as answer:
        begun = answer.readline()
        assert cluster.head.request("POST", f"{second}/undrain", {})[0] == 200
        kill_busy(cluster)
        return [json.loads(line) for line in (begun + answer.read()).splitlines()]


def read_text(lines: list[dict]) -> str:
    return "".join(line["message"]["content"] for line in lines if "message" in line)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "switches"),
    [
        ("differs-replays", ((), ("--say", json.dumps("another text " * 20)))),
        ("shorter-replays", (("--say", json.dumps("a" * 180)), ("--say", json.dumps("a" * 3)))),
        ("never", ((), ())),
        ("fails-replays", ((), ("--exit-before-ready",))),
    ],
)
def test_another_response_is_not_glued_to_the_first(cluster, model, switches) -> None:
    share(cluster, model, *switches)
    lines = break_off(cluster, model)
    assert "cannot continue: " in lines[-1]["error"] and "another answer" not in str(lines)
    told = json.loads(switches[0][1]) if switches[0] else "".join(f"tok{n} " for n in range(60))
    assert told.startswith(read_text(lines)) and read_text(lines)
    assert ("response resumes" in cluster.head.output) == ("replays" in model)


@pytest.mark.slow
def test_only_the_same_model_goes_on_and_only_where_it_may(cluster) -> None:
    share(cluster, "other-replays")
    os.utime(cluster.nodes[1].models / "other-replays.gguf", ns=(1, 1))
    for node in cluster.nodes:
        node.model("marks-the-change")
    cluster.wait_for(
        lambda: all(
            "marks-the-change:latest" in row["models"]
            for row in cluster.head.get("/api/nodes")["nodes"]
        )
    )
    assert "error" in break_off(cluster, "other-replays")[-1]
    assert "response resumes" not in cluster.head.output


def test_events_are_compared_but_for_ids_and_times() -> None:
    first = b'{"id":"a","created":1,"x":"1"}\n{"id":"a","created":1,"x":"2"}\n'
    again = first.replace(b'"a"', b'"b"').replace(b":1,", b": 2,".replace(b" ", b""))
    sent = SentEvents()
    sent.end, sent.build = b"\n", "x"
    sent.add(first)
    for cut in range(1, len(again)):  # reads of whole events only
        if again[:cut].endswith(b"\n"):
            sent.rewind()
            assert sent.take(again[:cut]) == b""
            assert sent.take(again[cut:] + b"new\n") == b"new\n"
            assert not sent.left
    for wrong in (again.replace(b'"1"', b'"3"'), b"\n", b'{"id":"a"}\n'):
        sent.rewind()
        with pytest.raises(Departed):
            sent.take(wrong)
    sent.add(b"x" * MAX_KEPT_BYTES)
    assert not sent.is_complete


@pytest.mark.slow
def test_a_model_that_a_node_has_lost_is_asked_of_the_next(cluster) -> None:
    share(cluster, "both")
    names = [cluster.name(cable) for cable in cluster.cables]
    for gone in (0, 1):
        cluster.head.request("POST", f"/api/nodes/{names[1 - gone]}/drain", {})
        assert cluster.ask("both", stream=False)[0] == 200  # the next request goes there again
        cluster.head.request("POST", f"/api/nodes/{names[1 - gone]}/undrain", {})
        file = cluster.nodes[gone].models / "both.gguf"
        data = file.read_bytes()
        file.unlink()
        for path in PATHS * 2:
            status, _, answer = cluster.head.request("POST", path, BODY | {"model": "both"})
            assert status == 200, (path, answer)
        cluster.wait_for(lambda gone=gone: "both:latest" not in cluster.row(names[gone])["models"])
        file.write_bytes(data)
        os.utime(file, ns=(0, 0))
        cluster.wait_for(lambda gone=gone: "both:latest" in cluster.row(names[gone])["models"])
    for node in cluster.nodes:
        (node.models / "both.gguf").unlink()
    for path in PATHS * 2:
        status, _, answer = cluster.head.request("POST", path, BODY | {"model": "both"})
        assert status == 404, (path, answer)


@pytest.mark.slow
def test_a_restarted_head_knows_what_lost_nodes_have(cluster) -> None:
    share(cluster, "both")
    cluster.nodes[0].model("only")
    names = [cluster.name(cable) for cable in cluster.cables]
    cluster.wait_for(lambda: "only:latest" in cluster.row(names[0])["models"])
    saved = cluster.head.home / "data" / "nodes.json"
    cluster.wait_for(lambda: "only:latest" in saved.read_text())
    assert saved.stat().st_mode & 0o777 == 0o600
    assert cluster.key.read_text().strip() not in saved.read_text()
    for node in cluster.nodes:
        node.process.send_signal(signal.SIGKILL)
    assert cluster.head.process
    cluster.head.process.send_signal(signal.SIGKILL)
    cluster.head.process.wait()
    cluster.head.start()
    told = {"only": rf"only node '{names[0]}' has it, and ", "both": "none of its nodes can"}
    for _ in range(2):
        for path in (*PATHS, "/api/show"):
            for model, words in told.items():
                status, headers, data = cluster.head.request("POST", path, BODY | {"model": model})
                assert (status, int(headers["retry-after"]) >= 1) == (503, True), (path, data)
                assert words in data.decode(), data
        cluster.wait_for(lambda: cluster.ask("nobody")[0] == 404)  # the first 6 s it may be there
    saved.write_text("{")
    cluster.head.process.send_signal(signal.SIGKILL)
    cluster.head.process.wait()
    cluster.head.start()
    cluster.wait_for(lambda: cluster.ask("only")[0] == 404)


@pytest.mark.slow
def test_a_restarted_head_knows_what_nodes_behind_a_name_have(tmp_path) -> None:
    details = ModelDetails("", "gguf", "llama", None, "", "")
    name, model = "dns+http://nodes.invalid:11434", LocalModel("only", "only", "", 1, "", details)
    saved = tmp_path / "head" / "data" / "nodes.json"
    with (
        Server(tmp_path / "node") as node,
        Server(tmp_path / "head", "--no-local", "--node", name, "--node", node.url) as head,
    ):
        head.process.send_signal(signal.SIGKILL)
        head.process.wait()
        saved.write_bytes(msgspec.json.encode({"http://10.0.0.7:11434": {"only:latest": model}}))
        head.start()
        until(lambda: head.get("/api/nodes")["nodes"][0]["state"] == "up")
        told = re.escape(f"cannot use 'only' now: no nodes are found at {name}: ")
        for path in (*PATHS, "/api/show") * 2:
            status, headers, data = head.request("POST", path, BODY | {"model": "only"})
            assert (status, int(headers["retry-after"]) >= 1) == (503, True), (path, data)
            assert re.search(told, data.decode()), data
            if path == PATHS[-1]:
                node.model("marks-the-change")
                until(lambda: "marks-the-change" in saved.read_text())
        until(lambda: head.request("POST", "/api/show", {"model": "nobody"})[0] == 404)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_that_only_one_node_has_a_model_is_said_when_it_is_lost(cluster, stream) -> None:
    cluster.nodes[0].model("only", "--stall-after", "0")
    name = cluster.name(cluster.cables[0])
    cluster.wait_for(lambda: "only:latest" in cluster.row(name)["models"])
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(cluster.ask, "only", stream=stream)
        kill_busy(cluster)
        status, answer = asked.result()
    assert status == 503
    assert f"only node '{name}' has it, and the " in answer["error"]  # or its connection


@pytest.mark.slow
def test_models_that_differ_are_told_once(cluster) -> None:
    share(cluster, "same")
    for node, text in zip(cluster.nodes, ("one", "another"), strict=True):
        node.model("base")
        assert node.request(
            "POST", "/api/create", {"model": "two", "from": "base", "system": text}, KEY
        )[0] in (200, 403)
        with (node.models / "sizes.gguf").open("wb") as file:
            file.write((node.models / "base.gguf").read_bytes() + b"x" * len(text))

    def read_differing():
        return cluster.head.get("/api/nodes").get("differing", {})

    cluster.wait_for(lambda: "sizes:latest" in read_differing())
    assert "same:latest" not in read_differing()
    told = read_differing()["sizes:latest"]
    assert set(told) == {cluster.name(cable) for cable in cluster.cables}
    run = subprocess.run(
        [sys.executable, "-m", "vllama", "nodes"], capture_output=True, text=True, check=True,
        env=cluster.head.env | {"OLLAMA_HOST": cluster.head.url},
    )  # fmt: skip
    assert re.search(r"sizes:latest differs between nodes: [0-9a-f]{12} on 127", run.stderr)
    share(cluster, "more")
    cluster.head.wait_for("sizes:latest differs between nodes")
    assert cluster.head.output.count("sizes:latest differs") == 1
