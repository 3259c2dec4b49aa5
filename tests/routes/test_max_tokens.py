"""The server's ceiling for the length of an answer holds on every route."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.facts import INFO, bundle
from tests.server_process import Server
from vllama.models.lookup import Entry
from vllama.models.settings import ModelSettings

MESSAGES = [{"role": "user", "content": "hi"}]
CEILING = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("ceiling"), "--max-tokens", str(CEILING)) as running:
        running.model("plain")
        yield running


@pytest.mark.parametrize(
    ("path", "body", "reason", "count"),
    [
        ("/api/chat", {"messages": MESSAGES}, "done_reason", "eval_count"),
        ("/api/chat", {"messages": MESSAGES, "options": {"num_predict": -1}}, "done_reason", ""),
        (
            "/api/generate",
            {"prompt": "x", "options": {"num_predict": 7}},
            "done_reason",
            "eval_count",
        ),
        ("/v1/chat/completions", {"messages": MESSAGES}, "choices", "completion_tokens"),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 7}, "choices", ""),
        ("/v1/completions", {"prompt": "x"}, "choices", "completion_tokens"),
        ("/v1/responses", {"input": "x"}, "incomplete_details", "output_tokens"),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 7}, "stop_reason", "output_tokens"),
    ],
)
def test_no_answer_is_longer(
    server: Server, path: str, body: dict[str, Any], reason: str, count: str
) -> None:
    status, answer = server.post(path, {"model": "plain", "stream": False, **body})
    assert status == 200, answer
    told = json.dumps(answer[reason])
    assert "length" in told or "max_output_tokens" in told or "max_tokens" in told
    if count:
        assert answer.get("usage", answer)[count] == CEILING


def test_a_request_may_ask_for_less(server: Server) -> None:
    _, answer = server.post(
        "/api/generate",
        {"model": "plain", "prompt": "x", "stream": False, "options": {"num_predict": 2}},
    )
    assert (answer["eval_count"], answer["done_reason"]) == (2, "length")


@pytest.mark.parametrize(
    ("asked", "table", "server", "limit"),
    [
        (None, None, None, None),
        (None, 50, None, 50),
        (None, None, 50, 50),
        (20, 50, 60, 20),
        (70, 50, 60, 50),
        (70, 60, 50, 50),
        (0, 50, None, 0),
    ],
)
def test_the_smallest_limit_counts(
    asked: int | None, table: int | None, server: int | None, limit: int | None
) -> None:
    model = replace(bundle(), settings=ModelSettings(max_tokens=table))
    assert Entry(model, lambda: INFO, server).limit_answer(asked) == limit
