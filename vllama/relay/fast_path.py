"""The fast path of plain tokens: one function from the engine's socket to the client's.

While a stream's events differ in their text only (chat/event_template.py), a fast path stands in
for the connection as its transport's protocol: a read is recognised, rewritten and written to the
client in one call. Whatever looks different is handed to the connection and is decoded.

What a token costs is mostly memory that the processor does not have at hand, so few objects are
touched. What can be known before is in tables, by the length of the read; what a path needs of its
`EventTemplate` is copied, and copied again whenever it may have changed: after a read was handed
over.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vllama.chat.event_template import BACKSLASH, QUOTE, share
from vllama.http.chunked import FRAME, FRAME_WITHIN
from vllama.http.request import EPOCH_NS
from vllama.upstream.connection import FastPath

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllama.chat.event_template import EventTemplate
    from vllama.upstream.connection import Connection

MAX_TABLES = 64
MAX_ROWS = 8192

_clock_ns = time.monotonic_ns
# what stands before a text, by its length: for each beginning and length of all the rest
_begins: dict[tuple[bytes, int], dict[int, bytes]] = {}
# of an engine's chunk, by its length: its frame, where its rest begins, and ours before that
Rows = dict[int, tuple[bytes, int, bytes]]
_rows: dict[tuple[bytes, int], Rows] = {}


def make_fast_path(
    connection: Connection, template: EventTemplate, write: Callable[[bytes], None]
) -> RewritePath:
    """Return the fast path for such events."""
    return (ForwardPath if template.skip else RewritePath)(connection, template, write)


class RewritePath(FastPath):
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
        "_table",
        "_template",
        "_timestamp",
        "_write",
    )

    def __init__(
        self, connection: Connection, template: EventTemplate, write: Callable[[bytes], None]
    ) -> None:
        """`write` takes what the client gets, with the frames of its chunks."""
        self._connection = connection
        self._template = template
        self._write = write
        self._count = self._last_ns = 0  # of the tokens that `template` does not know of
        self._refresh()

    def _refresh(self) -> None:
        """Copy what is needed of `template`."""
        template = self._template
        self._head, self._kept, self._timestamp = template.head, template.kept, template.timestamp
        # as they stand at the end of an HTTP chunk
        self._end = share(template.tail and template.tail + b"\r\n")
        self._before, self._after = template.before, share(template.after + b"\r\n")
        self._set_table()

    def _set_table(self) -> None:
        template, timestamp = self._template, self._template.timestamp
        now_ns = EPOCH_NS + _clock_ns()
        if now_ns >= timestamp.until_ns:
            timestamp.begin(now_ns)
        rest = sum(map(len, (template.first, timestamp.text, template.before, template.after)))
        if len(_begins) >= MAX_TABLES:
            _begins.clear()
        self._table: dict[int, bytes] = _begins.setdefault((template.first, rest), {})

    @property
    def tokens(self) -> int:
        """How many tokens have passed, here or not: while it grows, the engine goes on."""
        return self._template.tokens + self._count

    def settle(self) -> None:
        """Let `template` know what has passed here."""
        if self._count:
            self._template.tokens += self._count
            self._template.last_ns = self._last_ns
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
        timestamp = self._timestamp
        if now_ns >= timestamp.until_ns:
            timestamp.begin(now_ns)
        begin = self._table.get(len(text)) or self._begin(len(text))
        write = self._write  # called by that name it would be looked for in the class first
        write(b"".join((begin, timestamp.text, self._before, text, self._after)))

    def _begin(self, size: int) -> bytes:
        """Return what stands before the time and a text of `size` bytes; keep it."""
        template = self._template
        parts = (template.first, self._timestamp.text, template.before, template.after)
        begin = FRAME[size + sum(map(len, parts))] + template.first
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
        template, end, head = self._template, self._end, self._head
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
        before, after = template.around(now_ns)
        body = (after + before).join(texts)
        size = len(before) + len(body) + len(after)
        self._write(b"".join((FRAME[size], before, body, after, b"\r\n")))

    def _hand_over(self, data: bytes) -> None:
        """Let the connection take a read, whose tokens are not ours."""
        if self._count:
            self.settle()
            self._template.renew()
        connection = self._connection
        connection.data_received(data)
        if connection.fast_path is self:
            if bool(self._template.skip) is isinstance(self, ForwardPath):
                self._refresh()
            else:
                connection.divert(make_fast_path(connection, self._template, self._write))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the connection."""
        self.settle()
        self._connection.connection_lost(exc)


class ForwardPath(RewritePath):
    """Passes on the engine's own events, but for their beginning: no time, no length to reckon."""

    __slots__ = ("_rows",)

    def _set_table(self) -> None:
        if len(_rows) >= MAX_TABLES:
            _rows.clear()
        self._rows = _rows.setdefault((self._template.first, self._template.skip), {})

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
        template, line = self._template, FRAME_WITHIN[size]
        start = len(line) + template.skip
        row = line, start, FRAME[len(template.first) + size - start - 2] + template.first
        if len(self._rows) < MAX_ROWS:
            self._rows[size] = row
        return row
