"""gpt-oss's channels told apart: analysis is thinking, final is the answer, a recipient is a call.

An answer is a row of messages: `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>
final<|message|>…`; a call names its function before or after the channel (`to=functions.name`).
llama.cpp leaves `<|end|>`, `<|return|>` and `<|call|>` out of the text, so a message may also end
where the next one starts. Format: OpenAI's harmony guide.
"""

from __future__ import annotations

import re
from enum import Enum

BEGINNINGS = ("<|channel|>", "<|start|>")
_MESSAGE = "<|message|>"
_NEXT = "<|start|>assistant<|channel|>"
FINAL = f"{_NEXT}final{_MESSAGE}"
"""Begins the message that is the response."""
AFTER_THINKING = (f"{_NEXT}final", f"{_NEXT}commentary", "<|start|>assistant to=")
"""Begin what follows the thinking: a message to the user, or a call."""
_LONGEST_HEADER = 400
_ENDS = ("<|end|>", "<|return|>", "<|call|>", *BEGINNINGS)
TAGS = (*_ENDS, _MESSAGE, "<|constrain|>")
_LONGEST_END = max(map(len, _ENDS))
_END = re.compile("|".join(map(re.escape, _ENDS)))
_TAG = re.compile(r"<\|\w*+\|?>?")
_RECIPIENT = re.compile(r"\bto=\s*+(?:functions\.)?([^\s<]++)")
_CHANNEL = re.compile(r"<\|channel\|>\s*+(\w++)")
# what may stand in a header, besides `to=`; anything else that was never a message is text
_HEADER_WORDS = frozenset({"", "assistant", "analysis", "commentary", "final", "json", "code"})
_CUT_WORD = re.compile(r"[\w.]{0,12}")


class _Kind(Enum):
    HEADER = 1
    THINKING = 2
    CONTENT = 3
    CALL = 4  # passed on as written, for the one who reads calls


class HarmonySplitter:
    """Tells thinking from content, wherever the text is cut. Its text begins with a tag."""

    __slots__ = ("_calls", "_held", "_kind", "_said")

    def __init__(self, *, calls: bool = True) -> None:
        """`calls`: somebody reads the calls; else what is said to a function is content."""
        self._calls = calls
        self._held = ""
        self._kind = _Kind.HEADER
        self._said: set[_Kind] = set()

    def feed(self, text: str) -> tuple[str, str]:
        """Return (thinking, content) that are certain by now; calls are in the content."""
        held = self._held + text
        at = 0  # what stands before has been told
        thinking: list[str] = []
        content: list[str] = []
        while True:
            no_header = ""
            if self._kind is _Kind.HEADER:
                limit = at + _LONGEST_HEADER + len(_MESSAGE)
                message = held.find(_MESSAGE, at, limit)
                if message < 0 and len(held) < limit:
                    break
                self._begin(held[at : max(message, at)], thinking, content)
                no_header = _TAG.sub("", held[at:limit]) if message < 0 else ""
                at = limit if message < 0 else message + len(_MESSAGE)
            out = thinking if self._kind is _Kind.THINKING else content
            out.append(no_header)
            self._said.add(self._kind)
            end = _END.search(held, at)
            if end is None:
                certain = len(held) - _overlap(held, at)
                out.append(held[at:certain])
                at = certain
                break
            out.append(held[at : end.start()])
            if self._kind is _Kind.CALL:
                content.append("<|call|>")
            # `<|channel|>` belongs to the header that it begins
            at = end.end() if end[0] not in BEGINNINGS else end.start()
            self._kind = _Kind.HEADER
        self._held = held[at:]
        return "".join(thinking), "".join(content)

    def finish(self) -> tuple[str, str]:
        """Return the held-back rest: a header that was cut is nothing, other text is content."""
        held, self._held = self._held, ""
        if self._kind is _Kind.THINKING:
            return held, ""
        if self._kind is _Kind.HEADER:
            return "", "" if _is_cut_header(held) else _TAG.sub("", held)
        return "", held

    def _begin(self, header: str, thinking: list[str], content: list[str]) -> None:
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient is not None and self._calls:
            self._kind = _Kind.CALL
            if not header.startswith("<|channel|>commentary to="):  # as it was, if it is quoted
                header = f"<|channel|>commentary to=functions.{recipient[1]}"
            content.append(f"{header}{_MESSAGE}")
            return
        is_thinking = channel is not None and channel[1] == "analysis"
        self._kind = _Kind.THINKING if is_thinking else _Kind.CONTENT
        if self._kind in self._said:  # a message of its own, so on a line of its own
            (thinking if is_thinking else content).append("\n")


def _is_cut_header(text: str) -> bool:
    """Tell whether a text is a header, or the beginning of one: its last word may be cut."""
    *whole, last = re.split(r"\s", _TAG.sub(" ", text))
    known = all(word in _HEADER_WORDS or word.startswith("to=") for word in whole)
    return known and (last.startswith("to=") or _CUT_WORD.fullmatch(last) is not None)


def _overlap(text: str, start: int) -> int:
    """Return how many characters at the end of `text`, after `start`, may begin a tag."""
    at = text.find("<", max(start, len(text) - _LONGEST_END + 1))
    while at >= 0:
        if any(tag.startswith(text[at:]) for tag in _ENDS):
            return len(text) - at
        at = text.find("<", at + 1)
    return 0
