"""The straight way of plain tokens: one function from the engine's socket to the client's.

While a stream's events differ in their text only (translate/usual.py), a lane stands in for the
connection as its transport's protocol: what a read brings is recognised, rewritten and written to
the client in one call. A token touches five objects instead of twenty, and what is cold in the
processor's cache is most of its cost. Everything else a read may hold goes to the connection.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from vllama.gateway.http import EPOCH_NS, FRAMES, frame
from vllama.translate.usual import BACKSLASH, QUOTE, shared

if TYPE_CHECKING:
    from vllama.gateway.client import Client
    from vllama.gateway.connection import Connection
    from vllama.translate.usual import Usual

_clock_ns = time.monotonic_ns


class Lane(asyncio.Protocol):
    """Takes the reads of one answer, as long as its relay leaves it there."""

    __slots__ = (
        "_after",
        "_connection",
        "_counted",
        "_end",
        "_follows",
        "_frames",
        "_tail",
        "_usual",
        "_write",
    )

    def __init__(self, connection: Connection, usual: Usual, client: Client) -> None:
        self._connection = connection
        self._frames = connection.frames
        self._usual = usual
        self._write = client.write
        self._counted = usual.tokens
        self._tail = self._follows = b""
        self._end = self._after = b""  # as they stand at the end of an HTTP chunk

    @property
    def tokens(self) -> int:
        """How many tokens have passed, in this lane or not: it tells that the engine goes on."""
        return self._usual.tokens

    def data_received(self, data: bytes) -> None:
        """Pass plain tokens on; leave everything else to the connection."""
        usual = self._usual
        if usual.tail is not self._tail or usual.after is not self._follows:
            self._tail, self._follows = usual.tail, usual.after
            self._end = shared(usual.tail and usual.tail + b"\r\n")
            self._after = shared(usual.after + b"\r\n")
        # the frame tells that this is one chunk; before a tail there is the head, or something else
        # with a quote
        line = self._frames.get(len(data), b"?")
        rest = data.removeprefix(line).removeprefix(usual.head)
        text = rest.removesuffix(self._end)
        if text is rest or not text or BACKSLASH in text:
            self._hand_over(data)
            return
        if QUOTE in text:
            self._several(data)
            return
        usual.tokens += 1
        usual.last_ns = now_ns = EPOCH_NS + _clock_ns()
        if usual.kept is not None:
            usual.kept += text
        if usual.skip:
            start, first = len(line) + usual.skip, usual.first
            size = len(first) + len(data) - start - 2
            write = self._write  # a method of that name would be looked for in the class
            write(b"".join((FRAMES.get(size) or frame(size), first, data[start:])))
            return
        moment = usual.moment
        if now_ns >= moment.until_ns:
            moment.begin(now_ns)
        stamp, before = moment.text, usual.before
        first, after = usual.first, self._after
        size = len(first) + len(stamp) + len(before) + len(text) + len(after) - 2
        write = self._write
        write(b"".join((FRAMES.get(size) or frame(size), first, stamp, before, text, after)))

    def _several(self, data: bytes) -> None:
        """Pass on the tokens of a read of several chunks, all or none."""
        usual, end, frame_of, head = self._usual, self._end, self._frames.get, self._usual.head
        *pieces, rest = data.split(end) if end else (data,)
        size = len(end)
        texts = [
            piece.removeprefix(frame_of(len(piece) + size, b"?")).removeprefix(head)
            for piece in pieces
        ]
        together = b"".join(texts)
        if rest or not pieces or not all(texts) or QUOTE in together or BACKSLASH in together:
            self._hand_over(data)
            return
        now_ns = EPOCH_NS + _clock_ns()
        usual.tokens += len(texts)
        usual.last_ns = now_ns
        if usual.kept is not None:
            usual.kept += together
        before, after = usual.around(now_ns)
        body = (after + before).join(texts)
        size = len(before) + len(body) + len(after)
        self._write(b"".join((FRAMES.get(size) or frame(size), before, body, after, b"\r\n")))

    def _hand_over(self, data: bytes) -> None:
        """Let the connection take a read, whose tokens are not ours."""
        if self._usual.tokens > self._counted:
            self._usual.renew()
        self._connection.data_received(data)
        self._counted = self._usual.tokens

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the connection."""
        self._connection.connection_lost(exc)
