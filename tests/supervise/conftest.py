"""What the tests of supervision share: launches of the fake engine, and a check for survivors."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from vllama.base.clock import Clock, RealClock
from vllama.supervise.backoff import RestartPolicy
from vllama.supervise.spec import Endpoint, Grace, HttpProbe, LaunchSpec
from vllama.supervise.supervisor import SupervisedProcess

ENGINE = Path(__file__).parents[1] / "fake_engine" / "engine.py"
ENV = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
PROBE = HttpProbe(path="/health", verify_path="/v1/models", interval_s=0.02)
SHORT = Grace(term_s=0.1, second_term_s=0.1, kill_s=20.0)
LIMIT_S = 240.0


def survivors(marker: Path) -> list[psutil.Process]:
    """Return the processes with `marker` in their command line."""
    found = []
    for proc in psutil.process_iter():
        try:
            if any(str(marker) in part for part in proc.cmdline()):
                found.append(proc)
        except psutil.Error:
            continue
    return found


def eventually(condition: Callable[[], Any]) -> Any:
    """Wait until `condition` is true and return its value; fail after the limit."""
    deadline = time.monotonic() + LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, "has not happened"
        time.sleep(0.02)
    return value


async def until(condition: Callable[[], Any]) -> Any:
    """Wait in a loop until `condition` is true and return its value."""
    async with asyncio.timeout(LIMIT_S):
        while not (value := condition()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return value


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test if a process that it started is still there; end it."""
    if "tmp_path" not in request.fixturenames:  # then it has nothing to mark a process by
        yield
        return
    tmp_path: Path = request.getfixturevalue("tmp_path")
    yield
    left = survivors(tmp_path)
    for proc in left:
        proc.send_signal(signal.SIGKILL)
    psutil.wait_procs(left, timeout=240)
    assert not left, f"processes left behind: {left}"


class Lab:
    """Makes launches and supervised processes whose traces lie in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pids_path = folder / "pids"
        self.run_dir = folder / "run"
        self.endpoints: list[Endpoint] = []
        self.progress: list[str] = []

    def argv(self, *flags: str, port: int = 0) -> tuple[str, ...]:
        """Return the command line of a fake engine."""
        program = (sys.executable, "-I", "-S", str(ENGINE))
        return (*program, "--port", str(port), "--pids", str(self.pids_path), *flags)

    def probe(self, **changes: Any) -> HttpProbe:
        """Return the fake engine's probe."""
        return replace(PROBE, **changes)

    def spec(self, endpoint: Endpoint, *flags: str, **changes: Any) -> LaunchSpec:
        """Return the launch of a fake engine."""
        key = ("--api-key", endpoint.api_key) if endpoint.api_key else ()
        spec = LaunchSpec(
            name="fake",
            argv=self.argv(*key, *flags, port=endpoint.port),
            env=ENV,
            endpoint=endpoint,
            probe=PROBE,
            grace=SHORT,
            stall_timeout_s=LIMIT_S,
        )
        return replace(spec, **changes)

    def process(
        self,
        *flags: str,
        launch: Callable[[Endpoint, int], LaunchSpec] | None = None,
        policy: RestartPolicy | None = None,
        clock: Clock | None = None,
        **changes: Any,
    ) -> SupervisedProcess:
        """Return a supervised fake engine; `launch` gets the number of the attempt as well."""

        def make(endpoint: Endpoint) -> LaunchSpec:
            self.endpoints.append(endpoint)
            if launch is not None:
                return launch(endpoint, len(self.endpoints))
            return self.spec(endpoint, *flags, **changes)

        return SupervisedProcess(
            name="fake",
            launch=make,
            policy=policy or RestartPolicy(delays_s=(0.0, 0.0, 0.0)),
            log_dir=self.folder / "logs",
            clock=clock or RealClock(),
            run_dir=self.run_dir,
            on_progress=self.on_progress,
        )

    def on_progress(self, line: str) -> None:
        """Keep a line of progress."""
        self.progress.append(line)

    def pids(self) -> dict[str, int]:
        """Return the newest pid of every kind that engines wrote down."""
        if not self.pids_path.exists():
            return {}
        pairs = (line.split() for line in self.pids_path.read_text().splitlines())
        return {kind: int(pid) for kind, pid in pairs}

    def survivors(self) -> list[psutil.Process]:
        """Return what still runs."""
        return survivors(self.folder)

    def play(
        self,
        proc: SupervisedProcess,
        script: Callable[[SupervisedProcess], Awaitable[None]],
    ) -> None:
        """Run `proc` by an owner, `script` beside it, and then stop."""

        async def main() -> None:
            async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
                group.create_task(proc.run())
                await script(proc)
                await proc.stop()

        asyncio.run(main())


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Return a laboratory in the test's folder."""
    return Lab(tmp_path)
