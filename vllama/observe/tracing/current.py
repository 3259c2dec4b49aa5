"""The trace of the request that the running task answers, if it is traced.

A context variable, so that no function has to pass it on: calls to engines and lines of the log
find it by themselves.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllama.observe.tracing.request_trace import CallSpan, RequestTrace

trace: ContextVar[RequestTrace | None] = ContextVar("request_trace", default=None)


def begin_call(url: str, host: str, port: int) -> CallSpan | None:
    """Begin the span of a call to an engine; None if the request is not traced."""
    current = trace.get()
    return current.begin_call(url, host, port) if current is not None else None


def end_stage() -> None:
    """End the stage that the request is in: what follows is the engine's work."""
    if (current := trace.get()) is not None:
        current.end_stage()
