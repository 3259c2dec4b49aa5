"""Chat templates in worker processes: what they render, what ends them, that none is left."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from tests.server_process import LIMIT_S
from vllama.errors import BadRequest, TemplateTooCostly
from vllama.rendering import renderer as module
from vllama.rendering.renderer import PROGRAM, Renderer

ROOT = Path(__file__).parents[2]
GREETS = "{{ greeting }}!"
GREETING = {"greeting": "hi"}
STUCK = "{% set x = 'a' * 99999 %}{% for a in x %}{% for b in x %}{% endfor %}{% endfor %}"
FAT = (
    "{% set ns = namespace(x='a') %}"
    "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
)
HOST = f"""
import asyncio, sys
from vllama.rendering.renderer import Renderer

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
        ("{% for i in range(99999) %}{{ 'x' * 999 }}{% endfor %}", "its output has no end"),
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process's memory")
@pytest.mark.parametrize(
    "source",
    [
        FAT,
        FAT.replace("'a'", "['a']").replace("~", "+"),
        "{{ 'a' * 10 ** 10 }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ 'a' | center(9999999999) }}",
        "{{ [1, [2]] | tojson(indent=9999999999) }}",
        "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
    ],
)
def test_memory_has_a_limit(source: str) -> None:
    async def work(renderer: Renderer) -> None:
        with pytest.raises(TemplateTooCostly, match="took more than 96 MiB of memory"):
            await renderer.render(source, {}, 0.0)
        await until(lambda: not workers(psutil.Process()))  # what it took goes with its worker
        with pytest.raises(TemplateTooCostly, match="took more than 96 MiB of memory"):
            await renderer.render(source, {}, 0.0)
        assert not workers(psutil.Process())  # it was refused at once
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
            with pytest.raises(TemplateTooCostly, match="it took more than"):
                await task
        assert len(workers(psutil.Process())) == 1

    run(work)


def test_a_deadline_by_the_clock_and_an_end_of_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE_S", 0.01)
    monkeypatch.setattr(module, "REFUSED_S", 0.0)

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
