"""HTTP chunks (RFC 9112 §7.1), taken apart and framed beside the parser.

What is worked out of a length is kept: streams have few different ones.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_KEPT = 8192
NO_FRAME = b"?"  # no chunk begins so


class _Kept(dict[int, bytes]):
    """What a function says of a length; looked up, it costs no call."""

    def __init__(self, work: Callable[[int], bytes]) -> None:
        super().__init__()
        self._work = work

    def __missing__(self, size: int) -> bytes:
        """Work it out."""
        line = self._work(size)
        if len(self) < MAX_KEPT:
            self[size] = line
        return line


def _frame_within(size: int) -> bytes:
    lines = (b"%x\r\n" % (size - digits - 4) for digits in range(1, 8) if size > digits + 4)
    return next((line for line in lines if size == len(line) + int(line, 16) + 2), NO_FRAME)


FRAME = _Kept(lambda size: b"%x\r\n" % size)
"""The line that stands before a chunk, by the chunk's size in bytes."""

FRAME_WITHIN = _Kept(_frame_within)
"""The line that a chunk of so many bytes in all begins with; `NO_FRAME`: there is none.

Written as all engines do: in small letters, without zeros before or an extension.
"""


def split_whole_chunks(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the bodies of the whole chunks that `data` begins with, and what follows them.

    An extension, the last chunk (which is empty) and whatever else is unusual is left to follow.
    """
    parts = data.split(b"\r\n")
    rest = parts.pop()
    bodies = parts[1::2]
    # the usual read: small letters, no line feed in a body, perhaps the end
    if not rest and [b"%x" % len(body) for body in bodies] == parts[::2]:
        if b"" not in bodies:
            return bodies, b""
        if bodies.index(b"") == len(bodies) - 1:
            return bodies[:-1], b"0\r\n\r\n"
    return _one_by_one(data)


def _one_by_one(data: bytes) -> tuple[list[bytes], bytes]:
    bodies = []
    start, size = 0, len(data)
    while start < size:
        end = data.find(b"\r\n", start + 1, start + 10)
        try:
            length = int(data[start:end], 16) if end > 0 else 0
        except ValueError:
            break
        following = end + 4 + length
        if length <= 0 or following > size:
            break
        bodies.append(data[end + 2 : following - 2])
        start = following
    return bodies, data[start:]
