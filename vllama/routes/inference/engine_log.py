"""The cause of an engine's death, which only its log tells.

An engine may say in its answers that it is dead, though its process still runs. Such an answer
names no cause, or one that only the log has. It counts as a crash: no more requests are sent there,
the engine is restarted, and the clients are told the cause from the log.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256

from vllama.base.errors import BadRequest, EngineCrashed, UpstreamError, VllamaError
from vllama.chat.engine.traits import Traits
from vllama.net.relay import Relay
from vllama.net.upstream.connection import ConnectionLost
from vllama.net.upstream.pool import Upstream
from vllama.scheduler.hooks import Part
from vllama.scheduler.instance import Lease
from vllama.supervise.logs import LogRing
from vllama.supervise.spec import Endpoint

log = logging.getLogger(__name__)

MAX_PROVEN = 1000
RESTARTED = "try again: the engine is restarting"


def watch_engine(lease: Lease, upstream: Upstream) -> None:
    """Teach the pool how this engine answers; its log is known only if the engine is ours."""
    upstream.request_id_header = lease.traits.request_id_header
    upstream.tells_counts &= lease.traits.usage_in_stream
    if upstream.crashes is None and (part := lease.instance.find_part(lease.endpoint)) is not None:
        upstream.crashes = CrashLog(part, lease.endpoint, upstream, lease.traits)
        if lease.traits.free_line:
            upstream.grammars = GrammarTrials(part, lease.traits.free_line)


class CrashLog:
    """One engine's words about its own death, in its responses and in its log."""

    def __init__(self, part: Part, endpoint: Endpoint, upstream: Upstream, traits: Traits) -> None:
        self._part, self._endpoint, self._upstream = part, endpoint, upstream
        self._words = traits.dead_words
        self._dead_line = re.compile(traits.dead_line) if traits.dead_line else None
        # all requests get the same reason, also those that fail while it is being restarted
        self._told = ""

    def explain(self, error: VllamaError) -> VllamaError:
        """Return the error of the engine's crash in place of `error`, if it has crashed.

        All its other answers are ended for the same reason then.
        """
        if isinstance(error, ConnectionLost) and error.unsent:
            return error
        cause = self._part.find_unhealthy_cause(self._endpoint)
        if isinstance(error, EngineCrashed) and cause:
            # its log was read before its answers, which end with its process
            return EngineCrashed(f"cannot continue: the engine crashed: {cause}", hint=RESTARTED)
        dead = isinstance(error, UpstreamError) and any(w in error.message for w in self._words)
        if not dead:
            return error
        if not self._told:
            cause = self._part.declare_unhealthy(self._endpoint, None)
            self._told = f"the engine crashed: {cause}"
            self._upstream.abort_answers(self._told)
        return EngineCrashed(f"cannot continue: {self._told}", hint=RESTARTED)

    def begin(self) -> Callable[[], bool]:
        """Note how far the log is, before a request is sent.

        The result tells, once the request has failed, whether the engine had announced its death in
        its log by then. Only this proves that the request did not cause the crash.
        """
        ring = read_log(self._part) if self._dead_line is not None else None
        start = ring.total if ring is not None else 0

        def was_dead() -> bool:
            if ring is None or self._dead_line is None:
                return False
            lines = ring.tail(ring.total)
            earlier = lines[: max(0, len(lines) - (ring.total - start))]
            return any(self._dead_line.search(line) for line in earlier)

        return was_dead


class GrammarTrials:
    """Grammars that an engine is asked for, of which it may log that it generates without them.

    The line does not name the request, so requests with a new grammar begin one at a time.
    """

    def __init__(self, part: Part, free_line: str) -> None:
        self._part, self._free_line = part, re.compile(free_line)
        self._lock = asyncio.Lock()
        self._proven: set[bytes] = set()

    @asynccontextmanager
    async def begin(self, relay: Relay, grammar: bytes) -> AsyncIterator[None]:
        """Make `relay` fail with BadRequest before its head, if the engine could not make it."""
        grammar = sha256(grammar).digest()  # of up to 256 KiB each
        if grammar in self._proven:
            yield
            return
        await self._lock.acquire()
        ring = read_log(self._part)
        start = ring.total if ring is not None else 0

        def check() -> None:
            relay.before_first = None
            self._lock.release()
            ring = read_log(self._part)
            for line in ring.tail(ring.total - start) if ring is not None else ():
                if found := self._free_line.search(line):
                    raise BadRequest(
                        f"cannot enforce the format: the engine reports: {found[1][:500]}"
                    )
            if len(self._proven) >= MAX_PROVEN:
                self._proven.clear()
            self._proven.add(grammar)

        relay.before_first = check
        try:
            yield
        finally:
            if relay.before_first is not None:
                relay.before_first = None
                self._lock.release()


def read_log(part: Part) -> LogRing | None:
    """Return the latest lines of an engine; None, with a warning, if they cannot be read."""
    try:
        return part.output()
    except OSError as error:
        log.warning("cannot read the engine's log: %s", error)
        return None
