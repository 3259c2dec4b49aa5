"""The fast path for plain tokens: one function between the engine's socket and the client's.

While the events of a stream differ only in their text (chat/event_template.py), a fast path
replaces the connection as the protocol of its transport. It recognizes a read by its first and last
bytes, rewrites it and writes it to the client, all in one call. It never decodes JSON, so it passes
only text without quotes and backslashes. Any other read goes to the connection and is decoded.

The cost of a token is mostly cache misses, so the code touches few objects. Everything that depends
only on the length of a read is in tables. The values of the `EventTemplate` are copied, and copied
again after each read that the connection has decoded, because only that can change them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vllama.base.clock import EPOCH_NS
from vllama.chat.event_template import BACKSLASH, QUOTE, EventTemplate, share
from vllama.net.http.framing import FRAME, FRAME_WITHIN, split_whole_chunks
from vllama.net.upstream.connection import Connection, FastPath

MAX_TABLES = 64
MAX_ROWS = 8192

_clock_ns = time.monotonic_ns
# by the first bytes of the line and the length of all fixed parts: length of the text → the frame
# of our chunk and the first bytes
_begins: dict[tuple[bytes, int], dict[int, bytes]] = {}
# length of the engine's chunk → its frame, the offset of the bytes that we copy, and the frame and
# first bytes of our chunk
Rows = dict[int, tuple[bytes, int, bytes]]
_rows: dict[tuple[bytes, int], Rows] = {}


def make_fast_path(
    connection: Connection, template: EventTemplate, write: Callable[[bytes], None]
) -> RewritePath:
    """Return the fast path for events like `template`; `write` receives the client's chunks."""
    return (ForwardPath if template.skip else RewritePath)(connection, template, write)


class RewritePath(FastPath):
    """A fast path that writes a line of its own around each text, as Ollama's dialect needs."""

    __slots__ = (
        "_after", "_before", "_connection", "_count", "_end", "_head", "_kept", "_last_ns",
        "_table", "_taken", "_template", "_timestamp", "_write",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, template: EventTemplate, write: Callable[[bytes], None]
    ) -> None:
        """Prepare; `write` receives bytes that already have the frames of their chunks."""
        self._connection = connection
        self._template = template
        self._write = write
        self._count = self._last_ns = 0  # tokens that are not counted in `template` yet
        self._refresh()

    def _refresh(self) -> None:
        """Copy the values of `template`."""
        template = self._template
        self._head, self._kept, self._timestamp = template.head, template.kept, template.timestamp
        self._taken = template.taken
        # with the line feed that ends an HTTP chunk
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
        """The number of tokens so far, on this path or not; hang detection watches it grow."""
        return self._template.tokens + self._count

    def settle(self) -> None:
        """Add the tokens of this path to the counts of `template`."""
        if self._count:
            self._template.tokens += self._count
            self._template.last_ns = self._last_ns
            self._count = 0

    def data_received(self, data: bytes) -> None:
        """Pass a plain token to the client; leave everything else to the connection."""
        # If the frame matches the length, the read is exactly one chunk. If the head is missing,
        # the text still contains a quote, because every other beginning of an event has one.
        rest = data.removeprefix(FRAME_WITHIN[len(data)]).removeprefix(self._head)
        text = rest.removesuffix(self._end)
        if text is rest or not text or QUOTE in text or BACKSLASH in text:
            self._unusual(data, text, rest)
            return
        self._count += 1
        if self._kept is not None:
            self._kept += text
        if self._taken is not None:
            self._taken += text
        self._last_ns = now_ns = EPOCH_NS + _clock_ns()
        timestamp = self._timestamp
        if now_ns >= timestamp.until_ns:
            timestamp.begin(now_ns)
        begin = self._table.get(len(text)) or self._begin(len(text))
        write = self._write  # a local: `self._write(…)` would look for a method first
        write(b"".join((begin, timestamp.text, self._before, text, self._after)))

    def _begin(self, size: int) -> bytes:
        """Return the bytes before the timestamp for a text of `size` bytes, and store them."""
        template = self._template
        parts = (template.first, self._timestamp.text, template.before, template.after)
        begin = FRAME[size + sum(map(len, parts))] + template.first
        if len(self._table) < MAX_ROWS:
            self._table[size] = begin
        return begin

    def _unusual(self, data: bytes, text: bytes, rest: bytes) -> None:
        """Pass the tokens of a read of several chunks, if all are plain; else have it decoded.

        `text` is what is left of the read, or `rest` if it does not end like a plain token.
        """
        template = self._template
        if text is not rest and QUOTE in text and BACKSLASH not in text:
            bodies, odd = split_whole_chunks(data)
            texts = template.match(b"".join(bodies)) if not odd else None
            if texts is not None:
                self._count += len(texts)
                self._last_ns = now_ns = EPOCH_NS + _clock_ns()
                if self._kept is not None:
                    self._kept += b"".join(texts)
                if self._taken is not None:
                    self._taken += b"".join(texts)
                body = template.write(texts, now_ns)
                self._write(b"%b%b\r\n" % (FRAME[len(body)], body))
                return
        self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        """Let the connection decode a read, then refresh or replace this path."""
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
        """Report the loss to the connection."""
        self.settle()
        self._connection.connection_lost(exc)


class ForwardPath(RewritePath):
    """A fast path that copies the engine's own line except its first bytes.

    OpenAI's dialect needs no more than that: the line has no timestamp of ours, and the length of
    the chunk follows from the length of the read.
    """

    __slots__ = ("_rows",)

    def _set_table(self) -> None:
        if len(_rows) >= MAX_TABLES:
            _rows.clear()
        self._rows = _rows.setdefault((self._template.first, self._template.skip), {})

    def data_received(self, data: bytes) -> None:
        """Pass a plain token to the client; leave everything else to the connection."""
        line, start, begin = self._rows.get(len(data)) or self._row(len(data))
        rest = data.removeprefix(line).removeprefix(self._head)
        text = rest.removesuffix(self._end)
        if text is rest or not text or QUOTE in text or BACKSLASH in text:
            self._unusual(data, text, rest)
            return
        self._count += 1
        if self._kept is not None:
            self._kept += text
        if self._taken is not None:
            self._taken += text
        write = self._write
        write(begin + data[start:])

    def _row(self, size: int) -> tuple[bytes, int, bytes]:
        """Return the row for a chunk of `size` bytes in total, and store it."""
        template, line = self._template, FRAME_WITHIN[size]
        start = len(line) + template.skip
        row = line, start, FRAME[len(template.first) + size - start - 2] + template.first
        if len(self._rows) < MAX_ROWS:
            self._rows[size] = row
        return row
