"""The usual read: one event that differs from the one before in its text only.

Most of a stream looks like that. Once an event was decoded and found to be a plain token, all that
stands before its text and all that stands after it are kept; a read that begins and ends the same
way, with a text between that has neither quote nor backslash, must decode to the same but for the
text, so that it need not be decoded (half the cost of a token). Several may come in one read.
"""

from __future__ import annotations

_KEYS = (b'"content":"', b'"content": "', b'"text":"', b'"text": "')
_TRIES = 3


class Usual:
    """What precedes and what follows the text of a stream's plain events."""

    __slots__ = ("_seam", "_tries", "head", "head_size", "tail", "tail_size")

    def __init__(self) -> None:
        self.head = self.tail = self._seam = b""  # no read is matched while `tail` is empty
        self.head_size = self.tail_size = 0
        self._tries = _TRIES

    def match(self, read: bytes) -> list[bytes] | None:
        """Return the texts of a usual read, as JSON without the quotes; None for any other."""
        if not (self.tail and read.endswith(self.tail) and read.startswith(self.head)):
            return None
        text = read[self.head_size : -self.tail_size]
        if b"\\" in text:
            return None
        texts = [text]
        if b'"' in text:
            texts = text.split(self._seam)
            if text.count(b'"') != (len(texts) - 1) * self._seam.count(b'"'):
                return None
        if not all(texts):
            return None
        self._tries = _TRIES
        return texts

    def learn(self, read: bytes, text: str) -> bool:
        """Keep the surroundings of `text` in a read that holds one plain event and nothing else.

        Gives up on a stream whose events differ in more than the text.
        """
        self.forget()
        if not self._tries:
            return False
        self._tries -= 1
        around = surroundings(read, text)
        if around is None or not read.endswith(b"\n\n"):
            return False
        self.head, self.tail = around
        self.head_size, self.tail_size = len(self.head), len(self.tail)
        self._seam = self.tail + self.head
        return True

    def forget(self) -> None:
        """Match nothing until something is learnt again, as an event is now in two reads."""
        self.head = self.tail = b""


def surroundings(read: bytes, text: str) -> tuple[bytes, bytes] | None:
    """Return what stands before and after `text` in a plain event; None if that is not certain."""
    value = text.encode()
    for key in _KEYS:
        start = read.find(key) + len(key)
        end = start + len(value)
        if read.count(key) == 1 and read.startswith(value, start) and read.startswith(b'"', end):
            return read[:start], read[end:]
    return None
