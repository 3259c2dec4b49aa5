"""Chat templates in worker processes: what they render, what ends them, that none is left."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.server_process import LIMIT_S
from vllama.base import executors
from vllama.base.errors import BadRequest, QueueFull, TemplateTooCostly
from vllama.chat.request import Message
from vllama.chat.templates.go.execute import read, render
from vllama.chat.templates.go_template_prompt import GoTemplate
from vllama.chat.templates.jinja import renderer as renderer_module
from vllama.chat.templates.jinja import worker_process as module
from vllama.chat.templates.jinja.renderer import Renderer, RenderLane
from vllama.chat.templates.jinja.wire import HEAD, JOB
from vllama.chat.templates.jinja.worker_process import PROGRAM

ROOT = Path(__file__).parents[4]
GREETS = "{{ greeting }}!"
GREETING = {"greeting": "hi"}
STUCK = "{% set x = 'a' * 99999 %}{% for a in x %}{% for b in x %}{% endfor %}{% endfor %}"
FAT = (
    "{% set ns = namespace(x='a') %}"
    "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
)
HOST = f"""
import asyncio, sys
from vllama.chat.templates.jinja.renderer import Renderer

async def main():
    renderer = Renderer({{}})
    await renderer.render({GREETS!r}, {GREETING!r}, 0)
    if sys.argv[1] == "rendering":
        stuck = asyncio.create_task(renderer.render({STUCK!r}, {{}}, 0))
        while renderer._idle:
            await asyncio.sleep(0)
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def run(work: Callable[[Renderer], Awaitable[None]]) -> None:
    async def main() -> None:
        renderer = Renderer(os.environ)
        try:
            await work(renderer)
        finally:
            renderer.close()

    asyncio.run(main())
    deadline = time.monotonic() + LIMIT_S
    # a thread may still be starting a worker that nobody wants any more, and then ends it
    while (executors.upkeep.running or workers(psutil.Process())) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not workers(psutil.Process())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what other processes do by themselves."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def workers(process: psutil.Process) -> list[psutil.Process]:
    """Return the workers of a process that still run."""
    found = []
    for child in process.children():
        try:
            if child.status() != psutil.STATUS_ZOMBIE and str(PROGRAM) in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            pass
    return found


def test_a_worker_whose_server_has_ended_says_nothing() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, str(PROGRAM)]
    with theirs:
        worker = subprocess.Popen(
            command, stdin=theirs, stderr=subprocess.PIPE, env={"PYTHONPATH": str(ROOT)}
        )
    with ours:
        assert ours.recv(HEAD.size)
        worker.send_signal(signal.SIGSTOP)
        job = pickle.dumps(partial(str, "x"))
        ours.sendall(JOB.pack(1.0, len(job)) + job)
    worker.send_signal(signal.SIGCONT)
    assert worker.communicate(timeout=LIMIT_S)[1] == b""


def test_a_worker_that_nobody_waits_for_any_more_is_ended() -> None:
    for _ in range(5):

        async def work(renderer: Renderer) -> None:
            rendering = asyncio.create_task(renderer.render(GREETS, GREETING, 0.0))
            await until(lambda: renderer.running > 0)
            renderer.close()
            with pytest.raises(asyncio.CancelledError):
                await rendering

        run(work)
    gc.collect()  # a process or socket that was left alone is a warning, which is an error here


def test_one_worker_serves_all_that_come_one_after_another() -> None:
    async def work(renderer: Renderer) -> None:
        assert not workers(psutil.Process())  # it is started when it is needed
        for number in range(20):
            text = await renderer.render(f"{{{{ x }}}}{number}", {"x": "é"}, 0.0)
            assert text == f"é{number}"
        assert len(workers(psutil.Process())) == 1

    run(work)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% if %}", "cannot read the model's chat template: Expected an expression"),
        ("{% if 1 %}" * 9999, "cannot read the model's chat template: maximum recursion"),
        ("{{ raise_exception('no') }}", "cannot render the chat template: no"),
        ("{{ raise_exception('é' * 9999) }}", f"cannot render the chat template: {'é' * 1000}"),
    ],
)
def test_a_wrong_template_is_told_and_harms_nobody(source: str, says: str) -> None:
    async def work(renderer: Renderer) -> None:
        await renderer.render(GREETS, GREETING, 0.0)
        before = workers(psutil.Process())
        with pytest.raises(BadRequest) as caught:
            await renderer.render(source, {}, 0.0)
        assert says in caught.value.message
        assert not isinstance(caught.value, TemplateTooCostly)
        assert await renderer.render(GREETS, GREETING, 0.0) == "hi!"
        assert workers(psutil.Process()) == before

    run(work)


