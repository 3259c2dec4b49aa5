"""Prompts that begin alike and come together are read once: real servers, the fake engine."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import pytest

from tests.routes.test_ollama_chat import until
from tests.server_process import Server
from vllama.routes.inference.shared_prefixes import WAITS_FOR, SharedPrefixes, _is_quick

NAME = "wide-replays-renders-shares-counts"
LONG = " ".join(f"w{number % 97}" for number in range(800))
HOLDS = "@reads=1"
"""As long as the engine reads; others come in the meantime."""

slow = pytest.mark.slow  # servers as processes of their own


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path, "--strict") as server:
        server.model(NAME)
        yield server


def ask(text, model=NAME, **more):
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": text}]
    return {"model": model, "messages": messages, "stream": False, **more}


def sent(server, model=NAME):
    """Return what the engine was asked, without its loads."""
    return [body for body in server.stats(model)["bodies"] if "stream" in body]


def burst(server, *bodies):
    """Send requests, the others when the first is at the engine; return their answers."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        first = pool.submit(server.post, "/api/chat", bodies[0])
        until(lambda: first.done() or sent(server))
        others = pool.map(partial(server.post, "/api/chat"), bodies[1:])
        return [first.result(), *others]


@contextmanager
def waiting(server, *bodies):
    """Send requests whose answers are not awaited; leave in the end."""
    with ExitStack() as stack:
        for count, body in enumerate(bodies):
            client = stack.enter_context(closing(server.connect()))
            client.request("POST", "/api/chat", json.dumps(body))
            until(lambda count=count: len(server.get("/api/requests")["requests"]) > count)
        yield


def files(server):
    return list((server.home / "data" / "run" / "slots").iterdir())


@slow
def test_what_three_have_in_common_is_read_once(server) -> None:
    server.post("/api/generate", {"model": NAME})
    found = burst(server, ask(f"a {HOLDS}"), ask("b"), ask("c"))
    assert [status for status, _ in found] == [200] * 3
    first, second, third = (told["prompt_eval_cached_count"] for _, told in found)
    assert first == 0 and min(second, third) > len(LONG)
    read, *whole = sent(server)
    assert read["max_tokens"] == 0 and all(body["max_tokens"] != 0 for body in whole)
    # two slots: the third waits for neither, and the engine finds what is in a free one
    assert {body["id_slot"] for body in whole if "id_slot" in body} == {0, 1}
    assert files(server) == []


@slow
@pytest.mark.parametrize(
    ("first", "others"),
    [
        (ask(f"alone {HOLDS}"), []),
        (ask(f"a {HOLDS}"), [ask("b", messages=[{"role": "user", "content": f"x {LONG}"}])]),
    ],
    ids=["alone", "other beginning"],
)
def test_who_has_nothing_in_common_does_not_wait(server, first, others) -> None:
    server.post("/api/generate", {"model": NAME})
    assert [status for status, _ in burst(server, first, *others)] == [200] * (1 + len(others))
    assert not any("id_slot" in body for body in sent(server))
    assert files(server) == []


@slow
def test_a_short_prompt_and_the_next_turn_are_not_read_before(server) -> None:
    talk = [{"role": "system", "content": LONG}, {"role": "user", "content": "a"}]
    said = server.post("/api/chat", ask("", messages=talk))[1]["message"]
    server.post("/api/chat", ask("", messages=[*talk, said, {"role": "user", "content": "b"}]))
    server.post("/api/chat", ask("", messages=[{"role": "user", "content": "short"}]))
    assert [body["max_tokens"] == 0 for body in sent(server)] == [True, False, False, False]


@slow
def test_a_model_with_one_slot_needs_none_of_it(tmp_path) -> None:
    with Server(tmp_path, "--strict") as server:
        name = server.model("replays-renders-shares-counts")
        assert server.post("/api/chat", ask("a", name))[0] == 200
        assert [body["max_tokens"] == 0 for body in sent(server, name)] == [False]


@slow
def test_the_next_engine_of_a_model_has_its_conversations(tmp_path) -> None:
    with Server(tmp_path, "--strict", "--context-length", "2048") as server:
        name = server.model("replays-renders-shares-counts")
        body = ask("a", name, messages=[{"role": "user", "content": LONG[:1500]}])
        assert server.post("/api/chat", body)[1]["prompt_eval_cached_count"] == 0
        status, told = server.post("/api/chat", body | {"options": {"num_ctx": 4096}})
        assert (status, told["prompt_eval_cached_count"] > 1500) == (200, True)
        assert len(sent(server, name)) == 1  # to a new one
        until(lambda: not files(server))


@slow
def test_the_one_that_waits_says_for_what(server) -> None:
    server.post("/api/generate", {"model": NAME})
    with waiting(server, ask("a @reads=9999"), ask("b")):
        until(lambda: server.get("/api/requests")["requests"][1]["waits_for"] == WAITS_FOR)
        first, second = server.get("/api/requests")["requests"]
        assert (first["state"], second["state"]) == ("running", "waiting")


@slow
def test_the_next_one_reads_if_the_first_leaves(server) -> None:
    server.post("/api/generate", {"model": NAME})
    with ThreadPoolExecutor(1) as pool:
        with waiting(server, ask("a @reads=9999")):
            until(lambda: len(sent(server)) == 1)
            second = pool.submit(server.post, "/api/chat", ask("b"))
            until(lambda: len(server.get("/api/requests")["requests"]) == 2)
        assert second.result()[0] == 200
    assert files(server) == []


@slow
def test_an_engine_that_dies_while_it_reads_ends_only_who_killed_it(server) -> None:
    server.post("/api/generate", {"model": NAME})
    with ThreadPoolExecutor(3) as pool:
        asked = [ask("a @dies=0"), ask("b"), ask("c")]
        found = list(pool.map(partial(server.post, "/api/chat"), asked))
    assert [status for status, _ in found] == [500, 200, 200]


def test_what_killed_servers_have_left_is_removed(tmp_path) -> None:
    other = f"new-{os.getppid()}-ab.slot"
    # that of the server itself: one before it had the same number, as in a container
    for name in ("new-999999999-ab.slot", f"new-{os.getpid()}-ab.slot", other, "new-x", "other"):
        (tmp_path / name).touch()
    SharedPrefixes(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {other, "other"}
    SharedPrefixes(tmp_path / "not here")


@pytest.mark.parametrize(
    ("speed", "quick"), [(None, False), (100, False), (1999, False), (2001, True)]
)
def test_a_fast_engine_reads_by_itself(speed, quick) -> None:
    assert _is_quick("word" * 1000, speed) is quick  # 1000 tokens by the estimate
