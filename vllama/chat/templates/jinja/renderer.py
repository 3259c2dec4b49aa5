"""Chat templates, rendered beside the server in processes with limits.

They come from strangers, and a costly one delays no other (docs/decisions/0020). A template is
rendered for one request at a time, so that it holds one worker at most. Templates that have
rendered well have workers that the others cannot take. A template that reaches a limit is refused
for a while, so that those who wait for it are told at once.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from vllama.base.errors import BadRequest, QueueFull, TemplateTooCostly, TemplateTooDeep
from vllama.chat.templates.jinja.wire import MIB, render_template
from vllama.chat.templates.jinja.worker_process import TooCostly, Worker


class RenderLane:
    """Lets `most` jobs run at once; of the others the newest is next.

    A crowd of costly jobs that came before delays an ordinary one only until the first of them has
    reached its limit. Of more than `most_waiting` the oldest gets QueueFull.
    """

    def __init__(self, most: int, most_waiting: int = 500) -> None:
        self._free, self._most_waiting = most, most_waiting
        self._waiting: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> None:
        if self._free:
            self._free -= 1
            return
        if len(self._waiting) >= self._most_waiting:
            text = f"server busy, please try again: {self._most_waiting} jobs wait for a process"
            self._waiting.pop(0).set_exception(QueueFull(text))
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    async def __aexit__(self, *_: object) -> None:
        while self._waiting:
            turn = self._waiting.pop()
            if not turn.done():  # canceled, as all are when the server ends
                turn.set_result(None)
                return
        self._free += 1


CPU_S = 0.5
CPU_S_PER_MIB = 0.25
MAX_CPU_S = 2.0
"""Processor time of a template: more for a long conversation, but never more than this."""
SPARE_S = 60.0
"""How long a worker beyond the first stays without work."""
REFUSED_S = 60.0
KEPT_PROVEN = 1000
_USER = {"role": "user", "content": "Hi"}
_FIND = {"name": "find", "arguments": {"what": "x"}}
_TOOL = {"name": "find", "description": "Finds", "parameters": {"type": "object", "properties": {}}}
_CALL = {"id": "call00001", "type": "function", "function": _FIND}
_CALLS = [_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}]
_TURNS = [{"role": "system", "content": "Be brief."}, _USER, {"role": "assistant", "content": "A"}]
SAMPLES: Sequence[Mapping[str, object]] = (
    {"messages": [*_TURNS, _USER], "add_generation_prompt": True},
    {"messages": _CALLS, "tools": [{"type": "function", "function": _TOOL}]},
)
"""Conversations such as engines render while they start."""
Work = Callable[[], str]
"""Can be pickled: a function of a module, or a method, with its arguments."""
CANNOT = "cannot render the model's chat template"
HINT = "replace the template in the model's files, or choose another model"


class Renderer:
    """Works with processes that it starts when they are needed. To be used in one running loop.

    `environ` is the server's own; little of it is passed on.
    """

    name = "cpu"  # beside those of `executors`

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._idle: list[Worker] = []
        self._proven_lane, self._new_lane = RenderLane(2), RenderLane(2)
        self._turns: WeakValueDictionary[str, RenderLane] = WeakValueDictionary()
        self._proven: dict[str, None] = {}  # templates that have rendered well, the last one last
        self._refused: dict[str, tuple[float, str]] = {}  # until when, and why
        self._tasks: set[asyncio.Task[str]] = set()
        self._running = 0

    @property
    def running(self) -> int:
        """The number of jobs that have a worker."""
        return self._running

    @property
    def waiting(self) -> int:
        """The number of jobs that wait for one."""
        return len(self._tasks) - self._running

    async def render(self, source: str, variables: Mapping[str, object], now: float) -> str:
        """Return the prompt that the Jinja template `source` makes of `variables`.

        Raises as `run_template` does.
        """
        given = encode_value(msgspec.json.encode, variables)
        return await self.run_template(source, partial(render_template, source, given, now))

    async def run_template(self, source: str, work: Work) -> str:
        """Return the prompt that `work` makes with the template `source`.

        Raises BadRequest with the template's words, TemplateTooCostly, QueueFull, and VllamaError
        if no worker can be started.
        """
        # it goes on if the client leaves: the worker would have to be ended otherwise
        task = asyncio.create_task(self._render(source, work), name="render")
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    async def judge(self, source: str) -> None:
        """Render `SAMPLES`, before an engine without such limits does as it starts.

        Raises TemplateTooCostly, QueueFull, VllamaError.
        """
        for sample in SAMPLES:
            try:
                await self.render(source, sample, time.time())
            except TemplateTooDeep:  # an engine would go on until its stack ends
                raise TemplateTooCostly(f"{CANNOT}: it is nested too deeply", hint=HINT) from None
            except BadRequest:
                continue  # it may refuse a conversation, or not be one of Jinja
        self._check(source)

    def close(self) -> None:
        """End all workers."""
        for task in self._tasks:
            task.cancel()
        while self._idle:
            self._idle.pop().end()

    def _forget(self, task: asyncio.Task[str]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # it is known, even if nobody waits

    async def _render(self, source: str, work: Work) -> str:
        turn = self._turns.setdefault(source, RenderLane(1))
        async with turn:
            self._check(source)
            async with self._proven_lane if source in self._proven else self._new_lane:
                job = encode_value(pickle.dumps, work)
                try:
                    text = await self._ask_worker(job, cpu_limit(len(job)))
                except TooCostly as error:
                    self._proven.pop(source, None)
                    until = asyncio.get_running_loop().time() + REFUSED_S
                    why = f"{CANNOT}: {error}"
                    self._refused[source] = (until, why)
                    raise TemplateTooCostly(why, hint=HINT) from None
            if source not in self._proven:
                self._proven[source] = None
                if len(self._proven) > KEPT_PROVEN:
                    del self._proven[next(iter(self._proven))]
            return text

    def _check(self, source: str) -> None:
        """Raise TemplateTooCostly for a template that was so a short while ago."""
        now = asyncio.get_running_loop().time()
        self._refused = {key: one for key, one in self._refused.items() if one[0] > now}
        if source in self._refused:
            raise TemplateTooCostly(self._refused[source][1], hint=HINT)

    async def _ask_worker(self, job: bytes, cpu_s: float) -> str:
        self._running += 1
        try:
            worker = self._take_worker() or await Worker.start(self._environ)
            try:
                return await worker.ask(job, cpu_s)
            finally:
                if not worker.ended:
                    self._put_back(worker)
        finally:
            self._running -= 1

    def _take_worker(self) -> Worker | None:
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


def encode_value(encode: Callable[[Any], bytes], value: object) -> bytes:
    """Return a value encoded by `encode`. Raises BadRequest: it came from the client."""
    try:
        return encode(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise BadRequest(f"cannot encode the request: {error}") from None


def cpu_limit(job_bytes: int) -> float:
    """Return the processor time of a template, by the size of its job, in seconds."""
    return min(MAX_CPU_S, CPU_S + CPU_S_PER_MIB * job_bytes / MIB)
