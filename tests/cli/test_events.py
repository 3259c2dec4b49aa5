"""`vllama events`: what happens, a line each, and the whole stream for programs."""

from __future__ import annotations

import json

from tests.cli.conftest import Vllama
from tests.cli.stub import Body, Reply, StubServer

ENDED = {
    "id": "1", "model": "m:latest", "method": "POST", "path": "/api/chat\x1b[2J",
    "dialect": "ollama", "client": "127.0.0.1", "key": None, "started_at": "", "outcome": "ok",
    "status": 200, "seconds": 1.5, "prompt_tokens": 3, "tokens": 7, "tokens_per_s": 20.5,
    "first_token_s": 0.2, "error": None,
}  # fmt: skip
PULL = {"name": "p", "status": "pulling 1", "completed": 1, "total": 2, "error": None}
EVENTS = [
    ("snapshot", {"version": "1", "ended": [ENDED], "pulls": [], "marks": []}),
    ("mark", {"time": 0, "kind": "evict", "model": "m:latest", "reason": "room for n"}),
    ("models", {"models": [], "gone": ["m:latest"]}),
    ("requests", {"requests": [], "ended": [ENDED, ENDED | {
        "outcome": "error", "model": "", "error": "no such model; pull it"
    }]}),
    ("pulls", {"pulls": [PULL | {"ended_at": None}]}),
    ("pulls", {"pulls": [PULL | {"status": "success", "ended_at": "2026-01-01T00:00:00Z"}]}),
]  # fmt: skip


def stream(body: Body, reply: Reply) -> None:
    reply.begin(200, "text/event-stream")
    for number, (name, data) in enumerate(EVENTS):
        text = json.dumps(data)
        reply.raw(f"id: {number}\nevent: {name}\ndata: {text}\n\n: keep-alive\n\n".encode())


def test_what_happens_is_a_line(stub: StubServer, vllama: Vllama) -> None:
    stub.routes["GET /api/events"] = stream
    done = vllama("events")
    assert done.returncode == 0
    lines = [line.split(maxsplit=1)[1] for line in done.stdout.splitlines()]
    assert lines == [
        "evict     m:latest: room for n",
        "request   m:latest: /api/chat\\x1b[2J from 127.0.0.1, 7 tokens, 20.5 tokens/s, 1.5 s",
        "request   -: /api/chat\\x1b[2J from 127.0.0.1, no such model; pull it, 1.5 s",
        "pull      p: success",
    ]


def test_the_stream_for_programs(stub: StubServer, vllama: Vllama) -> None:
    stub.routes["GET /api/events"] = stream
    done = vllama("events", "--json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told == [{"event": name, "data": data} for name, data in EVENTS]
