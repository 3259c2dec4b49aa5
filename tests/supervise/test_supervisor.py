"""The state machine against the fake engine: readiness, restarts, failures, stops."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.loops import in_loop
from tests.manual_clock import ManualClock
from tests.supervise.conftest import LIMIT_S, Lab, until
from vllama.base.errors import Busy, CoolingDown, EngineCrashed, EngineMissing, EngineStartFailed
from vllama.supervise.backoff import RestartPolicy
from vllama.supervise.probe import http_status
from vllama.supervise.spec import (
    Diagnosis,
    Endpoint,
    Exit,
    Fault,
    Grace,
    LaunchFailed,
    LaunchSpec,
    State,
    diagnose_plainly,
)
from vllama.supervise.supervisor import SupervisedProcess

pytestmark = pytest.mark.slow

KIN = ("--spawn-child", "--spawn-setsid", "--spawn-daemon", "--ignore-term")


def kill_engine(proc: SupervisedProcess) -> None:
    assert proc.pid is not None
    os.kill(proc.pid, signal.SIGKILL)


async def wait_not_ready(proc: SupervisedProcess, endpoint: Endpoint | None = None) -> None:
    """Wait until the process no longer serves at `endpoint`; every restart has another one."""
    endpoint = endpoint or proc.endpoint
    await until(lambda: endpoint is None or proc.endpoint != endpoint)


def test_ready_serves_with_its_own_key_and_stops(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        endpoint = await proc.ensure_ready()
        assert proc.state is State.READY
        assert endpoint == proc.endpoint == lab.endpoints[0]
        assert endpoint.api_key
        key = endpoint.api_key
        assert await http_status(endpoint, "/v1/models", timeout_s=9, api_key=key) == 200
        assert await http_status(endpoint, "/v1/models", timeout_s=9) == 401
        assert proc.pid == lab.pids()["engine"]
        assert proc.measure_footprint().ram_bytes > 1_000_000
        assert list(lab.run_dir.glob("*.json"))

    proc = lab.process()
    assert proc.state is State.STOPPED
    lab.play(proc, script)
    assert proc.state is State.STOPPED
    assert proc.endpoint is None and proc.pid is None
    assert proc.measure_footprint().ram_bytes == 0
    (attempt,) = proc.attempts
    assert attempt.exit is not None and attempt.exit.code == -signal.SIGTERM
    assert attempt.diagnosis is None
    assert attempt.ready_s is not None and attempt.ended_s is not None
    assert f"serving on 127.0.0.1:{lab.endpoints[0].port}" in attempt.exit.output
    assert not list(lab.run_dir.glob("*"))


def test_ensure_ready_of_a_ready_process_does_not_suspend(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        await proc.ensure_ready()
        with pytest.raises(StopIteration) as stopped:
            proc.ensure_ready().send(None)
        assert stopped.value.value == proc.endpoint

    lab.play(lab.process(), script)


def test_two_callers_join_one_start(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        first, second = await asyncio.gather(proc.ensure_ready(), proc.ensure_ready())
        assert first == second
        assert len(proc.attempts) == 1

    lab.play(lab.process(), script)


def test_early_exit_fails_at_once_with_last_lines_and_cause(lab: Lab) -> None:
    def diagnose(exit_: Exit) -> Diagnosis:
        assert exit_.first_error == "ValueError: no such quantization"
        return Diagnosis(cause=f"{exit_.output[0]} ({exit_.code})", hint="Take another file.")

    async def script(proc: SupervisedProcess) -> None:
        for _ in range(2):
            with pytest.raises(EngineStartFailed) as failed:
                await proc.ensure_ready()
            assert failed.value.message == "cannot start fake: hello (3)"
            assert failed.value.hint == "Take another file."

    lines = ("--print", "hello", "--print", "ValueError: no such quantization", "--print", "bye")
    proc = lab.process(
        "--exit-before-ready", "--exit-code", "3", *lines, diagnose=diagnose, grace=Grace()
    )
    lab.play(proc, script)
    assert proc.state is State.FAILED
    (attempt,) = proc.attempts
    assert attempt.exit is not None and attempt.exit.code == 3
    assert attempt.exit.output == ("hello", "ValueError: no such quantization", "bye")
    assert proc.output().tail(1) == ("bye",)
    assert attempt.log_path.read_text().endswith("bye\n")


class RunsOnceSeen(ManualClock):
    """A clock that moves with every look at it, but only once a line was printed.

    So a slow machine that takes long to start Python is not taken for a stall.
    """

    def __init__(self, lab: Lab, text: str) -> None:
        super().__init__()
        self._lab, self._text = lab, text

    def monotonic(self) -> float:
        if any(self._text in line for line in self._lab.progress):
            self.advance(1.0)
        return super().monotonic()


def test_stall_kills_the_tree_and_tells_the_last_line(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        with pytest.raises(EngineStartFailed, match=r"no progress .*loading weights"):
            await proc.ensure_ready()

    flags = ("--ready-after", "600", "--print", "loading weights", *KIN)
    proc = lab.process(*flags, stall_timeout_s=3.0, clock=RunsOnceSeen(lab, "loading weights"))
    lab.play(proc, script)
    assert proc.state is State.FAILED
    (attempt,) = proc.attempts
    assert attempt.exit is not None and attempt.exit.stalled
    assert not lab.survivors()


def test_hanging_health_is_a_stall(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        with pytest.raises(EngineStartFailed, match="no progress"):
            await proc.ensure_ready()

    lab.play(
        lab.process("--hang-health", stall_timeout_s=0.3, probe=lab.probe(timeout_s=0.2)), script
    )


def test_progress_extends_the_stall_timeout(lab: Lab) -> None:
    # Every line takes nine tenths of the stall timeout.
    clock = ManualClock()
    lab.on_progress = lambda line: (lab.progress.append(line), clock.advance(9.0))  # type: ignore

    async def script(proc: SupervisedProcess) -> None:
        await proc.ensure_ready()

    talk = ("--chatter-interval", "0.02", "--chatter-cr")
    proc = lab.process("--ready-after", "0.5", *talk, stall_timeout_s=10.0, clock=clock)
    lab.play(proc, script)
    assert sum(line.startswith("loading step") for line in lab.progress) > 1


def test_503_until_ready(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        endpoint = await proc.ensure_ready()
        assert await http_status(endpoint, "/health", timeout_s=9) == 200

    lab.play(lab.process("--bind-early", "--ready-after", "0.3"), script)


@pytest.mark.parametrize("code", ["0", "7"])
def test_a_crash_while_ready_restarts_on_a_new_port(lab: Lab, code: str) -> None:
    def launch(endpoint: Endpoint, attempt: int) -> LaunchSpec:
        return lab.spec(endpoint, "--spawn-setsid", "--exit-code", code)

    async def script(proc: SupervisedProcess) -> None:
        first = await proc.ensure_ready()
        assert await http_status(first, "/__exit", timeout_s=LIMIT_S) is None
        await wait_not_ready(proc, first)
        assert proc.state is not State.READY or proc.endpoint != first
        second = await proc.ensure_ready()
        assert (first.port, first.api_key) != (second.port, second.api_key)
        await wait_not_ready(proc, first)  # at once: it is the second now
        assert proc.last_diagnosis is not None
        assert f"exit code {code}" in proc.last_diagnosis.cause
        assert [a.number for a in proc.attempts] == [1, 2]

    lab.play(lab.process(launch=launch), script)


def test_one_that_hangs_is_killed_and_restarted_for_that_reason(lab: Lab) -> None:
    def launch(endpoint: Endpoint, attempt: int) -> LaunchSpec:
        return lab.spec(endpoint, "--ignore-term", "--spawn-setsid")

    async def script(proc: SupervisedProcess) -> None:
        first = await proc.ensure_ready()
        assert await proc.check_health(first, LIMIT_S)
        proc.declare_unhealthy(Endpoint(port=1), "somebody else's")
        assert proc.endpoint == first and proc.find_unhealthy_cause(first) is None
        proc.declare_unhealthy(first, "it hangs")
        proc.declare_unhealthy(first, "it still hangs")
        assert proc.find_unhealthy_cause(first) == "it hangs"
        await wait_not_ready(proc, first)
        second = await proc.ensure_ready()
        assert second.port != first.port
        assert not await proc.check_health(first, LIMIT_S)
        assert proc.last_diagnosis is not None
        assert proc.last_diagnosis.cause == "it hangs"
        assert proc.find_unhealthy_cause(first) is proc.find_unhealthy_cause(second) is None

    lab.play(lab.process(launch=launch), script)


def test_whoever_listens_hears_of_every_change(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        states: list[State] = []
        proc.subscribe(lambda: states.append(proc.state))
        await proc.ensure_ready()
        await proc.stop()
        assert states[-2:] == [State.STOPPING, State.STOPPED]
        assert State.READY in states

    lab.play(lab.process(), script)


def test_the_budget_used_up_is_a_failure_for_good(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        for _ in range(3):
            endpoint = await proc.ensure_ready()
            kill_engine(proc)
            await wait_not_ready(proc, endpoint)
        for _ in range(2):
            with pytest.raises(EngineCrashed, match="cannot keep fake running: killed by signal 9"):
                await proc.ensure_ready()
        assert len(proc.attempts) == 3

    policy = RestartPolicy(delays_s=(0.0, 0.0), healthy_after_s=999)
    proc = lab.process(policy=policy)
    lab.play(proc, script)
    assert proc.state is State.FAILED


def test_a_long_backoff_answers_at_once_and_stop_ends_it(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        endpoint = await proc.ensure_ready()
        kill_engine(proc)
        await wait_not_ready(proc, endpoint)
        assert proc.state is State.BACKOFF
        with pytest.raises(CoolingDown) as cooling:
            await proc.ensure_ready()
        assert 2.5 < cooling.value.retry_after_s <= 500
        assert cooling.value.message == "cannot keep fake running: killed by signal 9"

    proc = lab.process(policy=RestartPolicy(delays_s=(500.0,)))
    lab.play(proc, script)
    assert proc.state is State.STOPPED


def test_a_short_backoff_is_waited_out(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        first = await proc.ensure_ready()
        kill_engine(proc)
        await wait_not_ready(proc)
        assert proc.state is State.BACKOFF
        assert await proc.ensure_ready() != first

    lab.play(lab.process(policy=RestartPolicy(delays_s=(0.2,))), script)


def test_a_lost_port_race_is_tried_again(lab: Lab) -> None:
    def diagnose(exit_: Exit) -> Diagnosis:
        taken = any("Address already in use" in line for line in exit_.output)
        return Diagnosis(cause="port taken", retryable=taken)

    with socket.create_server(("127.0.0.1", 0)) as stranger:
        taken = stranger.getsockname()[1]

        def launch(endpoint: Endpoint, attempt: int) -> LaunchSpec:
            spec = lab.spec(endpoint, diagnose=diagnose)
            if attempt > 2:
                return spec
            argv = tuple(str(taken) if x == str(endpoint.port) else x for x in spec.argv)
            return lab.spec(endpoint, diagnose=diagnose, argv=argv)

        async def script(proc: SupervisedProcess) -> None:
            assert await proc.ensure_ready() == lab.endpoints[2]

        lab.play(lab.process(launch=launch), script)


def test_start_retries_are_limited(lab: Lab) -> None:
    def diagnose(exit_: Exit) -> Diagnosis:
        return Diagnosis(cause="bad luck", retryable=True)

    async def script(proc: SupervisedProcess) -> None:
        with pytest.raises(EngineStartFailed, match="bad luck"):
            await proc.ensure_ready()

    policy = RestartPolicy(start_retries=2)
    proc = lab.process("--exit-before-ready", diagnose=diagnose, policy=policy)
    lab.play(proc, script)
    assert len(proc.attempts) == 3


def test_a_stranger_on_the_port_is_not_taken_for_the_engine(lab: Lab) -> None:
    # The stranger answers 200 to anything without looking at the key's value, but not as ours.
    def launch(endpoint: Endpoint, attempt: int) -> LaunchSpec:
        other = Endpoint(port=endpoint.port, api_key="another key")
        spec = lab.spec(other, stall_timeout_s=0.5)
        return lab.spec(endpoint, argv=spec.argv, stall_timeout_s=0.5)

    async def script(proc: SupervisedProcess) -> None:
        with pytest.raises(EngineStartFailed, match="no progress"):
            await proc.ensure_ready()

    lab.play(lab.process(launch=launch), script)


def test_missing_executable_is_a_clean_error(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        with pytest.raises(EngineStartFailed) as failed:
            await proc.ensure_ready()
        text = "cannot start fake: cannot run '/no/such/engine': No such file or directory"
        assert failed.value.message == text
        assert failed.value.hint

    proc = lab.process(argv=("/no/such/engine", str(lab.folder)))
    lab.play(proc, script)
    assert proc.state is State.FAILED
    assert len(proc.attempts) == 1


def test_an_error_of_the_launch_keeps_its_hint(lab: Lab) -> None:
    def launch(endpoint: Endpoint, attempt: int) -> LaunchSpec:
        raise EngineMissing("fake is not installed", hint="Install it.")

    async def script(proc: SupervisedProcess) -> None:
        with pytest.raises(EngineStartFailed, match="fake is not installed") as failed:
            await proc.ensure_ready()
        assert failed.value.hint == "Install it."

    lab.play(lab.process(launch=launch), script)


def test_an_error_of_the_launch_tells_what_may_avoid_it(lab: Lab) -> None:
    def launch(endpoint: Endpoint, attempt: int) -> LaunchSpec:
        error = LaunchFailed("no engine for it")
        error.fault = Fault.MISMATCH
        raise error

    async def script(proc: SupervisedProcess) -> None:
        with pytest.raises(EngineStartFailed, match="no engine for it"):
            await proc.ensure_ready()
        assert proc.last_diagnosis.fault is Fault.MISMATCH

    lab.play(lab.process(launch=launch), script)


@in_loop
async def test_a_bug_in_the_launch_is_told_to_owner_and_callers(lab: Lab) -> None:
    def launch(endpoint: Endpoint, attempt: int) -> LaunchSpec:
        raise ZeroDivisionError("a bug")

    proc = lab.process(launch=launch)
    with pytest.raises(ZeroDivisionError):
        await proc.run()
    with pytest.raises(EngineStartFailed, match="a bug"):
        await proc.ensure_ready()
    with pytest.raises(RuntimeError):
        await proc.run()


def test_stop_of_a_tree_that_ignores_term(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        await proc.ensure_ready()
        await until(lambda: len(lab.pids()) == 4)
        await asyncio.gather(proc.stop(), proc.stop())
        assert not lab.survivors()

    lab.play(lab.process(*KIN), script)


def test_stop_with_zero_grace_cuts_a_long_one_short(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        await proc.ensure_ready()
        slow = asyncio.ensure_future(proc.stop())
        await until(lambda: proc.state is State.STOPPING)
        await proc.stop(Grace(term_s=0.0, second_term_s=0.0))
        await slow

    lab.play(lab.process(*KIN, grace=Grace(term_s=900, second_term_s=900)), script)


def test_stop_while_starting(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        waiter = asyncio.ensure_future(proc.ensure_ready())
        await until(lambda: "engine" in lab.pids())
        await proc.stop()
        with pytest.raises(Busy, match="stopped"):
            await waiter

    proc = lab.process("--ready-after", "600", "--ignore-term")
    lab.play(proc, script)
    assert proc.state is State.STOPPED


@in_loop
async def test_stop_before_run(lab: Lab) -> None:
    proc = lab.process()
    await proc.stop()
    await proc.run()
    with pytest.raises(Busy):
        await proc.ensure_ready()
    await proc.stop()
    assert proc.state is State.STOPPED and not proc.attempts


@pytest.mark.parametrize("moment", ["at once", "starting", "ready"])
def test_cancelling_run_stops_the_tree(lab: Lab, moment: str) -> None:
    async def main() -> None:
        proc = lab.process(*KIN, "--ready-after", "600" if moment == "starting" else "0")
        owner = asyncio.ensure_future(proc.run())
        if moment == "ready":
            await proc.ensure_ready()
        elif moment == "starting":
            await until(lambda: len(lab.pids()) == 4)
        else:
            await until(lambda: proc.state is State.STARTING)
        owner.cancel()
        await asyncio.sleep(0)
        owner.cancel()  # a second one does not cut the clean-up short either
        with suppress(asyncio.CancelledError):
            await owner
        assert owner.cancelled()
        assert proc.state is State.STOPPED
        assert not lab.survivors()
        with pytest.raises(Busy):
            await proc.ensure_ready()

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_a_crash_ends_what_the_engine_left_behind_before_the_restart(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        await proc.ensure_ready()
        await until(lambda: len(lab.pids()) == 4)
        old = [psutil.Process(pid) for pid in lab.pids().values()]
        kill_engine(proc)
        await wait_not_ready(proc)
        await proc.ensure_ready()
        assert not any(p.is_running() for p in old)

    lab.play(lab.process(*KIN), script)


def test_a_killed_guard_is_a_crash_too_and_leaves_nothing(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        first = await proc.ensure_ready()
        await until(lambda: len(lab.pids()) == 4)
        proc.measure_footprint()  # takes a snapshot of them as well
        old = [psutil.Process(pid) for pid in lab.pids().values()]
        guard = psutil.Process(proc.pid).parent()
        assert guard is not None
        guard.kill()
        await wait_not_ready(proc, first)
        await proc.ensure_ready()
        assert not any(p.is_running() and p.status() != "zombie" for p in old)

    lab.play(lab.process(*KIN), script)


def test_a_line_that_says_that_it_has_failed_for_good_is_a_crash(lab: Lab) -> None:
    """Its process goes on, and nobody has asked it anything."""

    def diagnose(ended: Exit) -> Diagnosis:
        return Diagnosis(cause=next(line for line in ended.output if "color" in line))

    async def script(proc: SupervisedProcess) -> None:
        first = await proc.ensure_ready()
        assert await http_status(first, "/__core_dies", timeout_s=LIMIT_S) == 200
        await wait_not_ready(proc, first)
        assert await proc.ensure_ready() != first
        (crashed, _) = proc.attempts
        assert crashed.diagnosis and crashed.diagnosis.cause == "core: no such color: mauve"

    lab.play(lab.process(fatal="no such color", diagnose=diagnose), script)


def test_it_works_on_uvloop(lab: Lab) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        proc = lab.process(*KIN)
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            group.create_task(proc.run())
            first = await proc.ensure_ready()
            kill_engine(proc)
            await wait_not_ready(proc, first)
            await proc.ensure_ready()
            await proc.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_an_unwritable_log_folder_is_a_failed_start(lab: Lab) -> None:
    (lab.folder / "logs").write_text("a file where the folder should be")

    async def script(proc: SupervisedProcess) -> None:
        with pytest.raises(EngineStartFailed, match="logs"):
            await proc.ensure_ready()

    lab.play(lab.process(), script)


def test_plain_diagnosis() -> None:
    assert diagnose_plainly(Exit(code=1, output=("a", "b ", ""))).cause == "exit code 1: b"
    assert diagnose_plainly(Exit(code=-9)).cause == "killed by signal 9"
    assert "no output" in diagnose_plainly(Exit(code=None, stalled=True)).cause


def test_the_log_folder_is_named_after_the_process(lab: Lab, tmp_path: Path) -> None:
    async def script(proc: SupervisedProcess) -> None:
        await proc.ensure_ready()

    lab.play(lab.process(), script)
    assert len(list((tmp_path / "logs" / "fake").glob("*-0001.log"))) == 1
