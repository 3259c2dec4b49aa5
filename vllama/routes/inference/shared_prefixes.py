"""Prompts that begin alike and come together: what they have in common is read once.

What a slot of llama-server has read is of no use to other slots while it responds, so each of four
requests with one system prompt would read it. Here a long new prompt is first read without a token.
For others that begin like it and have come meanwhile, its slot is saved to a file, and restored for
each of them. See docs/decisions/0042-a-beginning-is-read-once.md.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from vllama.base.errors import VllamaError
from vllama.chat.engine.events import Timings
from vllama.chat.engine.traits import Slot, SlotRoutes
from vllama.chat.reply import Reply
from vllama.chat.request import Call, guess_tokens
from vllama.chat.tally import CACHED, find_detail
from vllama.net.http.departure import unless_gone
from vllama.net.upstream.pool import Upstream
from vllama.plan.types import Plan
from vllama.routes.recording.running import RunningRequest
from vllama.routes.recording.stage import Stage
from vllama.scheduler.instance import Lease
from vllama.scheduler.slot_cache.carry import remove_files, save_slot
from vllama.scheduler.slot_cache.conversations import act_on_slot, choose_idle, list_slots
from vllama.scheduler.slot_cache.store import NEW, count_common, hash_blocks
from vllama.supervise.spec import Endpoint

log = logging.getLogger(__name__)

LEAST_BLOCKS = 8
"""Of 256 characters, some 512 tokens: fewer in common, each request reads by itself."""
LEAST_S = 0.5
"""What an engine reads sooner, each request reads by itself."""
FIRST_MARK = 1_000_000
"""Beyond the marks of conversations on disk, in the same field."""
WAITS_FOR = "a prompt with the same prefix"


class _Whole(msgspec.Struct):
    usage: dict[str, Any] = {}
    timings: Timings = msgspec.field(default_factory=Timings)


@dataclass(slots=True, eq=False)
class _Reading:
    """A prompt that is being read; `file` is that of its slot, None if it was not saved."""

    blocks: Sequence[str]
    users: set[RunningRequest]
    file: asyncio.Future[Path | None]
    was_left: bool = False


@dataclass(slots=True, eq=False)
class _Engine:
    """The knowledge about the slots of one engine."""

    upstream: Upstream
    routes: SlotRoutes
    plan: Plan
    readings: list[_Reading] = field(default_factory=list)
    read: deque[Sequence[str]] = field(default_factory=lambda: deque(maxlen=64))
    taken: dict[RunningRequest, int] = field(default_factory=dict)
    acting: asyncio.Lock = field(default_factory=asyncio.Lock)

    def find_reading(self, blocks: Sequence[str]) -> _Reading | None:
        """Return the reading that has most of a prompt, if that is worth the wait."""
        best, most = None, LEAST_BLOCKS - 1
        for each in self.readings:
            common = count_common(each.blocks, blocks)
            if common > most and (each.file.done() or 2 * common >= len(each.blocks)):
                best, most = each, common
        return best

    async def list_free(self) -> list[Slot]:
        """Return the idle slots that no request is about to use."""
        found = await list_slots(self.upstream, self.routes)
        return [each for each in found if each.is_idle and each.number not in self.taken.values()]

    async def restore(self, running: RunningRequest, call: Call, path: Path) -> Call:
        """Return the call with a slot that has what was saved; the call itself without one."""
        async with self.acting:
            if (slot := choose_idle(await self.list_free())) is None:
                return call
            await act_on_slot(self.upstream, self.routes, slot.number, "restore", path.name)
            self.taken[running] = slot.number
        return call.put(**{self.routes.slot_field: slot.number})


class SharedPrefixes(Stage):
    """Has an engine read once what several prompts begin with."""

    def __init__(self, folder: Path) -> None:
        """`folder` is where slots are saved; what killed servers have left there is removed."""
        self._engines: dict[Endpoint, _Engine] = {}
        self._at: dict[RunningRequest, tuple[_Engine, Sequence[str]]] = {}
        self._marks = itertools.count(FIRST_MARK)
        for path in folder.glob(f"{NEW}*"):
            pid = path.name.removeprefix(NEW).partition("-")[0]
            # in a container every server has the same pid; this one has made none yet
            if not pid.isdecimal() or int(pid) == os.getpid() or not psutil.pid_exists(int(pid)):
                path.unlink(missing_ok=True)

    async def before_send(
        self, running: RunningRequest, reply: Reply, upstream: Upstream, call: Call
    ) -> Call:
        """Return the call with the slot that has the beginning of its prompt, if there is one."""
        lease = running.lease
        if lease is None or running in self._at or running.is_row or reply.resumes_text:
            return call
        if (engine := self._find_engine(lease, upstream, call)) is None:
            return call
        if reply.prompt_text is None or _is_quick(reply.prompt_text, upstream.prompt_tokens_per_s):
            return call
        blocks = hash_blocks(reply.prompt_text)
        if len(blocks) < LEAST_BLOCKS:
            return call
        self._at[running] = engine, blocks
        sharing = self._share(engine, running, reply, call, blocks)
        return await unless_gone(running.request, sharing)

    def released(self, running: RunningRequest) -> None:
        """Forget a request, and what only it has used."""
        if running not in self._at:
            return
        engine, blocks = self._at.pop(running)
        engine.taken.pop(running, None)
        engine.read.append(blocks)
        for each in list(engine.readings):
            each.users.discard(running)
            if not each.users and each.file.done():
                engine.readings.remove(each)
                if (path := each.file.result()) is not None:
                    remove_files([path])

    def _find_engine(self, lease: Lease, upstream: Upstream, call: Call) -> _Engine | None:
        """Return the engine of a lease, None if its slots cannot share anything."""
        routes, plan = lease.traits.slots, lease.instance.plan
        if routes is None or plan is None or lease.traits.max_concurrency == 1:
            return None  # a single slot keeps what it has read for the next request
        if routes.slot_field in call.fields or call.fields.get("dry_multiplier"):
            return None
        engine = self._engines.get(lease.endpoint)
        if engine is None:
            used = {engine for engine, _ in self._at.values()}
            self._engines = {at: each for at, each in self._engines.items() if each in used}
            made = _Engine(upstream=upstream, routes=routes, plan=plan)
            engine = self._engines[lease.endpoint] = made
        engine.upstream = upstream  # the pool of the endpoint now
        return engine

    async def _share(
        self,
        engine: _Engine,
        running: RunningRequest,
        reply: Reply,
        call: Call,
        blocks: Sequence[str],
    ) -> Call:
        """Wait for a request that has the same text read, or read it for others."""
        known = max((count_common(each, blocks) for each in engine.read), default=0)
        if len(blocks) - known < LEAST_BLOCKS:
            return call
        while (reading := engine.find_reading(blocks)) is not None:
            reading.users.add(running)
            running.waits_for = WAITS_FOR
            try:
                path = await asyncio.shield(reading.file)
            finally:
                running.waits_for = ""
            if path is not None:
                with suppress(VllamaError, TimeoutError):  # the call itself will tell
                    return await engine.restore(running, call, path)
            if not reading.was_left:
                return call
        return await self._read(engine, running, reply, call, blocks)

    async def _read(
        self,
        engine: _Engine,
        running: RunningRequest,
        reply: Reply,
        call: Call,
        blocks: Sequence[str],
    ) -> Call:
        """Send a prompt to be read, and save its slot for others that wait."""
        made = asyncio.get_running_loop().create_future()
        reading = _Reading(blocks=blocks, users={running}, file=made)
        engine.readings.append(reading)
        routes, mark, path = engine.routes, next(self._marks), None
        try:
            only_read = call.put(max_tokens=0, stream=False, **{routes.mark_field: mark})
            answer = await engine.upstream.fetch(only_read)
            async with engine.acting:
                found = [each for each in await engine.list_free() if each.mark == mark]
                if found and len(reading.users) > 1:  # else the engine finds the slot by itself
                    engine.taken[running] = found[0].number
                    call = call.put(**{routes.slot_field: found[0].number})
                    path = await save_slot(engine.upstream, routes, engine.plan, found[0])
            reply.tally.read = _read_counts(answer.body)
        except (VllamaError, TimeoutError) as error:
            log.info("cannot share a prompt: %s", error)  # the call itself will tell why
        except asyncio.CancelledError:
            reading.was_left = True
            raise
        finally:
            reading.file.set_result(path)
            if path is None:
                engine.readings.remove(reading)
        return call


def _read_counts(body: bytes) -> Timings | None:
    """Return the engine's counts of a prompt, None if it tells none."""
    try:
        whole = msgspec.json.decode(body, type=_Whole)
    except msgspec.MsgspecError:
        return None
    if whole.timings.cache_n is None:
        whole.timings.cache_n = find_detail(whole.usage, *CACHED)
    return whole.timings if whole.timings.cache_n is not None else None


def _is_quick(text: str, tokens_per_s: float | None) -> bool:
    return tokens_per_s is not None and guess_tokens(text) < LEAST_S * tokens_per_s
