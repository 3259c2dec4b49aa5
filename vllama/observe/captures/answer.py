"""One engine's greedy answer: its text in bytes, and where in it each token stands.

Engines write tokens as pieces of text, and not all alike. A character may be several tokens: one
engine names them in one entry, another writes the first ones as empty and the last as the whole
character, a third writes all as empty and leaves the character out of the text too. So tokens are
placed by the bytes of the answer that they make.

An answer that is no text has numbers, vectors and scores, apart from what is beside them.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are no whole character."""
VOLATILE = frozenset(
    {
        "id", "model", "created", "created_at", "completed_at", "system_fingerprint",
        "total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "usage",
    }
)  # fmt: skip
"""Fields that are different each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token, or several that only their bytes together are known of.

    `start` and `end` are bytes of the answer's text. `logprob` is natural, None: unknown. `top`
    are the likeliest tokens there, by their bytes; those whose bytes are unknown are left out.
    """

    start: int
    end: int
    logprob: float | None = None
    top: Mapping[bytes, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer; `tokens` None: the engine tells none, or tells them so that they have no place.

    `cut`: it ended at the limit of tokens, not by itself.
    """

    text: bytes
    cut: bool
    tokens: tuple[Token, ...] | None = None

    def piece(self, token: Token) -> bytes:
        """Return the bytes of a token."""
        return self.text[token.start : token.end]


def lacks_text(choice: Mapping[str, Any]) -> bool:
    """Tell whether a choice of `/v1/completions` may lack text that its tokens stand for.

    An engine that streams log probabilities may decode token by token, and drop what is no whole
    character. Asked for by itself, the text is whole.
    """
    return any(_data(piece) is None for piece in _logprobs(choice).get("tokens") or ())


def read_answer(choice: Mapping[str, Any], whole: Mapping[str, Any] | None = None) -> Response:
    """Read a choice of `/v1/completions`; `whole` is the same one asked for without logprobs."""
    source, given = whole or choice, _logprobs(choice)
    cut = source.get("finish_reason") == "length"
    text = str(source.get("text") or "")
    if cut:  # in the middle of a character, perhaps
        text = text.rstrip(REPLACEMENT)
    pieces = given.get("tokens") or ()
    size = len(pieces)
    entries = [
        _Entry(data=_data(piece), logprob=logprob, top=_top(top))
        for piece, logprob, top in zip(
            pieces,
            _pad(given.get("token_logprobs"), size),
            _pad(given.get("top_logprobs"), size),
            strict=True,
        )
    ]
    return _place(text.encode(errors="replace"), entries, cut=cut)


def make_answer(text: str, *, cut: bool, entries: Sequence[Mapping[str, Any]] = ()) -> Response:
    """Make the answer of a chat; `entries` are its log probabilities in the form of OpenAI's chats.

    That is a token each, with `bytes`, `logprob` and `top_logprobs` of the same form.
    """
    placed = [
        _Entry(
            data=_entry_data(entry),
            logprob=entry.get("logprob"),
            top={
                data: other["logprob"]
                for other in entry.get("top_logprobs") or ()
                if (data := _entry_data(other)) and other.get("logprob") is not None
            },
        )
        for entry in entries
    ]
    text = text.rstrip(REPLACEMENT) if cut else text  # in the middle of a character, perhaps
    return _place(text.encode(errors="replace"), placed, cut=cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Data of an engine about a token; `data` None: its bytes are unknown."""

    data: bytes | None
    logprob: float | None
    top: dict[bytes, float]


def _place(data: bytes, entries: Sequence[_Entry], *, cut: bool) -> Response:
    """Return an answer with its tokens in their places."""
    spans = locate_tokens(data, [entry.data for entry in entries]) if entries else None
    if spans is None:
        return Response(text=data, cut=cut)
    tokens = []
    for span in spans:
        logprob, top = None, {}
        if span.token is not None:
            logprob, top = entries[span.token].logprob, dict(entries[span.token].top)
        if top and logprob is not None:  # a rarer token with the same text may stand for it
            top[data[span.start : span.end]] = logprob
        tokens.append(Token(start=span.start, end=span.end, logprob=logprob, top=top))
    return Response(text=data, cut=cut, tokens=tuple(tokens))


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a text, and the index of the token that they are; None: several together."""

    start: int
    end: int
    token: int | None


def locate_tokens(text: bytes, pieces: Sequence[bytes | None]) -> list[Span] | None:
    """Find the place of each token in a text; None if they do not make that text.

    A piece that is None has unknown bytes: a part of a character, at least. It has no place where
    the other pieces are all of the text already. Nor has the token that ends an answer.
    """
    known = list(_in_order(text, pieces))
    if known and known[-1].end == len(text):
        return known
    found = _with_gaps(text, pieces)
    if found is None:
        last = max((i for i, piece in enumerate(pieces) if piece is not None), default=0)
        found = _with_gaps(text, pieces[:last])
    return found


def _in_order(text: bytes, pieces: Sequence[bytes | None]) -> Iterator[Span]:
    """Yield the places of pieces that follow each other, as far as they do."""
    at = 0
    for index, piece in enumerate(pieces):
        if piece is None:
            continue
        rest = text[at : at + len(piece)]
        if not rest or not piece.startswith(rest):  # it may be cut at the end of the text
            return
        yield Span(at, at + len(rest), index)
        at += len(rest)


def _with_gaps(text: bytes, pieces: Sequence[bytes | None]) -> list[Span] | None:
    """Place pieces between which bytes beyond ASCII may be missing: those of the unknown pieces.

    Several unknown ones in a row have their place together. Where none is between two pieces, the
    missing bytes are the end of the one before.
    """
    spans: list[Span] = []
    at = waiting = 0  # how far the text is explained; how many unknown pieces came last
    for index, piece in enumerate([*pieces, b""]):
        if piece is None:
            waiting += 1
            continue
        found = _find(text, piece, at, waiting) if piece else len(text)
        if found is None or not _beyond_ascii(text[at:found]):
            return None
        if at < found and waiting:
            spans.append(Span(at, found, index - 1 if waiting == 1 else None))
        elif at < found:
            if not spans:
                return None
            spans[-1] = Span(spans[-1].start, found, spans[-1].token)
        if piece:
            spans.append(Span(found, found + len(piece), index))
        at, waiting = found + len(piece), 0
    return spans


def _find(text: bytes, piece: bytes, at: int, waiting: int) -> int | None:
    """Find a piece behind `at`, one byte at least for each that waits if that is possible."""
    for least in (at + waiting, at):
        found = text.find(piece, least)
        if found >= 0 and _beyond_ascii(text[at:found]):
            return found
    return None


def _beyond_ascii(data: bytes) -> bool:
    return all(byte >= 0x80 for byte in data)


def _logprobs(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    return choice.get("logprobs") or {}


def _data(piece: object) -> bytes | None:
    """Return the bytes of a token's text; None if that is not all of them."""
    if not isinstance(piece, str) or not piece or REPLACEMENT in piece:
        return None
    return piece.encode(errors="replace")


def _entry_data(entry: Mapping[str, Any]) -> bytes | None:
    """Return the bytes of a token of a chat; None if they are unknown."""
    given = entry.get("bytes")
    return bytes(given) if given else _data(entry.get("token"))


def _pad(values: object, size: int) -> list[Any]:
    given = values[:size] if isinstance(values, list) else []
    return given + [None] * (size - len(given))


def _top(source: Mapping[str, float] | None) -> dict[bytes, float]:
    return {data: value for name, value in (source or {}).items() if (data := _data(name))}


def split_numbers(value: Any, place: str, numbers: dict[str, list[float]]) -> Any:
    """Move fractions, and lists of numbers, to `numbers`; return the rest without what varies.

    `place` is where `value` is in the answer, such as `data[0].embedding`.
    """
    if place.endswith(".embedding") and isinstance(value, str):
        value = _decode_vector(value)
    if isinstance(value, float):
        numbers[place] = [value]
        return "…"
    if isinstance(value, list):
        if value and all(isinstance(one, int | float) for one in value):
            numbers[place] = [float(one) for one in value]
            return f"{len(value)} numbers"
        parts = enumerate(value)
        return [split_numbers(one, f"{place}[{index}]", numbers) for index, one in parts]
    if isinstance(value, dict):
        return {
            name: split_numbers(one, f"{place}.{name}" if place else name, numbers)
            for name, one in value.items()
            if name not in VOLATILE
        }
    return value


def _decode_vector(text: str) -> object:
    """Return the vector of `encoding_format` "base64"; the text itself if it is none."""
    try:
        data = base64.b64decode(text, validate=True)
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    except (ValueError, struct.error):
        return text
