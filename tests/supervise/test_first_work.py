"""Servers that listen before they can work, and those that stay although they never will."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.supervise.conftest import LIMIT_S, Lab
from tests.supervise.test_probe import OK, serving
from vllama.base.errors import EngineStartFailed
from vllama.supervise.probe import check
from vllama.supervise.spec import Diagnosis, Endpoint, Exit, HttpProbe, LaunchSpec, Work
from vllama.supervise.supervisor import SupervisedProcess

LOADING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
WORK = Work(path="/v1/chat/completions", body=json.dumps({"model": "m"}).encode())


@pytest.mark.parametrize(
    ("answers", "ready"),
    [((OK, OK), True), ((OK, LOADING), False), ((LOADING, OK), False)],
)
def test_it_is_ready_when_its_first_work_is_done(answers: tuple[bytes, ...], ready: bool) -> None:
    async def main() -> list[bytes]:
        seen: list[bytes] = []
        async with serving(*answers, seen=seen) as port:
            spec = LaunchSpec(
                name="x",
                argv=("x",),
                env={},
                endpoint=Endpoint(port=port, api_key="sk-1"),
                probe=HttpProbe(path="/health", timeout_s=LIMIT_S, first_work=WORK),
            )
            assert await check(spec) is ready
        return seen

    seen = asyncio.run(main())
    assert seen[0].startswith(b"GET /health HTTP/1.1\r\n")
    if answers[0] == OK:
        head = seen[1].decode().split("\r\n")
        assert head[0] == "POST /v1/chat/completions HTTP/1.1"
        assert {"Content-Length: 14", "Authorization: Bearer sk-1"} <= set(head)
    else:  # it is not asked to work before it listens
        assert len(seen) == 1


@pytest.mark.slow
def test_its_first_work_is_done_by_a_real_process(lab: Lab) -> None:
    work = Work(
        path="/v1/chat/completions",
        body=json.dumps({"messages": [{"role": "user", "content": "@tokens=1"}]}).encode(),
    )

    async def script(proc: SupervisedProcess) -> None:
        await proc.ensure_ready()

    lab.play(lab.process("--ready-after", "0.1", probe=lab.probe(first_work=work)), script)


def told(exit_: Exit) -> Diagnosis:
    """Diagnose by the last line, as an engine's patterns would."""
    return Diagnosis(cause=exit_.output[-1], retryable="taken" in exit_.output[-1])


@pytest.mark.slow
def test_a_line_that_means_never_ends_the_wait_for_it(lab: Lab) -> None:
    """The process itself goes on: it has to be ended, and its line is the cause."""

    async def script(proc: SupervisedProcess) -> None:
        with pytest.raises(EngineStartFailed, match="generation thread died: no such tensor"):
            await proc.ensure_ready()

    proc = lab.process(
        "--ready-after", "600", "--print", "loading",
        "--print", "generation thread died: no such tensor",
        hopeless="generation thread died", diagnose=told, stall_timeout_s=None,
    )  # fmt: skip
    lab.play(proc, script)
    (attempt,) = proc.attempts
    assert attempt.exit is not None
    assert not attempt.exit.stalled
    assert not lab.survivors()


@pytest.mark.slow
def test_what_another_start_may_mend_is_started_again(lab: Lab) -> None:
    def launch(endpoint: Endpoint, number: int) -> LaunchSpec:
        first = ("--ready-after", "600", "--print", "port taken") if number == 1 else ()
        return lab.spec(
            endpoint, *first, hopeless="port taken", diagnose=told, stall_timeout_s=None
        )

    async def script(proc: SupervisedProcess) -> None:
        await proc.ensure_ready()

    proc = lab.process(launch=launch)
    lab.play(proc, script)
    assert len(proc.attempts) == 2
