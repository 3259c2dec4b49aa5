"""Agreement of two responses to one prompt. Pure.

Greedy answers agree up to a first difference; what comes after it continues another text and says
nothing more. So agreement is the share of an answer before it, and log probabilities are compared
where both engines had the same text before them: up to the first difference, and at it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from vllama.observe.captures.answer import Response, Token

LEAST = 1e-9
"""Below it a probability is what rounding has left."""
AROUND = 40
"""How many characters are kept on either side of a difference."""
WIDE_GAP = 1.0
"""Nats: a first difference at which an engine preferred its choice by more is no close call. Equal
weights in two engines differ by up to 0.6 there (docs/guide/measure.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where two answers differ.

    `token` counts the tokens of the first answer before it (None: they are unknown), `character`
    its characters. `before` is the text that both share there, `a` and `b` are how they go on (""
    where one ends). `gap` is by how much, in log probability, an engine preferred its own choice to
    the other's, the larger of both; None: that is not among the likeliest tokens that it returned.
    Small gaps: a close call, which rounding decides. `is_unforeseen`: neither choice was among the
    likeliest tokens of the other engine. `where` names one of several texts of an answer.
    """

    token: int | None
    character: int
    before: str
    a: str
    b: str
    gap: float | None
    is_unforeseen: bool
    where: str = "text"

    @property
    def is_measured(self) -> bool:
        """True if log probabilities show how close the choice was."""
        return self.gap is not None or self.is_unforeseen

    @property
    def is_wide(self) -> bool:
        """True if an engine was sure of its choice, so that rounding cannot have made it."""
        return self.is_unforeseen if self.gap is None else self.gap > WIDE_GAP


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two answers to one prompt.

    `agreed` of `tokens` (of the longer answer) came before the first difference; both are None
    where an engine tells no tokens. `agreement` is their share, else that of the text's bytes.
    `difference` None: the same answers, as far as both go. `logprobs` and `divergences` are
    absolute differences at the positions where both engines had the same text before: of what the
    first engine chose, and of all that is known there, in nats (see `divergence`).
    """

    agreement: float
    text_agreement: float
    agreed: int | None
    tokens: int | None
    difference: Difference | None
    logprobs: tuple[float, ...]
    divergences: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Means and largest values over some comparisons; None without log probabilities of both."""

    compared: int
    logprob_mean: float | None
    logprob_max: float | None
    kl_mean: float | None
    kl_max: float | None


def measure(found: Iterable[Comparison]) -> Numbers:
    """Return the numbers of comparisons, taken together."""
    found = list(found)
    logprobs = [value for each in found for value in each.logprobs]
    divergences = [value for each in found for value in each.divergences]
    return Numbers(
        compared=len(logprobs),
        logprob_mean=fmean(logprobs) if logprobs else None,
        logprob_max=max(logprobs, default=None),
        kl_mean=fmean(divergences) if divergences else None,
        kl_max=max(divergences, default=None),
    )


def compare(a: Response, b: Response) -> Comparison:
    """Compare two greedy answers to one prompt."""
    common = _common(a.text, b.text)
    same = _same(a, b, common)
    # of an answer that was cut no more is known, so that the other counts up to there only
    length = common if same else max(len(a.text), len(b.text))
    share = text_share = common / length if length else 1.0
    agreed = tokens = None
    if a.tokens is not None and b.tokens is not None:
        agreed = sum(token.end <= common for token in a.tokens)
        tokens = agreed if same else max(len(a.tokens), len(b.tokens))
        share = agreed / tokens if tokens else text_share
    logprobs, divergences = _measure_tokens(a, b, common)
    return Comparison(
        agreement=share,
        text_agreement=text_share,
        agreed=agreed,
        tokens=tokens,
        difference=None if same else _difference(a, b, common),
        logprobs=logprobs,
        divergences=divergences,
    )


def divergence(p: Mapping[bytes, float], q: Mapping[bytes, float]) -> float:
    """Return the Kullback-Leibler divergence D(p‖q) in nats, of what is known of both.

    Both map tokens to log probabilities, and are the heads of longer lists: the tokens in both
    count one by one, all others as one. By that it is never more than that of the whole lists.
    """
    total, rest_p, rest_q = 0.0, 1.0, 1.0
    for token in p.keys() & q.keys():
        likely = math.exp(p[token])
        total += likely * (p[token] - q[token])
        rest_p -= likely
        rest_q -= math.exp(q[token])
    if rest_p > LEAST:
        total += rest_p * math.log(rest_p / max(rest_q, LEAST))
    return max(0.0, total)


def _common(a: bytes, b: bytes) -> int:
    """Return how many bytes both begin with."""
    differing = (at for at, (one, other) in enumerate(zip(a, b, strict=False)) if one != other)
    return next(differing, min(len(a), len(b)))


def _same(a: Response, b: Response, common: int) -> bool:
    """Tell whether two answers do not differ: equal, or one only cut earlier than the other."""
    ends_a, ends_b = common == len(a.text), common == len(b.text)
    return (ends_a and ends_b) or (ends_a and a.cut) or (ends_b and b.cut)


def _measure_tokens(
    a: Response, b: Response, common: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compare at each token that both engines chose after the same text."""
    starts = {token.start: token for token in b.tokens or ()}
    logprobs, divergences = [], []
    for one in a.tokens or ():
        other = starts.get(one.start)
        if other is None or one.start > common:
            continue
        if one.end != other.end and min(one.end, other.end) <= common:
            continue  # the same text in other tokens: not the same choice
        seen = _find_logprob(b, other, a.piece(one))
        if one.logprob is not None and seen is not None:
            logprobs.append(abs(one.logprob - seen))
        if one.top and other.top:
            divergences.append(divergence(one.top, other.top))
    return tuple(logprobs), tuple(divergences)


def _difference(a: Response, b: Response, common: int) -> Difference:
    one, other = _token_at(a, common), _token_at(b, common)
    if one and other and one.start == other.start:
        start = one.start
        gaps = [_gap(a, one, b.piece(other)), _gap(b, other, a.piece(one))]
        # the list of a character that is made of several tokens is that of the last one only
        has_top = bool(one.top and other.top) and (a.piece(one) + b.piece(other)).isascii()
    else:
        start = common
        while start and a.text[start - 1] >= 0x80:  # not in the middle of a character
            start -= 1
        gaps = [
            _gap_to_text(a, one, b.text) if one and b.tokens is None else None,
            _gap_to_text(b, other, a.text) if other and a.tokens is None else None,
        ]
        told = one if b.tokens is None else other if a.tokens is None else None
        has_top = told is not None and bool(told.top)
    known = [gap for gap in gaps if gap is not None]
    before = a.text[:start].decode(errors="ignore")
    return Difference(
        token=None if a.tokens is None else sum(token.end <= common for token in a.tokens),
        character=len(before),
        before=before[-AROUND:],
        a=a.text[start:].decode(errors="replace")[:AROUND],
        b=b.text[start:].decode(errors="replace")[:AROUND],
        gap=max(known, default=None),
        is_unforeseen=has_top and not known,
    )


def _token_at(answer: Response, at: int) -> Token | None:
    return next((token for token in answer.tokens or () if token.start <= at < token.end), None)


def _find_logprob(answer: Response, token: Token, piece: bytes) -> float | None:
    """Return the log probability that an engine gave to `piece` where it chose `token`."""
    return token.logprob if answer.piece(token) == piece else token.top.get(piece)


def _gap(answer: Response, token: Token, other: bytes) -> float | None:
    """Return by how much an engine preferred its choice to `other`."""
    theirs = token.top.get(other)
    return None if token.logprob is None or theirs is None else token.logprob - theirs


def _gap_to_text(answer: Response, token: Token, other: bytes) -> float | None:
    """Return by how much an engine preferred its choice to what stands in another text there.

    The tokens of that text are unknown: it is taken for the longest likely one that it begins with.
    """
    rest = other[token.start :]
    chosen = answer.piece(token)
    begun = [piece for piece in token.top if piece != chosen and piece and rest.startswith(piece)]
    return _gap(answer, token, max(begun, key=len)) if begun else None