GREEDY = (
    FAT,
    FAT.replace("'a'", "['a']").replace("~", "+"),
    "{{ 'a' * 10 ** 10 }}",
    "{{ '%9999999999d' % 1 }}",
    "{{ '{:9999999999}'.format(1) }}",
    "{{ 'a' | center(9999999999) }}",
    "{{ [1, [2]] | tojson(indent=9999999999) }}",
    "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process's memory")
def test_memory_has_a_limit() -> None:
    async def work(renderer: Renderer) -> None:
        for source in GREEDY:
            with pytest.raises(TemplateTooCostly, match="used more than 96 MiB of memory"):
                await renderer.render(source, {}, 0.0)
            await until(lambda: not workers(psutil.Process()))  # what it took goes with its worker
        for source in GREEDY:
            with pytest.raises(TemplateTooCostly, match="used more than 96 MiB of memory"):
                await renderer.render(source, {}, 0.0)
        assert not workers(psutil.Process())  # they were refused at once
        assert await renderer.render(GREETS, GREETING, 0.0) == "hi!"

    run(work)


def test_a_long_conversation_has_more_memory_and_gives_it_back() -> None:
    async def work(renderer: Renderer) -> None:
        await renderer.render(GREETS, GREETING, 0.0)
        before = workers(psutil.Process())
        long = "🦙" * 8_000_000
        assert await renderer.render(GREETS, {"greeting": long}, 0.0) == f"{long}!"
        assert await renderer.render(GREETS, GREETING, 0.0) == "hi!"
        assert sys.platform != "linux" or workers(psutil.Process()) != before

    run(work)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        STUCK,
        "{{ 10 ** 100000000 }}",
        "{{ lipsum(n=10 ** 7) }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) ~ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    ],
)
def test_others_do_not_wait_for_one_that_is_stuck(source: str) -> None:
    async def work(renderer: Renderer) -> None:
        stuck = [asyncio.create_task(renderer.render(source, {}, 0.0)) for _ in range(20)]
        assert await renderer.render(GREETS, GREETING, 0.0) == "hi!"
        assert not any(task.done() for task in stuck)
        for task in stuck:  # only the first had to be ended
            with pytest.raises(TemplateTooCostly, match=r"it (used|took) more than"):
                await task
        assert len(workers(psutil.Process())) == 1

    run(work)


@pytest.mark.parametrize("crowd", [pytest.param(4, marks=pytest.mark.slow), 32])
def test_an_ordinary_template_does_not_wait_for_a_crowd_of_costly_ones(crowd: int) -> None:
    async def work(renderer: Renderer) -> None:
        stuck = [asyncio.create_task(renderer.render(f"{STUCK}{n}", {}, 0.0)) for n in range(crowd)]
        await until(lambda: renderer.running == 2)
        assert await renderer.render(GREETS, GREETING, 0.0) == "hi!"
        assert sum(task.done() for task in stuck) <= 2  # the first ones, which had workers
        for task in stuck:
            task.cancel()

    run(work)


def test_what_has_rendered_well_does_not_wait_for_what_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(renderer: Renderer) -> None:
        await renderer.render(GREETS, GREETING, 0.0)
        monkeypatch.setattr(renderer_module, "MAX_CPU_S", LIMIT_S)
        monkeypatch.setattr(renderer_module, "CPU_S", LIMIT_S)
        monkeypatch.setattr(module, "DEADLINE_S", LIMIT_S)
        stuck = [asyncio.create_task(renderer.render(f"{STUCK}{n}", {}, 0.0)) for n in range(8)]
        await until(lambda: (renderer.running, renderer.waiting) == (2, 6))
        assert await renderer.render(GREETS, GREETING, 0.0) == "hi!"
        for task in stuck:
            task.cancel()

    run(work)


@pytest.mark.slow
def test_one_that_rendered_well_once_is_refused_like_any_other() -> None:
    sometimes = "{% if bad %}" + STUCK + "{% endif %}"

    async def work(renderer: Renderer) -> None:
        assert await renderer.render(sometimes, {"bad": False}, 0.0) == ""
        for _ in range(2):
            with pytest.raises(TemplateTooCostly, match=r"more than 0\.5 s of CPU time"):
                await renderer.render(sometimes, {"bad": True}, 0.0)
        with pytest.raises(TemplateTooCostly):  # at once: no worker is started for it
            await renderer.render(sometimes, {"bad": False}, 0.0)
        assert not workers(psutil.Process())

    run(work)


