"""A shorter way to the client's socket than ASGI's `send()`, where the server has one.

One `send()` a token costs a coroutine, a dictionary and a walk through the server's checks: a fifth
of all that a token costs. uvicorn's `send` is the bound method of an object that knows its
transport; with that a chunk is one `write()`. The object's attributes are not a promised interface,
so whatever looks different from what is expected here means None, and the caller goes the long way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Writer:
    """Writes chunks of the body of one answer, straight to the client's socket."""

    __slots__ = ("_cycle", "flow", "write")

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self.flow = cycle.flow  # `write_paused` while the client does not keep up
        self.write: Callable[[bytes], None] = cycle.transport.write

    def __call__(self, body: bytes) -> bool:
        """Write one chunk; False, having written nothing, if the client lags or has gone."""
        if self.flow.write_paused or self._cycle.disconnected:
            return False
        size = len(body)
        self.write(b"".join((FRAMES.get(size) or frame(size), body, b"\r\n")))
        return True


# the lines with the size of a chunk that stand before it, as they were needed
FRAMES: dict[int, bytes] = {}
MAX_FRAMES = 8192


def frame(size: int) -> bytes:
    """Return the line that stands before a chunk of `size` bytes."""
    line = b"%x\r\n" % size
    if len(FRAMES) < MAX_FRAMES:
        FRAMES[size] = line
    return line


def chunk_writer(send: object) -> Writer | None:
    """Return what writes chunks of the body of the answer that `send` has begun.

    None if the answer is not chunked, or the server is not known.
    """
    cycle: Any = getattr(send, "__self__", None)
    flow, transport = getattr(cycle, "flow", None), getattr(cycle, "transport", None)
    if (
        getattr(cycle, "chunked_encoding", None) is not True
        or getattr(cycle, "response_complete", None) is not False
        or getattr(flow, "write_paused", None) not in (True, False)
        or getattr(cycle, "disconnected", None) not in (True, False)
        or isinstance(transport, _HeldHead)
        or not hasattr(transport, "write")
    ):
        return None
    return Writer(cycle)


def hold_head(send: object) -> None:
    """Let the head that `send` is about to write go out together with the first of the body.

    To be called when a body follows at once. One write less, and the client wakes once.
    """
    cycle: Any = getattr(send, "__self__", None)
    transport = getattr(cycle, "transport", None)
    if (
        getattr(cycle, "response_started", None) is False
        and hasattr(transport, "write")
        and not isinstance(transport, _HeldHead)
    ):
        cycle.transport = _HeldHead(cycle, transport)


def end_with_connection(send: object) -> None:
    """Let the body of the answer that `send` is about to begin end where the connection does.

    For HTTP/1.0, which knows no chunks (uvicorn sends them all the same). Nothing is changed if the
    server is not known.
    """
    cycle: Any = getattr(send, "__self__", None)
    if (
        getattr(cycle, "response_started", None) is False
        and getattr(cycle, "chunked_encoding", False) is None
        and hasattr(cycle, "expected_content_length")
    ):
        cycle.chunked_encoding = cycle.keep_alive = False
        cycle.expected_content_length = _Endless()


class _Endless:
    """A number of bytes still to come that is never too small and never wrong."""

    def __lt__(self, other: object) -> bool:
        """Be no less than anything."""
        return False

    def __sub__(self, other: object) -> _Endless:
        """Stay what it is."""
        return self

    def __eq__(self, other: object) -> bool:
        """Be equal to what is left at the end: nothing."""
        return True

    __hash__ = None  # type: ignore[assignment]


class _HeldHead:
    """A transport that keeps its first write until the second, then takes itself away."""

    def __init__(self, cycle: Any, transport: Any) -> None:
        self._cycle = cycle
        self._transport = transport
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        """Keep the head; write it with what follows."""
        if self._head is None:
            self._head = data
        else:
            self._cycle.transport = self._transport
            self._transport.write(self._head + data)

    def close(self) -> None:
        """Write what is kept, then close."""
        self.write(b"")
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        """Answer as the transport does."""
        return getattr(self._transport, name)
