"""Stages: only what overrides a step takes part in it, in the order of the list."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from vllama.chat.request import Call
from vllama.net.http.request import Request
from vllama.routes.recording.stage import Stage, Stages

STEPS = (
    "began", "admitted", "queued", "waits", "leased", "before_send", "released", "before_end",
    "ended",
)  # fmt: skip


class Named(Stage):
    def __init__(self, name: str) -> None:
        self.name = name

    async def before_send(self, running: Any, reply: Any, upstream: Any, call: Call) -> Call:
        return call.put(**{self.name: running.key, "last": self.name})


class Ends(Stage):
    def ended(self, running: Any, row: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("stages", "taken"),
    [
        ((), set()),
        ((None, Stage()), set()),
        ((Ends(), None), {"ended"}),
        ((Named("a"), Ends(), Named("b")), {"before_send", "ended"}),
    ],
)
def test_a_step_that_nobody_overrides_has_no_function(stages, taken) -> None:
    made = Stages(*stages)
    assert {step for step in STEPS if getattr(made, step)} == taken


class Breaks(Stage):
    def ended(self, running: Any, row: Any) -> None:
        raise ValueError


def test_an_error_in_a_stage_is_logged_and_stops_no_other(caplog) -> None:
    seen: list[object] = []

    class Sees(Stage):
        def ended(self, running: Any, row: Any) -> None:
            seen.append(row)

    stages: Any = Stages(Breaks(), Sees())
    stages.ended(None, "row")
    assert seen == ["row"] and "a stage failed in its step 'ended'" in caplog.text


def test_fields_are_added_in_order_and_encoded_once() -> None:
    stages, call = Stages(Named("salt"), Named("mark")), Call(path="/x", fields={"prompt": "a"})
    running: Any = SimpleNamespace(key="anna")
    sent = asyncio.run(stages.prepare(running, None, None, call))  # type: ignore[arg-type]
    assert sent.body is None and call.fields == {"prompt": "a"}
    assert json.loads(sent.encode()) == {
        "prompt": "a", "salt": "anna", "mark": "anna", "last": "mark",
    }  # fmt: skip


class Recorder:
    """Notes the headers at the head of a response, and whether its last byte is out."""

    def __init__(self, request: Request) -> None:
        self.request, self.steps = request, list[object]()

    def take_head(self, content_type: bytes) -> None:
        self.steps.append(dict(self.request.extra))

    def take_part(self, part: bytes) -> None:
        self.steps.append(part)

    take_chunk = take_part


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_end_is_noted_once_and_may_set_headers_of_a_whole_response(is_whole: bool) -> None:
    request = Request.without_socket("/api/chat", b"{}", "test")
    recorder = request.recorder = Recorder(request)

    def note() -> None:
        recorder.steps.append((request.status, request.done))
        request.set_header("x-energy", "3.5 J")

    request.before_end = note
    if is_whole:
        request.respond(200, b"all")
        assert recorder.steps == [(200, False), {b"x-energy": b"3.5 J"}, b"all"]
        return
    request.start(200, b"text/plain")
    request.write(b"half")
    request.end(b"rest")
    assert recorder.steps == [{}, b"half", (200, False), b"rest"]
