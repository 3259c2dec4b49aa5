"""Word wrap for text that arrives in pieces; pure, writes into what it is given."""

from __future__ import annotations

import re
from collections.abc import Callable

_PIECES = re.compile(r"\n|[^\S\n]+|\S+")


class WordWrap:
    """Passes text on, breaking lines at `width` columns between words.

    A word is held back until it is known to be whole; `flush` gives out the rest. Characters
    that fill two columns (Chinese, Japanese, …) may be parted anywhere.
    """

    def __init__(self, write: Callable[[str], object], width: int) -> None:
        self._write = write
        self._width = max(width, 10)
        self._column = 0
        self._word = ""
        self._space = ""

    def feed(self, text: str) -> None:
        """Take the next piece, of any length."""
        for piece in _PIECES.findall(text):
            if piece == "\n":
                self._end_word()
                self._space = ""
                self._put("\n")
                self._column = 0
            elif piece.isspace():
                self._end_word()
                self._space += piece
            else:
                self._take(piece)

    def flush(self) -> None:
        """Give out what is held back."""
        self._end_word()
        if self._space:
            self._put(self._space)
            self._space = ""

    def _take(self, piece: str) -> None:
        if piece.isascii():
            self._word += piece
            return
        for char in piece:
            if _columns(char) > 1:
                self._end_word()
                self._word = char
                self._end_word()
            else:
                self._word += char

    def _end_word(self) -> None:
        if not self._word:
            return
        needed = _columns(self._space) + _columns(self._word)
        if self._column and self._column + needed > self._width:
            self._put("\n")
            self._column = 0
            self._space = ""
        self._put(self._space + self._word)
        self._column += _columns(self._space) + _columns(self._word)
        self._space = self._word = ""

    def _put(self, text: str) -> None:
        if text:
            self._write(text)


def _columns(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
