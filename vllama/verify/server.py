"""A private `vllama serve` for one engine: started, asked, and ended with all that it started.

It runs under the guard that engines have (`vllama.supervise.guard`), so that nothing outlives this
process, and listens on a free port of loopback. What it prints is its voice: how far a load is,
that it is ready, or what is wrong.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from vllama.errors import VerifyFailed
from vllama.supervise.guard import Command, Guard, GuardFailed
from vllama.supervise.spec import Grace

GRACE = Grace(term_s=15.0, second_term_s=10.0)
SPAWN_LIMIT_S = 30.0
STOP_LIMIT_S = 45.0
LOOK_EVERY_S = 0.1
LISTENS = re.compile(r"listening on (http://\S+)")
READY = " is ready"
"""How `opening.serve` says where it listens, and that the model of `--model` is loaded."""


class PrivateServer:
    """A server of one model with one engine; a context manager, ready once it is entered.

    `on_line` gets each line that it prints while it starts. Entering raises VerifyFailed, with
    the server's own words, where it ends before it is ready.
    """

    def __init__(
        self,
        engine: str,
        model: str,
        *,
        context: int,
        environ: Mapping[str, str],
        on_line: Callable[[str], object],
    ) -> None:
        self.url = ""
        self._engine = engine
        self._on_line = on_line
        self._arguments = (
            *("--model", model, "--engine", engine, "--ctx", str(context)),
            *("--host", "127.0.0.1", "--port", "0", "--log-format", "text"),
            # what was named, or nothing: another quantisation would answer another question
            "--strict",
            # one request after another, by one process, that stays until the last
            *("--parallel", "1", "--replicas", "1", "--keep-alive=-1"),
        )
        self._environ = environ
        self._pid = 0
        self._ended = threading.Event()
        self._code: int | None = None
        self._stack = ExitStack()
        self._said: list[str] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = tempfile.TemporaryDirectory(prefix="vllama-verify-")
            log = Path(stack.enter_context(folder)) / "serve.log"
            log.touch()
            try:
                self._start(stack, log)
            except GuardFailed as error:
                raise VerifyFailed(f"cannot start a server for {self._engine}: {error}") from None
            self._wait_ready(log)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack, log: Path) -> None:
        command = Command(
            argv=(sys.executable, "-P", "-m", "vllama", "serve", *self._arguments),
            env=self._environ,
            log_path=log,
            cwd=None,
            grace=GRACE,
        )
        guard = stack.enter_context(Guard(command))
        self._pid = guard.read_pid(SPAWN_LIMIT_S)
        waiter = threading.Thread(target=self._wait_end, args=(guard,), name="verify-server")
        waiter.start()
        stack.callback(waiter.join)
        stack.callback(self._stop)

    def _wait_end(self, guard: Guard) -> None:
        self._code = guard.read_exit()
        self._ended.set()

    def _stop(self) -> None:
        """End it in order; the guard, which is closed next, sees to the rest."""
        if not self._ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
            self._ended.wait(STOP_LIMIT_S)

    def _wait_ready(self, log: Path) -> None:
        with log.open(encoding="utf-8", errors="replace") as lines:
            rest = ""
            while True:
                ended = self._ended.wait(LOOK_EVERY_S)
                *whole, rest = (rest + lines.read()).split("\n")
                for line in whole:
                    self._hear(line)
                    if line.endswith(READY) and self.url:
                        return
                if ended:
                    raise self._failure()

    def _hear(self, line: str) -> None:
        if found := LISTENS.match(line):
            self.url = found[1]
        self._said.append(line)
        self._on_line(line)

    def _failure(self) -> VerifyFailed:
        """Make the error of a server that ended before it was ready."""
        told = {
            name: line.removeprefix(name)
            for name in ("Error: ", "Hint: ")
            for line in self._said
            if line.startswith(name)
        }
        last = next((line for line in reversed(self._said) if line.strip()), "it said nothing")
        cause = told.get("Error: ") or f"exit code {self._code}: {last}"
        return VerifyFailed(f"cannot verify with {self._engine}: {cause}", hint=told.get("Hint: "))
