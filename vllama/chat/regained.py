"""Whole characters for answers with log probabilities, of an engine that loses parts of them.

llama.cpp's Python server sends such answers token by token, and of a token that is a part of a
character (an emoji is three) it sends the empty text. Without log probabilities it sends whole
characters. So an answer is passed on until the first such token; the rest waits until the engine is
done and has been asked once more for the same tokens (same seed, a tenth of the time), for their
text only. Where that text is another one, the answer stays as it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from vllama.chat.engine.traits import Traits
from vllama.chat.filters import AlteredReply
from vllama.chat.framing import DONE, SseReader
from vllama.chat.logprobs import ollama_logprobs
from vllama.chat.reply import Reply
from vllama.chat.request import Call

PART = "\N{REPLACEMENT CHARACTER}"
_MOST_PLACES = 400


def whole_characters(reply: Reply, call: Call, traits: Traits) -> Reply:
    """Return the reply as it is, or one that can be given what the engine loses of `call`."""
    # most calls ask for none: a long conversation is not read again to see that
    if not traits.loses_characters or b'"logprobs"' not in call.body:
        return reply
    return RegainedReply(reply) if msgspec.json.decode(call.body).get("logprobs") else reply


def text_only(call: Call) -> Call:
    """Return the call that makes the same tokens and tells their text only."""
    body = msgspec.json.decode(call.body)
    for name in ("logprobs", "top_logprobs"):
        body.pop(name, None)
    return Call(path=call.path, body=msgspec.json.encode(body))


def streamed_text(body: bytes) -> str:
    """Return the text of an engine's whole stream, "" if there is none to be found."""
    reader = SseReader()
    texts = []
    for payload in reader.feed(body) + reader.close():
        choice = _choice(payload)
        if choice is not None:
            texts.append(_text(choice))
    return "".join(texts)


class RegainedReply(AlteredReply):
    """A reply that waits, from the first token that was lost, for `regain`."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._said: list[str] = []
        self._held: list[bytes] = []
        self._late = b""
        self._holds_end = False

    @property
    def lost(self) -> bool:
        """Whether parts of characters were lost."""
        return bool(self._held)

    def regain(self, text: str, now_ns: int) -> None:
        """Take the whole answer's text; what it makes is sent by `finish`."""
        said = "".join(self._said)
        events = _mended(self._held, text[len(said) :]) if text.startswith(said) else None
        self._late = super()._pass(events or self._held, now_ns)
        self._held = []

    def finish(self, now_ns: int) -> bytes:
        """Return what was held, and the rest. Raises what the reply raises."""
        if self._held:
            self.regain("", now_ns)
        return self._late + super().finish(now_ns)

    def _alter(self, event: dict[str, Any]) -> dict[str, Any]:
        return event

    def _pass(self, payloads: list[bytes], now_ns: int) -> bytes:
        ready = []
        for payload in payloads:
            choice = _choice(payload)
            if choice is not None and (self._held or _is_part(choice)):
                self._held.append(payload)
                self._holds_end |= choice.get("finish_reason") is not None
                continue
            if choice is not None:
                self._said.append(_text(choice))
            if payload != DONE or not self._held:
                ready.append(payload)
        out = super()._pass(ready, now_ns)
        self.ended |= self._holds_end
        return out


@dataclass(slots=True)
class _Piece:
    """A text that came, or with `parts` a number of tokens whose text did not."""

    events: list[bytes]
    text: str = ""
    parts: int = 0


def _mended(events: Sequence[bytes], text: str) -> list[bytes] | None:
    """Put the lost characters of `text` into the events; None if it is not the text of these."""
    pieces: list[_Piece] = []
    for event in events:
        choice = _choice(event) or {}
        if not _is_part(choice):
            pieces.append(_Piece([event], _text(choice)))
        elif pieces and pieces[-1].parts:
            pieces[-1].events.append(event)
            pieces[-1].parts += 1
        else:
            pieces.append(_Piece([event], parts=1))
    ends = _aligned(pieces, text)
    if ends is None:
        return None
    out, start = [], 0
    for piece, end in zip(pieces, ends, strict=True):
        lost = text[start:end] if piece.parts else ""
        out += [_whole(piece.events, lost)] if lost else piece.events
        start = end
    return out


def _aligned(pieces: Sequence[_Piece], text: str) -> list[int] | None:
    """Return where in `text` each piece ends, None if they do not make it up.

    Lost tokens are characters beyond ASCII, of four bytes at most, and no more than one more than
    there are tokens: their neighbours may have lost a part as well. Where a text repeats itself so
    often that a piece may end in more than `_MOST_PLACES`, the search is given up.
    """
    steps: list[dict[int, int]] = []  # of each piece: where it may end, and where it begins then
    starts: Sequence[int] = (0,)
    for piece in pieces:
        step: dict[int, int] = {}
        for start in starts:
            if not piece.parts:
                if text.startswith(piece.text, start):
                    step.setdefault(start + len(piece.text), start)
                continue
            for end in range(start, min(start + piece.parts + 1, len(text)) + 1):
                if end > start and text[end - 1].isascii():
                    break
                step.setdefault(end, start)
        if len(step) > _MOST_PLACES:
            return None
        steps.append(step)
        starts = list(step)
    ends = [len(text)]
    for step in reversed(steps):
        if ends[-1] not in step:
            return None
        ends.append(step[ends[-1]])
    return ends[-2::-1]


def _whole(events: Sequence[bytes], text: str) -> bytes:
    """Return one event for the tokens of some characters, with the bytes of each.

    How these were shared is not known: the first token of a character is the one that is longer.
    """
    event = msgspec.json.decode(events[-1])
    entries = [
        entry for each in events for entry in ollama_logprobs((_choice(each) or {}).get("logprobs"))
    ]
    data = text.encode()
    first = max(0, len(data) - len(entries) + 1)
    shares = [data[:first], *(data[n : n + 1] for n in range(first, len(data)))]
    for entry, share in zip(entries, shares, strict=False):
        chosen = {"token": PART, "bytes": list(share)}
        for other in entry.get("top_logprobs", ()):
            if not other["token"] and other["logprob"] == entry["logprob"]:
                other |= chosen
        entry |= chosen
    choice = event["choices"][0]
    if isinstance(choice.get("delta"), dict):
        choice["delta"]["content"] = text
    else:
        choice["text"] = text
    choice["logprobs"] = {"content": entries}
    return msgspec.json.encode(event)


def _choice(payload: bytes) -> dict[str, Any] | None:
    """Return an event's first choice; None for anything else, which the reply looks at."""
    try:
        event = msgspec.json.decode(payload)
    except ValueError:
        return None
    choices = event.get("choices") if isinstance(event, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def _is_part(choice: dict[str, Any]) -> bool:
    """Tell whether it is a token without a text."""
    return not _text(choice) and bool(ollama_logprobs(choice.get("logprobs")))
