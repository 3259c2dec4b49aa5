"""The straight way of plain tokens: one function from the engine's socket to the client's.

While a stream's events differ in their text only (chat/event_template.py), a lane stands in for
the connection as its transport's protocol: what a read brings is recognised, rewritten and written
to the client in one call. Everything else a read may hold goes to the connection.

A token costs what is cold in the processor: few objects are touched, few instructions interpreted.
So what can be known before is in tables, by the length of what has come, and what a lane needs of
its `Usual` is copied whenever it can have changed: when a read was handed over.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vllama.chat.event_template import BACKSLASH, QUOTE, shared
from vllama.http.chunked import FRAME, FRAME_WITHIN
from vllama.http.request import EPOCH_NS
from vllama.upstream.connection import FastPath

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllama.chat.event_template import Usual
    from vllama.upstream.connection import Connection

MAX_TABLES = 64
MAX_ROWS = 8192

_clock_ns = time.monotonic_ns
# what stands before a text, by its length: for each beginning and length of all the rest
_begins: dict[tuple[bytes, int], dict[int, bytes]] = {}
# of an engine's chunk, by its length: its frame, where its rest begins, and ours before that
Rows = dict[int, tuple[bytes, int, bytes]]
_rows: dict[tuple[bytes, int], Rows] = {}


def lane_for(connection: Connection, usual: Usual, write: Callable[[bytes], None]) -> Lane:
    """Return the lane for such events."""
    return (Straight if usual.skip else Lane)(connection, usual, write)


class Lane(FastPath):
    """Takes the reads of one answer, as long as its relay leaves it there: lines written anew."""

    __slots__ = (
        "_after",
        "_before",
        "_connection",
        "_count",
        "_end",
        "_head",
        "_kept",
        "_last_ns",
        "_moment",
        "_table",
        "_usual",
        "_write",
    )

    def __init__(
        self, connection: Connection, usual: Usual, write: Callable[[bytes], None]
    ) -> None:
        """`write` takes what the client gets, with the frames of its chunks."""
        self._connection = connection
        self._usual = usual
        self._write = write
        self._count = self._last_ns = 0  # of the tokens that `usual` does not know of
        self._refresh()

    def _refresh(self) -> None:
        """Copy what is needed of `usual`."""
        usual = self._usual
        self._head, self._kept, self._moment = usual.head, usual.kept, usual.moment
        # as they stand at the end of an HTTP chunk
        self._end = shared(usual.tail and usual.tail + b"\r\n")
        self._before, self._after = usual.before, shared(usual.after + b"\r\n")
        self._set_table()

    def _set_table(self) -> None:
        usual, moment = self._usual, self._usual.moment
        now_ns = EPOCH_NS + _clock_ns()
        if now_ns >= moment.until_ns:
            moment.begin(now_ns)
        rest = sum(map(len, (usual.first, moment.text, usual.before, usual.after)))
        if len(_begins) >= MAX_TABLES:
            _begins.clear()
        self._table: dict[int, bytes] = _begins.setdefault((usual.first, rest), {})

    @property
    def tokens(self) -> int:
        """How many tokens have passed, in this lane or not: it tells that the engine goes on."""
        return self._usual.tokens + self._count

    def settle(self) -> None:
        """Let `usual` know what has passed here."""
        if self._count:
            self._usual.tokens += self._count
            self._usual.last_ns = self._last_ns
            self._count = 0

    def data_received(self, data: bytes) -> None:
        """Pass plain tokens on; leave everything else to the connection."""
        # the frame tells that this is one chunk; before a tail there is the head, or something else
        # with a quote
        rest = data.removeprefix(FRAME_WITHIN[len(data)]).removeprefix(self._head)
        text = rest.removesuffix(self._end)
        if text is rest or not text or QUOTE in text or BACKSLASH in text:
            self._unusual(data, text, rest)
            return
        self._count += 1
        if self._kept is not None:
            self._kept += text
        self._last_ns = now_ns = EPOCH_NS + _clock_ns()
        moment = self._moment
        if now_ns >= moment.until_ns:
            moment.begin(now_ns)
        begin = self._table.get(len(text)) or self._begin(len(text))
        write = self._write  # called by that name it would be looked for in the class first
        write(b"".join((begin, moment.text, self._before, text, self._after)))

    def _begin(self, size: int) -> bytes:
        """Return what stands before the time and a text of `size` bytes; keep it."""
        usual = self._usual
        parts = (usual.first, self._moment.text, usual.before, usual.after)
        begin = FRAME[size + sum(map(len, parts))] + usual.first
        if len(self._table) < MAX_ROWS:
            self._table[size] = begin
        return begin

    def _unusual(self, data: bytes, text: bytes, rest: bytes) -> None:
        """Take a read that is not one plain token; `text` is what is left of it."""
        if text is not rest and QUOTE in text and BACKSLASH not in text:
            self._several(data)
        else:
            self._hand_over(data)

    def _several(self, data: bytes) -> None:
        """Pass on the tokens of a read of several chunks, all or none."""
        usual, end, head = self._usual, self._end, self._head
        *pieces, rest = data.split(end)
        size = len(end)
        texts = [
            piece.removeprefix(FRAME_WITHIN[len(piece) + size]).removeprefix(head)
            for piece in pieces
        ]
        together = b"".join(texts)
        if rest or not pieces or not all(texts) or QUOTE in together or BACKSLASH in together:
            self._hand_over(data)
            return
        self._count += len(texts)
        self._last_ns = now_ns = EPOCH_NS + _clock_ns()
        if self._kept is not None:
            self._kept += together
        before, after = usual.around(now_ns)
        body = (after + before).join(texts)
        size = len(before) + len(body) + len(after)
        self._write(b"".join((FRAME[size], before, body, after, b"\r\n")))

    def _hand_over(self, data: bytes) -> None:
        """Let the connection take a read, whose tokens are not ours."""
        if self._count:
            self.settle()
            self._usual.renew()
        connection = self._connection
        connection.data_received(data)
        if connection.lane is self:
            if bool(self._usual.skip) is isinstance(self, Straight):
                self._refresh()
            else:
                connection.divert(lane_for(connection, self._usual, self._write))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the connection."""
        self.settle()
        self._connection.connection_lost(exc)


class Straight(Lane):
    """Passes on the engine's own events, but for their beginning: no time, no length to reckon."""

    __slots__ = ("_rows",)

    def _set_table(self) -> None:
        if len(_rows) >= MAX_TABLES:
            _rows.clear()
        self._rows = _rows.setdefault((self._usual.first, self._usual.skip), {})

    def data_received(self, data: bytes) -> None:
        """Pass plain tokens on; leave everything else to the connection."""
        line, start, begin = self._rows.get(len(data)) or self._row(len(data))
        rest = data.removeprefix(line).removeprefix(self._head)
        text = rest.removesuffix(self._end)
        if text is rest or not text or QUOTE in text or BACKSLASH in text:
            self._unusual(data, text, rest)
            return
        self._count += 1
        if self._kept is not None:
            self._kept += text
        write = self._write
        write(begin + data[start:])

    def _row(self, size: int) -> tuple[bytes, int, bytes]:
        """Return the row for a chunk of `size` bytes in all; keep it."""
        usual, line = self._usual, FRAME_WITHIN[size]
        start = len(line) + usual.skip
        row = line, start, FRAME[len(usual.first) + size - start - 2] + usual.first
        if len(self._rows) < MAX_ROWS:
            self._rows[size] = row
        return row
