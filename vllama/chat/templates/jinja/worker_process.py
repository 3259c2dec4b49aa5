"""The server's end of one worker."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from vllama.base import executors
from vllama.base.errors import BadRequest, TemplateRefused, TemplateTooDeep, VllamaError
from vllama.chat.templates.jinja.wire import HEAD, JOB, Outcome, text_limit

PROGRAM = Path(__file__).with_name("worker.py")
PASSED_ON = ("TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""What a worker needs of the environment: the local time zone, and where Python's libraries are."""
DEADLINE_S = 10.0
"""For one job by the clock, if its limit of processor time does not end it before."""
START_LIMIT_S = 30.0


class TooCostly(Exception):
    """A job broke a limit; the text says which one."""


class Worker:
    """The server's end of one worker."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self.idle_since = 0.0
        self.ended = False

    @classmethod
    async def start(cls, environ: Mapping[str, str]) -> Self:
        """Start one and wait until it is ready. Raises VllamaError."""
        try:
            ours, theirs = socket.socketpair()
            spawning = Spawning(theirs, environ)
            try:
                process = await executors.upkeep.run(spawning.run)
                worker = cls(process, *await asyncio.open_unix_connection(sock=ours))
            except BaseException:
                ours.close()
                spawning.abandon()
                raise
        except OSError as error:
            raise VllamaError(f"cannot start a worker process: {error}") from None
        ready = False
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await worker._reader.readexactly(HEAD.size)
            ready = True
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            raise VllamaError(
                "cannot start a worker process: it does not become ready",
                hint="see the server's log",
            ) from None
        finally:
            if not ready:
                worker.end()
        return worker

    @property
    def lives(self) -> bool:
        """True if it accepts jobs, as far as is known."""
        return not self.ended and not self._reader.at_eof()

    async def ask(self, job: bytes, cpu_s: float) -> str:
        """Run one job. Raises BadRequest, TooCostly; may end the worker."""
        ends = True
        try:
            async with asyncio.timeout(DEADLINE_S):
                self._writer.write(JOB.pack(cpu_s, len(job)) + job)
                kind, leaves, length = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                if length > text_limit(len(job)):
                    raise TooCostly("it exceeded the limits of its process")
                text = await self._reader.readexactly(length)
            ends = leaves  # all of the answer has been read
        except TimeoutError:
            raise TooCostly(f"it took more than {DEADLINE_S:g} s") from None
        except (OSError, asyncio.IncompleteReadError):
            code = await executors.upkeep.run(self._process.wait)
            raise TooCostly(cause(code, cpu_s)) from None
        finally:
            if ends:
                self.end()
        return result_of(Outcome(kind), text.decode())

    def end(self) -> None:
        """Kill it; what is left to do happens in a thread."""
        self.ended = True
        self._writer.transport.abort()
        self._process.kill()
        executors.upkeep.start(self._process.wait)


class Spawning:
    """The start of a process in a thread, whose result the server may no longer want.

    `end` is the worker's end of the socket, which is closed here as soon as the process has it.
    """

    def __init__(self, end: socket.socket, environ: Mapping[str, str]) -> None:
        self._end, self._environ = end, environ
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> subprocess.Popen[bytes]:
        """Start the process. Raises OSError, also if it is not wanted any more."""
        with self._lock, self._end:
            if self._is_abandoned:
                raise OSError("the request was canceled")
            self._process = spawn(self._end, self._environ)
            return self._process

    def abandon(self) -> None:
        """Stop the process, whether it has been started or will be."""
        self._is_abandoned = True
        executors.upkeep.start(self._abandon)

    def _abandon(self) -> None:
        with self._lock:
            self._end.close()
            if self._process is not None:
                self._process.kill()
                self._process.wait()


def spawn(end: socket.socket, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a worker at its end of a socket, away from the signals of the server's terminal."""
    paths = os.pathsep.join(path for path in sys.path if path)
    passed_on = {name: environ[name] for name in PASSED_ON if name in environ}
    return subprocess.Popen(
        [sys.executable, "-P", "-s", "-S", str(PROGRAM)],
        stdin=end.fileno(),
        stdout=subprocess.DEVNULL,
        env={**passed_on, "PYTHONPATH": paths},
        start_new_session=True,
    )


def result_of(verdict: Outcome, text: str) -> str:
    """Return the result of a job. Raises BadRequest and its kinds, TooCostly."""
    match verdict:
        case Outcome.DONE:
            return text
        case Outcome.FAILED:
            raise BadRequest(text)
        case Outcome.REFUSED:
            raise TemplateRefused(text)
        case Outcome.DEEP:
            raise TemplateTooDeep(text)
        case Outcome.COSTLY:
            raise TooCostly(text)


def cause(code: int, cpu_s: float) -> str:
    """Say why a worker has ended in the middle of a job, by its exit code."""
    if code == -signal.SIGPROF:
        return f"it used more than {cpu_s:.1f} s of CPU time"
    return f"it ended the process that worked on it (exit code {code})"
