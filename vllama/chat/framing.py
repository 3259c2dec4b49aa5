"""Frames of streams: server-sent events in, NDJSON lines or events out.

`SseReader` follows the EventSource rules as far as engines use them (HTML standard §9.2): fields
`data` and, as llama.cpp once sent, `error`; comments (keep-alive pings) and other fields skipped.
What begins with a bracket is no event but JSON, up to the end: an answer or an error in one piece,
or lines or a list of events.
"""

from __future__ import annotations

import json
from contextlib import suppress

import msgspec

from vllama.base.errors import UpstreamError

MAX_EVENT_BYTES = 16 * 1024 * 1024
DONE = b"[DONE]"
_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
FEED, RETURN = b"\n\r"  # numbers: see event_template.py


class SseReader:
    """Cuts a byte stream into the data of its events, wherever the reads were cut."""

    __slots__ = ("_is_json", "_limit", "_parts", "_searched", "_size")

    def __init__(self, *, limit_bytes: int = MAX_EVENT_BYTES) -> None:
        self._parts: list[bytes] = []  # what came since the last complete event
        self._size = 0
        self._is_json = False
        self._searched = b""  # the last three bytes, in which a separator may have begun
        self._limit = limit_bytes

    @property
    def pending(self) -> bool:
        """True if an event has begun whose end has not come."""
        return bool(self._parts)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that `chunk` completes, oldest first.

        Raises UpstreamError when one event grows beyond the limit.
        """
        end = len(chunk) - 2
        if self._is_json:
            return self._keep(chunk)
        if not self._parts:
            if (  # the usual read: one whole event of one line
                chunk.find(b"\n") == end
                and chunk.startswith(b"data: ")
                and chunk.endswith(b"\n\n")
                and RETURN not in chunk
            ):
                return [chunk[6:end]]
            if chunk.lstrip().startswith((b"{", b"[")):
                self._is_json = True
                return self._keep(chunk)
        else:
            seam = self._searched + chunk
            if b"\n\n" not in seam and b"\n\r" not in seam and b"\r\r" not in seam:
                return self._keep(chunk)
            chunk = self._take() + chunk
        if RETURN in chunk:
            return self._split_crlf(chunk)
        *events, rest = chunk.split(b"\n\n")
        if rest:
            self._keep(rest)
        out = []
        for event in events:
            if event.startswith(b"data: ") and FEED not in event:
                out.append(event[6:])
            else:
                self._slow(event, out)
        return out

    def close(self) -> list[bytes]:
        """Return the data of a last event that the stream's end completes, if there is one."""
        if self._is_json:
            lines = self._take().splitlines()
            with suppress(ValueError):  # no list
                return list(map(bytes, _read_list(b" ".join(lines))))
            whole = [line for line in lines if line.strip()]
            # lines of JSON in the place of events, or one value
            is_ndjson = all(line[:1] == b"{" and line.rstrip()[-1:] == b"}" for line in whole)
            return whole if is_ndjson else [b" ".join(lines)]
        if not self._parts:
            return []
        out: list[bytes] = []
        self._slow(self._take().replace(b"\r\n", b"\n").replace(b"\r", b"\n"), out)
        return out

    def _split_crlf(self, chunk: bytes) -> list[bytes]:
        """Split where lines end in CRLF (or CR); a CR at the very end may have an LF to come."""
        held = b"\r" if chunk.endswith(b"\r") else b""
        text = chunk[: len(chunk) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *events, rest = text.split(b"\n\n")
        if rest or held:
            self._keep(rest + held)
        out: list[bytes] = []
        for event in events:
            self._slow(event, out)
        return out

    def _take(self) -> bytes:
        whole = b"".join(self._parts)
        self._parts.clear()
        self._searched = b""
        self._size = 0
        return whole

    def _keep(self, piece: bytes) -> list[bytes]:
        self._parts.append(piece)
        self._size += len(piece)
        self._searched = (self._searched + piece)[-3:] if len(piece) < 3 else piece[-3:]
        if self._size > self._limit:
            raise UpstreamError("the engine sent an event without an end")
        return []

    @staticmethod
    def _slow(event: bytes, out: list[bytes]) -> None:
        lines, is_error = [], False
        for line in event.split(b"\n"):
            name, colon, value = line.removeprefix(b"\xef\xbb\xbf").partition(b":")
            if not colon and name != b"data":
                continue
            value = value.removeprefix(b" ")
            if name == b"data":
                lines.append(value)
            elif name == b"error":
                out.append(b'{"error":%b}' % (value or b'""'))
            is_error |= name == b"event" and value == b"error"
        if is_error and lines and lines[0][:1] not in b"{[":
            text = b" ".join(lines).decode("utf-8", "replace")
            out.append(b'{"error":%b}' % json.dumps(text).encode())
        elif lines:
            # by the book a line feed; in JSON both are white space, and this one needs no escaping
            out.append(b" ".join(lines))


def frame_event(payload: bytes) -> bytes:
    """Frame one event of a single line."""
    return b"data: %b\n\n" % payload
