"""Stages: parts of the handling of requests that make no response: limits, captures, traces …

A server has one list of them, made at its start from its settings (`server/daemon.py`). Each stage
overrides the steps that concern it. A step that no stage overrides costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from vllama.chat.reply import Reply
    from vllama.chat.request import Call
    from vllama.dialects.events import EndedRow
    from vllama.net.upstream.pool import Upstream
    from vllama.routes.recording.running import RunningRequest

log = logging.getLogger(__name__)


class Stage:
    """Takes part in requests; the steps are in the order in which a request takes them.

    One object takes part in all requests: what it knows of each belongs into a dict by `running`.
    """

    def began(self, running: RunningRequest) -> None:
        """Note a request of any kind, which may still be refused."""

    async def admitted(self, running: RunningRequest) -> None:
        """Admit a request to a model, before its handler or another node. Raises VllamaError."""

    async def queued(self, running: RunningRequest) -> None:
        """Prepare for a lease on `running.wanted`; again after a pause and for each fallback.

        Raises VllamaError, ClientGone.
        """

    def waits(self, running: RunningRequest) -> None:
        """Note that no slot is free, or that the engine of `running.lease` is being restarted."""

    def leased(self, running: RunningRequest) -> None:
        """Note the new `running.lease`; response headers may be set."""

    async def before_send(
        self, running: RunningRequest, reply: Reply, upstream: Upstream, call: Call
    ) -> Call:
        """Return a call as the engine gets it, each time that it is sent; `reply` is its answer."""
        return call

    def released(self, running: RunningRequest) -> None:
        """Note that the lease is about to be released, or that there was none."""

    def before_end(self, running: RunningRequest) -> None:
        """Note that the last byte is about to be written.

        Also that of an error. Headers may be set if the response is sent in one piece.
        """

    def ended(self, running: RunningRequest, row: EndedRow) -> None:
        """Note the end of a request of any kind, however it came about."""


class Notes:
    """A step that may refuse nothing: an error in one stage is logged, and stops no other."""

    def __init__(self, step: str, each: tuple[Callable[..., None], ...]) -> None:
        self._step, self._each = step, each

    def __bool__(self) -> bool:
        return bool(self._each)

    def __call__(self, running: RunningRequest, *more: Any) -> None:
        """Take the step."""
        for note in self._each:
            try:
                note(running, *more)
            except Exception:
                log.exception("a stage failed in its step '%s'", self._step)


Wait: TypeAlias = "tuple[Callable[[RunningRequest], Awaitable[None]], ...]"


class Stages:
    """The stages of a server in their order: for each step the functions of those that have it."""

    def __init__(self, *given: Stage | None) -> None:
        """`given`: None for a stage that the settings turn off."""
        stages = [one for one in given if one is not None]

        def find(step: str) -> Any:
            own = [one for one in stages if getattr(type(one), step) is not getattr(Stage, step)]
            return tuple(getattr(one, step) for one in own)

        self.began = Notes("began", find("began"))
        self.admitted: Wait = find("admitted")
        self.queued: Wait = find("queued")
        self.waits = Notes("waits", find("waits"))
        self.leased = Notes("leased", find("leased"))
        self.before_send: tuple[Callable[..., Awaitable[Call]], ...] = find("before_send")
        self.released = Notes("released", find("released"))
        self.before_end = Notes("before_end", find("before_end"))
        self.ended = Notes("ended", find("ended"))

    async def prepare(
        self, running: RunningRequest, reply: Reply, upstream: Upstream, call: Call
    ) -> Call:
        """Return a call as all stages want it to be sent."""
        for before_send in self.before_send:
            call = await before_send(running, reply, upstream, call)
        return call
