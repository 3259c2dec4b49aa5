"""A measurement of `vllama bench`: warmed up, and repeated if the model was loaded again."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from vllama.lab.bench.findings import make_remarks
from vllama.lab.bench.rounds import (
    MIN_REQUESTS,
    MOST_REPEATS,
    Order,
    Side,
    measure_answers,
    warm_up,
)
from vllama.lab.commands.bench import describe_length

ORDER = Order(
    model="m", clients=(1, 3), prompts=("short",), rounds=2, tokens=9, swap=None, salt="s"
)


class Reloading:
    """A server that loads its model again while it answers the requests in `reload_at`."""

    url = "http://127.0.0.1:1"

    def __init__(self, *reload_at: int) -> None:
        self.reload_at = reload_at
        self.pid = 1
        self.asked: list[int] = []  # the length of each answer
        self.lock = threading.Lock()

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/api/ps"
        return {"models": [{"name": "m:latest", "pid": self.pid, "restarts": 0, "size_vram": 0}]}

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        return {}

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        with self.lock:
            self.asked.append(body["options"]["num_predict"])
            self.pid += len(self.asked) in self.reload_at
        yield {"message": {"content": "x"}, "eval_count": 1, "prompt_eval_count": 1}


def run(server: Reloading, clients: int = 1) -> dict[str, Any]:
    side = Side(name="vllama", server=server, memory=None)
    return measure_answers(ORDER, "short", clients, side, "0 1") | {"round": 1, "side": side.name}


def test_a_warm_up_with_as_many_clients_comes_first_and_is_not_measured() -> None:
    server = Reloading(1)  # as one that gets slots for several requests
    row = run(server, clients=3)
    assert (row["reloads"], server.asked) == (0, [8] * 3 + [9] * MIN_REQUESTS)
    assert make_remarks([row], ["vllama"]) == []


def test_a_measurement_with_a_reload_is_repeated_and_told() -> None:
    server = Reloading(3)
    row = run(server)
    assert (row["reloads"], len(server.asked)) == (1, 2 * (1 + MIN_REQUESTS))
    assert make_remarks([row], ["vllama"]) == [
        "vllama reloaded the model once in a measurement: round 2, 1 client, short prompts; "
        "it was repeated"
    ]


def test_a_server_that_reloads_for_ever_is_told_of() -> None:
    row = run(Reloading(*range(99)))
    assert row["reloads"] == 1 + MOST_REPEATS
    (remark,) = make_remarks([row], ["vllama"])
    assert "3 times" in remark and remark.endswith("its values include one")


def test_the_warm_up_has_the_most_clients_and_tells_how_long_the_rounds_take() -> None:
    server, told = Reloading(), []
    expected_s = warm_up(ORDER, [Side(name="vllama", server=server, memory=None)], told.append)
    assert server.asked == [8, 9, 8, 8, 8]
    assert told == ["vllama: loading m", "vllama: warming up, short prompts"]
    assert expected_s > 0
    assert describe_length(ORDER, 1, 22.0) == (
        "2 rounds of 3 measurements; this takes about 30 seconds"
    )
