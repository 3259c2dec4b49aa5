"""Shows an answer while it arrives: thinking, text with word wrap, then the numbers."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from vllama.base.threads import begin
from vllama.base.units import format_go_duration
from vllama.cli.output import console, is_terminal, say_aside, strip_control
from vllama.cli.table import count_columns

if TYPE_CHECKING:
    from rich.status import Status


DIM, PLAIN = "\x1b[2m", "\x1b[0m"
_UNFINISHED = re.compile(r"\x1b(\[[0-9;:]{0,40})?\Z")
LOOK_S = 0.5
THINKING, DONE_THINKING = "Thinking...", "...done thinking."


class AnswerPrinter:
    """Writes one streamed answer to stdout, piece by piece; on a terminal without its controls."""

    def __init__(self, *, wrap: bool, hide_thinking: bool) -> None:
        self._terminal = is_terminal(sys.stdout)
        self._hide_thinking = hide_thinking
        self._wrap: WordWrap | None = None
        if wrap and self._terminal:
            screen = console()
            self._wrap = WordWrap(sys.stdout.write, lambda: screen.width - 1)
        self._thinking = False
        self._last = "\n"
        self._held = ""  # the beginning of a color
        self._colored = False

    def thinking(self, text: str) -> None:
        """Show a piece of the model's reasoning."""
        if not text or self._hide_thinking:
            return
        if not self._thinking:
            self._thinking = True
            self._write((DIM if self._terminal else "") + THINKING + "\n")
        self._write(text)

    def content(self, text: str) -> None:
        """Show a piece of the answer."""
        if not text:
            return
        self._end_thinking()
        self._write(text)

    def end(self) -> None:
        """End the answer, complete or not, with a line break."""
        self._end_thinking()
        if self._wrap is not None:
            self._wrap.flush()
        if self._last != "\n":
            sys.stdout.write("\n")
        if self._colored:
            sys.stdout.write(PLAIN)
        sys.stdout.flush()

    def _end_thinking(self) -> None:
        if self._thinking:
            self._thinking = False
            newline = "" if self._last == "\n" else "\n"
            after = PLAIN if self._terminal else ""
            self._write(f"{newline}{DONE_THINKING}{after}\n\n")

    def _write(self, text: str) -> None:
        if self._terminal:
            text, self._held = self._held + text, ""
            if unfinished := _UNFINISHED.search(text):
                text, self._held = text[: unfinished.start()], unfinished[0]
            text = strip_control(text)
            self._colored |= "\x1b" in text
            if not text:
                return
        if self._wrap is not None:
            self._wrap.feed(text)
        else:
            sys.stdout.write(text)
        self._last = text[-1]
        sys.stdout.flush()


class Waiting:
    """A spinner on stderr until the first output; nothing if this is no terminal."""

    def __init__(
        self, text: str, look: Callable[[], str | None] | None = None, *, later: str = ""
    ) -> None:
        """Show `text`, then what `look` returns, which a thread calls until that is None.

        From then on `later` is shown; empty: `text` again.
        """
        self._status: Status | None = None
        self._ended = threading.Event()
        if is_terminal(sys.stderr) and is_terminal(sys.stdout):
            self._status = console(stderr=True).status(text)
            self._status.start()
            if look is not None:
                begin(self._watch, self._status, text, look, later or text)

    def _watch(self, status: Status, text: str, look: Callable[[], str | None], later: str) -> None:
        told: str | None = text
        while told is not None and not self._ended.wait(LOOK_S):
            told = look()  # an error ends this, and nothing else
            status.update(later if told is None else told or text)

    def over(self) -> None:
        """Clear the spinner; further calls do nothing."""
        self._ended.set()
        if self._status is not None:
            self._status.stop()
            self._status = None


def show_numbers(last: Mapping[str, object]) -> None:
    """Print durations and rates of the final object on stderr, as `--verbose` of Ollama does."""

    def number(key: str) -> int:
        value = last.get(key)
        return int(value) if isinstance(value, (int, float)) else 0

    def row(name: str, text: str) -> None:
        say_aside(f"{name + ':':<21} {text}")

    if number("total_duration"):
        row("total duration", format_go_duration(number("total_duration")))
    if number("load_duration"):
        row("load duration", format_go_duration(number("load_duration")))
    for kind in ("prompt eval", "eval"):
        key = kind.replace(" ", "_")
        count, duration_ns = number(f"{key}_count"), number(f"{key}_duration")
        if count:
            row(f"{kind} count", f"{count} token(s)")
        if cached := number(f"{key}_cached_count"):
            row(f"{kind} cached", f"{cached} token(s)")
            count -= cached  # those took no time
        if duration_ns:
            row(f"{kind} duration", format_go_duration(duration_ns))
            row(f"{kind} rate", f"{count / duration_ns * 1e9:.2f} tokens/s")


_PIECES = re.compile(r"\n|[^\S\n]+|\S+")


class WordWrap:
    """Passes text on and breaks lines between words.

    `measure` returns the columns of a line; it is asked for each word, as a terminal's may change.
    A word is held back until it is known to be whole; `flush` gives out the rest. Characters
    that fill two columns (Chinese, Japanese, …) may be separated anywhere.
    """

    def __init__(self, write: Callable[[str], object], measure: Callable[[], int]) -> None:
        self._write = write
        self._measure = measure
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
        """Write the held-back text."""
        self._end_word()
        if self._space:
            self._put(self._space)
            self._space = ""

    def _take(self, piece: str) -> None:
        if piece.isascii():
            self._word += piece
            return
        for char in piece:
            if count_columns(char) > 1:
                self._end_word()
                self._word = char
                self._end_word()
            else:
                self._word += char

    def _end_word(self) -> None:
        if not self._word:
            return
        needed = count_columns(self._space) + count_columns(self._word)
        if self._column and self._column + needed > max(self._measure(), 10):
            self._put("\n")
            self._column = 0
            self._space = ""
        self._put(self._space + self._word)
        self._column += count_columns(self._space) + count_columns(self._word)
        self._space = self._word = ""

    def _put(self, text: str) -> None:
        if text:
            self._write(text)
