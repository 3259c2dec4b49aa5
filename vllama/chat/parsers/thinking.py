"""Splitting `<think>…</think>` from an answer, for engines that do not.

Only at the start of an answer, where the models put it; a tag later in the text is text. Some
templates open the tag themselves, so that the answer begins inside it (`opened`). Families have
other words for it (`PAIRS`); which one it is shows when it comes. gpt-oss writes channels instead,
see `harmony`. The tags must never be seen in the content.

See docs/reference/ollama-api.md#thinking.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from vllama.chat.parsers.harmony import AFTER_THINKING, BEGINNINGS, FINAL, HarmonySplitter

PAIRS: Mapping[str, str] = {
    "<think>": "</think>",  # Qwen, DeepSeek, GLM, Kimi, MiniMax and most others
    "<thought>": "</thought>",  # EXAONE Deep
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",  # Magistral
    "◁think▷": "◁/think▷",  # Kimi VL
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command A
    "<|channel>thought": "<channel|>",  # Gemma 4
    "<|inner_prefix|>": "<|inner_suffix|>",  # Apertus
    "Here is my thought process:": "Here is my response:",  # Granite 3.2
    "Here's my thought process:": "Here's my response:",  # the same
}
"""What opens the thinking, and what closes it: as the models' chat templates on the hub have it."""

_OPENINGS = tuple(PAIRS)
_CLOSINGS = tuple(PAIRS.values())
ENDS = (*_CLOSINGS, *AFTER_THINKING)
"""All that ends thinking, in any family's words."""


def _list_prefixes(*tags: str) -> frozenset[str]:
    """Return all that may become one of `tags`, and they themselves."""
    return frozenset(tag[:size] for tag in tags for size in range(len(tag) + 1))


_OPENING_PREFIXES = _list_prefixes(*_OPENINGS)
PREFIXES = _list_prefixes(*_OPENINGS, *BEGINNINGS)


class _State(Enum):
    START = 1  # nothing seen but white space and perhaps the beginning of the tag
    INSIDE = 2
    AFTER = 3  # white space after the closing tag is dropped
    CONTENT = 4


class ThinkSplitter:
    """Tells thinking from content, wherever the text is cut."""

    __slots__ = (
        "_blank", "_calls", "_closings", "_harmony", "_held", "_keeps_end", "_kept", "_may_reopen",
        "_raw", "_seen", "_state",
    )  # fmt: skip

    def __init__(
        self,
        *,
        opened: bool = False,
        calls: bool = True,
        keeps_end: bool = False,
        may_be_text: bool = False,
        is_whole: bool = False,
    ) -> None:
        """`opened`: the prompt has opened the tag; `calls`: a `CallScanner` reads the content.

        `keeps_end`: white space before the closing tag belongs to the thinking. `may_be_text`: it
        is not known whether the model thinks, so a tag that is never closed may be a word; if
        `is_whole`, such thinking is held back, because nobody reads it before the end.
        """
        self._raw: list[str] | None = [] if may_be_text and not opened else None
        self._kept: list[str] | None = [] if is_whole and self._raw is not None else None
        self._calls = calls
        self._keeps_end = keeps_end
        self._state = _State.INSIDE if opened else _State.START
        self._blank: list[str] = []  # white space of which only what follows tells where it belongs
        self._held = ""  # what may become a tag, after that white space
        self._may_reopen = opened  # the template opened the tag; some models do so again
        self._seen = False  # whether thinking text was given; its start is trimmed
        self._closings: tuple[str, ...] = _CLOSINGS
        self._harmony: HarmonySplitter | None = None

    @property
    def is_over(self) -> bool:
        """True if all that still comes is content."""
        return self._state is _State.CONTENT

    @property
    def may_be_text(self) -> bool:
        """True if the text began with a tag that is open and may be a word."""
        return self._raw is not None and self._state is _State.INSIDE

    def give_back(self) -> str:
        """Return the whole text."""
        return "".join(self._raw or ())

    def feed(self, text: str) -> tuple[str, str]:
        """Return (thinking, content) that are certain by now."""
        if self._raw is not None and not self.is_over:
            self._raw.append(text)
        if self._harmony is not None:
            return self._harmony.feed(text)
        if self._state is _State.CONTENT:
            return "", text
        held = self._held + text
        self._held = ""
        thinking = ""
        if self._state is _State.START:
            stripped = held.lstrip()
            if len(stripped) < len(held):
                self._blank.append(held[: len(held) - len(stripped)])
            if stripped.startswith(BEGINNINGS):
                self._harmony = HarmonySplitter(calls=self._calls)
                return self._harmony.feed(stripped)
            opening = _opening(stripped)
            if opening:
                self._state = _State.INSIDE
                self._closings = (PAIRS[opening],)
                self._blank.clear()
                held = stripped[len(opening) :]
            elif stripped in PREFIXES:
                self._held = stripped
                return "", ""
            else:
                self._state = _State.CONTENT
                return "", "".join((*self._blank, stripped))
        if self._state is _State.INSIDE:
            if not self._seen:
                held = held.lstrip()
                if self._may_reopen:
                    if held not in PAIRS and held in _OPENING_PREFIXES:
                        self._held = held
                        return "", ""
                    self._may_reopen = False
                    held = held[len(_opening(held)) :].lstrip()
            at, closing = _find(held, self._closings)
            if at < 0:
                keep = max(_overlap(held, tag) for tag in self._closings)
                self._held = held[len(held) - keep :]
                thinking = self._trim_thinking(held[: len(held) - keep])
                if self._kept is None:
                    return thinking, ""
                self._kept.append(thinking)
                return "", ""
            self._state = _State.AFTER
            thinking = "".join(self._kept or ()) + self._trim_thinking(held[:at])
            held = held[at + len(closing) :]
        if self._state is _State.AFTER:
            held = held.lstrip()
            if held:
                self._state = _State.CONTENT
        return thinking, held

    def finish(self) -> tuple[str, str]:
        """Return the held-back rest: a response may end inside a tag."""
        if self._harmony is not None:
            return self._harmony.finish()
        held, self._held = self._held, ""
        if self._state is _State.INSIDE:
            text = "".join((*(self._kept or ()), *self._blank, held))
            return text if self._keeps_end else text.rstrip(), ""
        return "", "".join((*self._blank, held)) if self._state is _State.START else held

    def _trim_thinking(self, text: str) -> str:
        """Return thinking, and hold back the white space at its end unless that is kept."""
        body = text if self._keeps_end else text.rstrip()
        blank = text[len(body) :]
        if body:
            self._seen = True
            if self._blank:
                body = "".join((*self._blank, body))
                self._blank.clear()
        if blank:
            self._blank.append(blank)
        return body