def test_what_waits_has_a_limit_and_the_oldest_goes() -> None:
    async def work() -> None:
        lane, order = RenderLane(1, most_waiting=2), []

        async def enter(number: int) -> None:
            async with lane:
                order.append(number)
                await asyncio.sleep(0)

        done = await asyncio.gather(*map(enter, range(5)), return_exceptions=True)
        assert order == [0, 4, 3]
        assert [type(error) for error in done if error] == [QueueFull, QueueFull]

    asyncio.run(work())


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "{{ range 900000 }}{{ range 900000 }}{{ end }}{{ end }}",
        "{{ $x := .S }}{{ range 100 }}{{ $x = print $x $x }}{{ end }}",
        "{{ range 900000 }}{{ range 900000 }}xxxxxxxxxxxxxxxx{{ end }}{{ end }}",
        '{{ define "a" }}{{ range 9 }}{{ template "a" . }}{{ end }}{{ end }}{{ template "a" . }}',
    ],
)
def test_a_costly_go_template_is_ended_too(source: str) -> None:
    async def work(renderer: Renderer) -> None:
        with pytest.raises(BadRequest):
            await renderer.run_template(
                source, partial(render, read(source), {"S": "x" * 99}, datetime(2026, 1, 1))
            )
        assert await renderer.render(GREETS, GREETING, 0.0) == "hi!"

    run(work)


@pytest.mark.slow
def test_a_go_template_turn_by_turn_has_one_limit_for_all_its_turns() -> None:
    turns = [Message(role=("user", "assistant")[n % 2], content="hi") for n in range(10_000)]

    async def work(renderer: Renderer) -> None:
        once = partial(GoTemplate("{{ .Prompt }}").chat, turns[:1], now=0.0)
        assert await renderer.run_template("{{ .Prompt }}", once) == "hi"
        costly = partial(GoTemplate("{{ .Prompt }}" * 5000).chat, turns, now=0.0)
        with pytest.raises(TemplateTooCostly, match="of CPU time"):
            await renderer.run_template("costly", costly)

    run(work)


def test_a_deadline_by_the_clock_and_an_end_of_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE_S", 0.01)
    monkeypatch.setattr(renderer_module, "REFUSED_S", 0.0)

    async def work(renderer: Renderer) -> None:
        for _ in range(2):
            with pytest.raises(TemplateTooCostly, match=r"took more than 0\.01 s"):
                await renderer.render(STUCK, {}, 0.0)
        monkeypatch.setattr(module, "DEADLINE_S", LIMIT_S)
        assert await renderer.render(GREETS, GREETING, 0.0) == "hi!"

    run(work)


def test_who_leaves_takes_no_answer_of_another() -> None:
    async def work(renderer: Renderer) -> None:
        await renderer.render(GREETS, GREETING, 0.0)
        before = workers(psutil.Process())
        leaving = asyncio.create_task(renderer.render(GREETS, {"greeting": "leaving"}, 0.0))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await renderer.render(GREETS, GREETING, 0.0) == "hi!"
        assert leaving.cancelled()
        assert workers(psutil.Process()) == before

    run(work)


def test_a_worker_that_was_killed_meanwhile() -> None:
    async def work(renderer: Renderer) -> None:
        await renderer.render(GREETS, GREETING, 0.0)
        (worker,) = workers(psutil.Process())
        worker.kill()
        await until(lambda: not renderer._idle[0].lives)  # the loop has heard of it
        assert await renderer.render(GREETS, GREETING, 0.0) == "hi!"

    run(work)


def test_a_worker_lives_as_long_as_a_server_that_is_told_to_stop() -> None:
    """What stops a server tells its whole tree, and its last answers still need templates."""

    async def work(renderer: Renderer) -> None:
        await renderer.render(GREETS, GREETING, 0.0)
        (worker,) = workers(psutil.Process())
        worker.terminate()
        assert await renderer.render(GREETS, GREETING, 0.0) == "hi!"
        assert workers(psutil.Process()) == [worker]

    run(work)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["idle", pytest.param("rendering", marks=pytest.mark.slow)])
def test_a_worker_ends_with_the_server(moment: str) -> None:
    command = [sys.executable, "-c", HOST, moment]
    environ = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as host:
        assert host.stdout and host.stdout.readline() == b"ready\n"
        there = workers(psutil.Process(host.pid))
        assert there
        host.kill()
    _, alive = psutil.wait_procs(there, timeout=LIMIT_S)
    assert not alive
