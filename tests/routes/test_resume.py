"""Answers whose engine is killed go on: real processes, the fake engine, all dialects."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
import time

import httpx
import pytest

from tests.chaos.asks import CHATS, TEXTS, read
from tests.server_process import LIMIT_S, Server

pytestmark = pytest.mark.slow

SLOW = "@tokens=60 @delay=0.02"
WHOLE = "".join(f"tok{number} " for number in range(60))
NAME = "wide-replays"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("resume"), "--strict") as server:
        server.model(NAME)
        yield server


def load(server, *first: str) -> None:
    """Load the model anew, and forget its failures; its first engine has the switches `first`."""
    server.post("/api/generate", {"model": NAME, "keep_alive": 0})
    deadline_s = time.monotonic() + LIMIT_S
    while server.get("/api/ps")["models"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    if first:
        server.model(NAME, *first, once=True)
    assert server.post("/api/generate", {"model": NAME})[0] == 200


GENERATE = next(one for one in CHATS if one.path == "/api/generate")
DIES = ("--die-after", "5")


def ask(server, dialect, text=SLOW, *, stream=True, model=NAME):
    body = {"model": model, **dialect.ask(text, 1000)} | {"stream": stream}
    with httpx.Client(base_url=server.url, timeout=LIMIT_S) as client:
        reply = client.post(dialect.path, json=body)
    return reply, read(dialect, reply, reply.text, stream=stream)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", [*CHATS, *TEXTS], ids=lambda one: one.path)
def test_an_answer_goes_on_after_its_engine_was_killed(server, dialect, stream) -> None:
    load(server, *DIES)
    reply, answer = ask(server, dialect, stream=stream)
    assert (answer.text, answer.done, answer.error, answer.odd) == (WHOLE, True, "", "")
    assert (reply.headers.get("x-vllama-resumed") == "1") is not stream
    counts = re.findall(r'"(?:eval_count|completion_tokens|output_tokens)": ?(\d+)', reply.text)
    ended = server.get("/api/requests/ended?limit=9")["requests"]
    assert ("ok", 1) in {(row["outcome"], row["resumed"]) for row in ended}
    assert set(counts[-1:]) <= {"60"}  # an OpenAI stream tells it on request


@pytest.mark.parametrize("stream", [True, False])
def test_a_whole_answer_survives_a_crash_while_its_context_is_counted(server, stream) -> None:
    load(server, "--die-reading")
    reply, answer = ask(server, GENERATE, "@tokens=5", stream=stream)
    assert (answer.text, answer.done, answer.error) == ("tok0 tok1 tok2 tok3 tok4 ", True, "")
    assert json.loads(reply.text.splitlines()[-1])["context"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", [CHATS[2], TEXTS[0]], ids=lambda one: one.path)
def test_the_choices_after_the_one_that_goes_on_come_too(server, dialect, stream) -> None:
    """Its engine has another address by then."""
    load(server, *DIES)
    body = {"model": NAME, **dialect.ask("@tokens=20", 1000), "stream": stream, "n": 3}
    with httpx.Client(base_url=server.url, timeout=LIMIT_S) as client:
        text = client.post(dialect.path, json=body).text
    lines = text.splitlines() if stream else [text]
    found = [line.removeprefix("data: ") for line in lines if "{" in line]
    choices = [one for line in found for one in json.loads(line).get("choices", ())]
    assert [one["index"] for one in choices if one.get("finish_reason")] == [0, 1, 2]
    assert text.count("tok19") == 3 and '"error"' not in text
    assert not stream or lines[-2:] == ["data: [DONE]", ""] or lines[-1] == "data: [DONE]"


def test_an_answer_goes_on_after_a_hang(tmp_path) -> None:
    with Server(tmp_path, "--strict", "--hang-timeout", "1s") as server:
        server.model(NAME)
        server.post("/api/generate", {"model": NAME})
        with server.open("/api/chat", {"model": NAME, **CHATS[0].ask(SLOW, 1000)}) as answer:
            begun = answer.readline() + answer.readline()
            server.engine(NAME).send_signal(signal.SIGSTOP)
            lines = [json.loads(line) for line in (begun + answer.read()).splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == WHOLE
    assert lines[-1]["done"]


def test_requests_wait_through_the_longer_pauses_of_an_engine_that_dies_often(tmp_path) -> None:
    """Those that have not begun as long as those that have."""
    found = []

    def ask_anew(server) -> None:
        body = {"model": NAME, "prompt": "@tokens=2", "stream": False}
        found.append(server.post("/api/generate", body)[0])

    with Server(tmp_path, "--strict") as server:
        server.model(NAME)
        server.post("/api/generate", {"model": NAME})
        for _ in range(6):
            with server.open("/api/chat", {"model": NAME, **CHATS[0].ask(SLOW, 1000)}) as answer:
                begun = answer.readline() + answer.readline()
                server.engine(NAME).kill()
                fresh = threading.Thread(target=ask_anew, args=(server,))
                fresh.start()
                lines = [json.loads(line) for line in (begun + answer.read()).splitlines()]
            fresh.join()
            assert lines[-1].get("done"), lines[-1]
            assert "".join(line["message"]["content"] for line in lines) == WHOLE
    assert found == [200] * 6


def test_without_resume_it_ends_with_an_error(tmp_path) -> None:
    with Server(tmp_path, "--strict", "--resume", "0") as server:
        server.model(NAME)
        load(server, *DIES)
        _, answer = ask(server, CHATS[0])
    assert "the connection to the engine was lost" in answer.error
    assert WHOLE.startswith(answer.text)


def test_many_answers_go_on_and_a_random_seed_is_sent(server) -> None:
    load(server, *DIES)
    found = []

    def run(dialect) -> None:
        found.append(ask(server, dialect)[1])

    threads = [threading.Thread(target=run, args=(one,)) for one in (*CHATS, *TEXTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(one.text, one.error) for one in found] == [(WHOLE, "")] * len(threads)
    assert server.post("/api/chat", {"model": NAME, "messages": [], "stream": False})[0] == 200
    body = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "stream": False}
    seeds = set()
    for _ in range(2):
        assert server.post("/api/chat", body)[0] == 200
        seeds.add(server.sent(NAME)["seed"])
    assert len(seeds) == 2


POISON = ["@dies=0", "@dies=5", *(f"@dies_after={ms}" for ms in (20, 300, 1000))]


@pytest.mark.parametrize("poison", POISON)
def test_a_request_that_kills_its_engine_ends_alone(server, poison) -> None:
    """It is asked for again, and the others, which it interrupts, have their whole answers."""
    load(server)
    found, before = {}, server.output.count("restarting")

    async def play() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=LIMIT_S) as client:

            async def run(number: int, text: str) -> None:
                body = {"model": NAME, **CHATS[0].ask(text, 1000), "stream": True}
                reply = await client.post("/api/chat", json=body)
                found[number] = read(CHATS[0], reply, reply.text, stream=True)

            asking = [asyncio.create_task(run(number, SLOW)) for number in range(4)]
            await asyncio.sleep(0.2)
            asking.append(asyncio.create_task(run(9, f"@tokens=9999 @delay=0.02 {poison}")))
            await asyncio.sleep(0.02)  # they come back after it
            asking += [asyncio.create_task(run(number, SLOW)) for number in range(4, 8)]
            await asyncio.gather(*asking)

    asyncio.run(play())
    assert [(found[number].text, found[number].error) for number in range(8)] == [(WHOLE, "")] * 8
    assert found[9].error
    assert server.output.count("restarting") - before <= 3


def test_requests_that_kill_their_engine_do_not_use_up_its_restarts(server) -> None:
    load(server)
    for _ in range(5):
        assert ask(server, CHATS[0], "@dies=0")[1].error
        assert not ask(server, CHATS[0], "@tokens=1")[1].error


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", [*CHATS, *TEXTS], ids=lambda one: one.path)
def test_a_replay_that_departs(server, dialect, stream) -> None:
    """The second engine says something else: what a client has of a stream stays, with an error.

    A whole response, of which it has nothing, is that of the second engine.
    """
    name = "wide-replays-renders-counts"
    server.post("/api/generate", {"model": name, "keep_alive": 0})
    server.model(name, "--die-after", "5")
    server.post("/api/generate", {"model": name})
    server.model(name, "--say", '"and so on. "')  # after its restart
    reply, answer = ask(server, dialect, "@tokens=9 @delay=0.02", stream=stream, model=name)
    bodies = [
        body for body in server.stats(name)["bodies"] if "@tokens=9" in body.get("prompt", "")
    ]
    assert len(bodies) == (1 if stream else 2) and bodies[0]["max_tokens"]  # the same again
    if stream:
        assert "its response differs after the restart" in answer.error and not answer.done
        assert (reply.status_code, answer.text) == (200, "tok0 tok1 tok2 tok3 tok4 ")
    else:
        assert (reply.status_code, answer.error, answer.done) == (200, "", True)
        assert answer.text.startswith("and so on. ")
