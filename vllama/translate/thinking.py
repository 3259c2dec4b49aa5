"""Splitting `<think>…</think>` from an answer, for engines that do not.

Only at the start of an answer, where the models put it; a tag later in the text is text. Some
templates open the tag themselves, so that the answer begins inside it (`opened`). Contract §3.5:
the tags must never be seen in the content.
"""

from __future__ import annotations

from enum import Enum

OPEN = "<think>"
CLOSE = "</think>"


class _State(Enum):
    START = 1  # nothing seen but white space and perhaps the beginning of the tag
    INSIDE = 2
    AFTER = 3  # white space after the closing tag is dropped
    CONTENT = 4


class ThinkSplitter:
    """Tells thinking from content, wherever the text is cut."""

    __slots__ = ("_held", "_may_reopen", "_seen", "_state")

    def __init__(self, *, opened: bool = False) -> None:
        self._state = _State.INSIDE if opened else _State.START
        self._held = ""
        self._may_reopen = opened  # the template opened the tag; some models do so again
        self._seen = False  # whether thinking text was given; its start is trimmed

    def feed(self, text: str) -> tuple[str, str]:
        """Return (thinking, content) that are certain by now."""
        if self._state is _State.CONTENT:
            return "", text
        held = self._held + text
        self._held = ""
        thinking = ""
        if self._state is _State.START:
            stripped = held.lstrip()
            if stripped.startswith(OPEN):
                self._state = _State.INSIDE
                held = stripped[len(OPEN) :]
            elif OPEN.startswith(stripped):  # also when it is empty
                self._held = held
                return "", ""
            else:
                self._state = _State.CONTENT
                return "", held
        if self._state is _State.INSIDE:
            if not self._seen:
                held = held.lstrip()
                if self._may_reopen:
                    if OPEN.startswith(held) and held != OPEN:
                        self._held = held
                        return "", ""
                    self._may_reopen = False
                    held = held.removeprefix(OPEN).lstrip()
            thinking, closed, rest = held.partition(CLOSE)
            if not closed:
                keep = _overlap(held, CLOSE)
                # white space before the tag belongs to the tag
                body = held[: len(held) - keep].rstrip()
                self._held = held[len(body) :]
                self._seen = self._seen or bool(body)
                return body, ""
            self._state = _State.AFTER
            thinking = thinking.rstrip()
            held = rest
        if self._state is _State.AFTER:
            held = held.lstrip()
            if held:
                self._state = _State.CONTENT
        return thinking, held

    def finish(self) -> tuple[str, str]:
        """Return what was held back: an answer may end inside a tag."""
        held, self._held = self._held, ""
        if self._state is _State.INSIDE:
            return held.rstrip(), ""
        return "", held


def split_thinking(text: str, *, opened: bool = False) -> tuple[str, str]:
    """Split a whole text into (thinking, content)."""
    splitter = ThinkSplitter(opened=opened)
    thinking, content = splitter.feed(text)
    more_thinking, more_content = splitter.finish()
    return thinking + more_thinking, content + more_content


def _overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of `text` begin `tag`."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0