class Trim:
    """Takes off the empty lines around thinking that an engine has split off itself.

    Engines leave them: the one after `</think>` begins their answer. Ollama's begins with the text,
    and so does that of `ThinkSplitter`. A space is part of a word and stays.
    """

    __slots__ = ("_begun", "_newlines", "after")

    def __init__(self) -> None:
        self.after = False
        """Whether thinking came last, so that newlines may still stand before the text."""
        self._begun = False
        self._newlines = 0  # they belong to the thinking only if more of it follows

    def feed(self, thinking: str, text: str) -> tuple[str, str]:
        """Return the rest of one event's thinking and text."""
        if thinking:
            held = thinking if self._begun else thinking.lstrip("\r\n")
            thinking = held.rstrip("\n")
            newlines = len(held) - len(thinking)
            if thinking:
                thinking = "\n" * self._newlines + thinking
                self._newlines, self._begun = newlines, True
            else:
                self._newlines += newlines
            self.after = True
        if text and self.after:
            text = text.lstrip("\r\n")
            if text:
                self._newlines, self._begun, self.after = 0, False, False
        return thinking, text


def find_open(prompt: str) -> str:
    """Return the end mark of the thinking inside which a prompt ends; empty: none."""
    end = prompt.rstrip()
    return next((closing for tag, closing in PAIRS.items() if end.endswith(tag)), "")


def find_closing(text: str) -> str:
    """Return the end mark of the thinking with which a response begins; empty: none has begun."""
    if text.lstrip().startswith(BEGINNINGS):
        return FINAL
    opening = thinking_opening(text)
    return PAIRS[opening] if opening else ""


def thinking_opening(text: str) -> str:
    """Return the tag of thinking that a text begins with, after white space; empty: none."""
    return _opening(text.lstrip())


def is_unfinished(text: str) -> bool:
    """Tell whether a text begins with thinking that does not end in it."""
    opening = thinking_opening(text)
    return bool(opening) and PAIRS[opening] not in text


def _opening(text: str) -> str:
    if not text.startswith(_OPENINGS):
        return ""
    return next(tag for tag in _OPENINGS if text.startswith(tag))


def _find(text: str, tags: Collection[str]) -> tuple[int, str]:
    """Return where the first tag is and which; -1 if there is none."""
    found = [(at, tag) for tag in tags if (at := text.find(tag)) >= 0]
    return min(found, default=(-1, ""))


def _overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of `text` begin `tag`."""
    at = text.find(tag[0], max(0, len(text) - len(tag) + 1))
    while at >= 0:
        if tag.startswith(text[at:]):
            return len(text) - at
        at = text.find(tag[0], at + 1)
    return 0
