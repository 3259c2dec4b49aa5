"""The chat templates of model files, rendered beside the server in processes with limits.

One worker stays and is asked for everything; another is started only for a template that is wanted
while all are busy. A template is rendered for one request at a time: it takes a fraction of a
millisecond, and one that takes all it may get keeps one worker, not all of them. Such a template is
then refused for a while, so that those who wait for it are told at once (docs/decisions/0020).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Self
from weakref import WeakValueDictionary

import msgspec

from vllama.errors import BadRequest, TemplateRefused, TemplateTooCostly, VllamaError
from vllama.rendering.wire import (
    CPU_S,
    HEAD,
    LENGTH,
    MEMORY_BYTES,
    MIB,
    Verdict,
    text_limit,
)

PROGRAM = Path(__file__).with_name("worker.py")
PASSED_ON = ("TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""What a worker needs of the environment: the local time zone, and where Python's libraries are."""
MAX_WORKERS = 4
SPARE_S = 60.0
"""How long a worker beyond the first stays without work."""
REFUSED_S = 60.0
DEADLINE_S = 10.0
"""For one rendering by the clock, if the limit of processor time does not end it before."""
START_LIMIT_S = 30.0
HINT = "give the model a template of your own: a Modelfile with TEMPLATE"


class Renderer:
    """Renders with workers that it starts when they are needed. To be used in one running loop.

    `environ` is the server's own; little of it is passed on.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._idle: list[Worker] = []
        self._slots = asyncio.Semaphore(MAX_WORKERS)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._refused: dict[str, Refusal] = {}
        self._running: set[asyncio.Task[str]] = set()

    async def render(self, source: str, variables: Mapping[str, object], now: float) -> str:
        """Return the prompt that the template `source` makes of `variables`.

        Raises BadRequest with the template's words, TemplateTooCostly, and VllamaError if no worker
        can be started.
        """
        # it goes on if the client leaves: the worker would have to be ended otherwise
        return await asyncio.shield(self._task(self._rendered(source, variables, now)))

    def prepare(self, source: str) -> None:
        """Have a template compiled before the first request waits for it."""
        self._task(self._rendered(source, None, None))  # each request is told what is wrong

    def close(self) -> None:
        """End all workers."""
        for task in self._running:
            task.cancel()
        while self._idle:
            self._idle.pop().end()

    def _task(self, work: Coroutine[Any, Any, str]) -> asyncio.Task[str]:
        task = asyncio.create_task(work, name="render")
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[str]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # it is known, even if nobody waits

    async def _rendered(
        self, source: str, variables: Mapping[str, object] | None, now: float | None
    ) -> str:
        job = encoded(source, variables, now)
        turn = self._turns.setdefault(source, asyncio.Lock())
        async with turn:
            self._check(source)
            async with self._slots:
                try:
                    return await self._asked(job)
                except TemplateTooCostly as error:
                    until = asyncio.get_running_loop().time() + REFUSED_S
                    self._refused[source] = Refusal(until, error.message)
                    raise

    def _check(self, source: str) -> None:
        """Raise TemplateTooCostly for a template that was so a short while ago."""
        now = asyncio.get_running_loop().time()
        self._refused = {key: one for key, one in self._refused.items() if one.until > now}
        if refusal := self._refused.get(source):
            raise TemplateTooCostly(refusal.message, hint=HINT)

    async def _asked(self, job: bytes) -> str:
        worker = self._taken() or await Worker.started(self._environ)
        try:
            return await worker.ask(job)
        finally:
            if not worker.ended:
                self._put_back(worker)

    def _taken(self) -> Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.lives:
                return worker
            worker.end()
        return None

    def _put_back(self, worker: Worker) -> None:
        """Keep a worker; end those that had nothing to do for long while this one had."""
        worker.idle_since = asyncio.get_running_loop().time()
        self._idle.append(worker)
        while worker.idle_since - self._idle[0].idle_since > SPARE_S:
            self._idle.pop(0).end()


class Refusal(msgspec.Struct, frozen=True):
    """Until when a template is not rendered, by the loop's clock, and why."""

    until: float
    message: str


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
    async def started(cls, environ: Mapping[str, str]) -> Self:
        """Start one and wait until it is ready. Raises VllamaError."""
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                process = await asyncio.to_thread(spawn, theirs, environ)
            worker = cls(process, *await asyncio.open_unix_connection(sock=ours))
        except OSError as error:
            raise VllamaError(f"cannot render the model's chat template: {error}") from None
        ready = False
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await worker._reader.readexactly(HEAD.size)
            ready = True
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            raise VllamaError(
                "cannot render the model's chat template: the process for it does not start",
                hint="see the server's log",
            ) from None
        finally:
            if not ready:
                worker.end()
        return worker

    @property
    def lives(self) -> bool:
        """Whether it can be asked, as far as is known."""
        return not self.ended and not self._reader.at_eof()

    async def ask(self, job: bytes) -> str:
        """Have a job done, alone. Raises BadRequest, TemplateTooCostly; may end the worker."""
        ends = True
        try:
            async with asyncio.timeout(DEADLINE_S):
                self._writer.write(LENGTH.pack(len(job)) + job)
                kind, leaves, length = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                if length > text_limit(len(job)):
                    raise too_costly("it made the process that rendered it break its limits")
                text = await self._reader.readexactly(length)
            ends = leaves  # all of the answer has been read
        except TimeoutError:
            raise too_costly(f"it took more than {DEADLINE_S:g} s") from None
        except (OSError, asyncio.IncompleteReadError):
            code = await asyncio.to_thread(self._process.wait)
            raise too_costly(cause(code)) from None
        finally:
            if ends:
                self.end()
        return prompt_of(Verdict(kind), text)

    def end(self) -> None:
        """Kill it; what is left to do happens in a thread."""
        self.ended = True
        self._writer.transport.abort()
        self._process.kill()
        asyncio.get_running_loop().run_in_executor(None, self._process.wait)


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


def encoded(source: str, variables: Mapping[str, object] | None, now: float | None) -> bytes:
    """Return a job. Raises BadRequest for what cannot be encoded (it came from the client)."""
    try:
        return msgspec.json.encode({"source": source, "variables": variables, "now": now})
    except (ValueError, OverflowError, RecursionError) as error:
        raise BadRequest(f"cannot encode the request: {error}") from None


def prompt_of(verdict: Verdict, text: bytes) -> str:
    """Return what was rendered. Raises BadRequest, TemplateRefused, TemplateTooCostly."""
    match verdict:
        case Verdict.RENDERED:
            return text.decode()
        case Verdict.UNREADABLE:
            raise BadRequest(f"cannot read the model's chat template: {text.decode()}")
        case Verdict.FAILED:
            raise BadRequest(f"cannot render the chat template: {text.decode()}")
        case Verdict.REFUSED:
            raise TemplateRefused(f"cannot render the chat template: {text.decode()}")
        case Verdict.MEMORY:
            raise too_costly(f"it took more than {MEMORY_BYTES // MIB} MiB of memory")


def cause(code: int) -> str:
    """Say why a worker has ended in the middle of a job, by its exit code."""
    if code == -signal.SIGXCPU:
        return f"it took more than {CPU_S} s of processor time"
    return f"it ended the process that rendered it (exit code {code})"


def too_costly(why: str) -> TemplateTooCostly:
    """Return the error of a template that broke a limit."""
    return TemplateTooCostly(f"cannot render the model's chat template: {why}", hint=HINT)
