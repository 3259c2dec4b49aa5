"""A template of plain events, which differ from the one before in their text only.

Most of a stream looks like that. Once an event was decoded and found to be a plain token, all that
stands before its text and all that stands after it are kept; a read that begins and ends the same
way, with a text between that has neither quote nor backslash, must decode to the same but for the
text, so that it need not be decoded (half the cost of a token). Several may come in one read.

What the client gets for such an event is known too: `first`, the time, `before`, the text, `after`.
With both the relay can take a token from socket to socket without asking its reply
(net/fast_path.py).

Where the client gets the engine's own event but for its beginning, `first` stands for the first
`skip` bytes of it, and the rest is taken from the read: what a stream keeps for itself is cold in
the processor's cache whenever its next token comes. For that reason streams share what is alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_KEYS = (b'"content":"', b'"content": "', b'"text":"', b'"text": "')
# numbers: CPython 3.11 looks for bytes in bytes eight times as slowly, by an exception (measured)
QUOTE, BACKSLASH = b'"\\'
TRIES = 3
MAX_SHARED = 256
MAX_SKIP = 32  # of an event's own beginning, `data: {` as a rule


class TimestampCache:
    """The text of the time from `since_ns` until `until_ns` (Unix ns); this one is empty, for ever.

    Streams share one, so that it is written once for all tokens of one moment.
    """

    __slots__ = ("since_ns", "text", "until_ns")

    def __init__(self) -> None:
        self.text = b""
        self.since_ns = 0
        self.until_ns: float = math.inf

    def begin(self, now_ns: int) -> None:
        """Write the time of `now_ns`; always as long as before."""


TIMELESS = TimestampCache()


class EventTemplate:
    """Bytes around the text of a stream's plain events, from the engine and to the client.

    `tokens` and `last_ns` count the plain events and tell when the last one came (nobody asks that
    of a stream whose events pass as they are but for their beginning); to `kept` and `taken` their
    texts are added as UTF-8, unless they are None.
    """

    __slots__ = (
        "_is_fixed",
        "_seam",
        "_tries",
        "after",
        "before",
        "first",
        "head",
        "kept",
        "last_ns",
        "skip",
        "tail",
        "taken",
        "timestamp",
        "tokens",
    )

    def __init__(
        self,
        first: bytes = b"",
        before: bytes = b"",
        after: bytes = b"",
        timestamp: TimestampCache = TIMELESS,
        *,
        tries: int = TRIES,
    ) -> None:
        """`first`, `before`, `after`: as the client gets it; else they are learned, too.

        `tries`: how often it is learned again before a stream is given up; 0: nothing is learned.
        """
        self.head = self.tail = self._seam = b""  # no read is matched while `tail` is empty
        self.first, self.before, self.after, self.timestamp = first, before, after, timestamp
        self.skip = 0
        self.tokens = self.last_ns = 0
        self.kept: bytearray | None = None
        self.taken: bytearray | None = None
        self._is_fixed = bool(after)
        self._tries = tries

    def match(self, read: bytes) -> list[bytes] | None:
        """Return the texts of a read that looks like it, JSON without the quotes; else None."""
        if not self.tail:
            return None
        # before a tail there is the head, or something else with a quote
        rest = read.removeprefix(self.head)
        text = rest.removesuffix(self.tail)
        if text is rest or not text or BACKSLASH in text:
            return None
        texts = [text]
        if QUOTE in text:
            texts = text.split(self._seam)
            if not all(texts) or any(QUOTE in text for text in texts):
                return None
        self.renew()
        return texts

    def count(self, texts: Sequence[bytes], now_ns: int) -> None:
        """Take note of plain events."""
        self.tokens += len(texts)
        self.last_ns = now_ns
        if self.kept is not None:
            self.kept += b"".join(texts)
        if self.taken is not None:
            self.taken += b"".join(texts)

    def write(self, texts: Sequence[bytes], now_ns: int) -> bytes:
        """Return the client's bytes of plain events; those of one read have one time."""
        before, after = self.around(now_ns)
        return b"%b%b%b" % (before, (after + before).join(texts), after)

    def around(self, now_ns: int) -> tuple[bytes, bytes]:
        """Return the bytes around a text for the client."""
        if self.skip:
            return self.first + self.head[self.skip :], self.tail
        timestamp = self.timestamp
        if not timestamp.since_ns <= now_ns < timestamp.until_ns:
            timestamp.begin(now_ns)
        return b"%b%b%b" % (self.first, timestamp.text, self.before), self.after

    def learn(self, read: bytes, text: str, written: bytes = b"") -> bool:
        """Store the bytes around `text` in the first event of a read of plain events.

        `written` is what the client got for the read. Gives up on a stream whose events differ in
        more than the text.
        """
        self.forget()
        if not self._tries:
            return False
        self._tries -= 1
        around = find_surroundings(read[: read.find(b"\n\n") + 2], text)
        ours = None
        if not self._is_fixed:
            ours = find_surroundings(written[: written.find(b"\n\n") + 2], text)
        if around is None or (ours is None and not self._is_fixed):
            return False
        self.head, self.tail = around[0], share(around[1])
        self._seam = self.tail + self.head
        if ours is not None:
            self._graft(ours)
        return True

    def _graft(self, around: tuple[bytes, bytes]) -> None:
        """Store the bytes around the text for the client; the engine's is known already.

        What both have in common is not kept twice, if that is all but a beginning.
        """
        before, after = around
        # a byte of it at least is written by us: `skip` is 0 where nothing is taken from the read
        kept = min(count_common_end(before, self.head), len(self.head) - 1)
        self.skip = len(self.head) - kept
        if after == self.tail and self.skip < MAX_SKIP:
            self.first = share(before[: len(before) - kept])
            self.before = self.after = b""
        else:
            self.skip, self.first, self.before, self.after = 0, b"", before, share(after)

    def renew(self) -> None:
        """Note that what was learned was of use: it may be learned again as often as before."""
        self._tries = TRIES

    def forget(self) -> None:
        """Match nothing until something is learned again, as an event is now in two reads."""
        self.head = self.tail = b""


_shared: dict[bytes, bytes] = {}


def share(text: bytes) -> bytes:
    """Return an equal text, the same one for all streams."""
    if len(_shared) >= MAX_SHARED:
        _shared.clear()
    return _shared.setdefault(text, text)


def count_common_end(one: bytes, other: bytes) -> int:
    """Return how many bytes at their ends are alike."""
    size = min(len(one), len(other))
    for count in range(size):
        if one[-1 - count] != other[-1 - count]:
            return count
    return size


def find_surroundings(event: bytes, text: str) -> tuple[bytes, bytes] | None:
    """Return the bytes around `text` in a plain event; None if that is not certain."""
    value = text.encode(errors="surrogatepass")
    if not value or b"\n\n" not in event:
        return None
    for key in _KEYS:
        start = event.find(key) + len(key)
        end = start + len(value)
        if (
            event.count(key) == 1
            and event.startswith(value, start)
            and event[end : end + 1] == b'"'
        ):
            return event[:start], event[end:]
    return None
