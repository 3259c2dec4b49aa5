"""Whether an answer is still the same: exactly, within what engines do by chance, or not.

Texts are compared as `vllama verify` compares them. A first difference is within the engine's noise
where a close call decided it: rounding, another number of threads or a prompt in the cache can turn
one. Where log probabilities are known, they have to agree as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from vllama.lab.verify.compare import Comparison, Difference, compare
from vllama.lab.verify.report import MAX_KL, WIDE_GAP, is_wide
from vllama.observe.captures.answer import Answer
from vllama.observe.captures.reading import CALLS, ERROR, REST, TEXT, THINKING, Reading

ORDER = (ERROR, THINKING, TEXT, CALLS, REST)
"""The texts of an answer, in the order in which they are generated."""
AROUND = 40
"""How many characters are shown on either side of a difference."""
CLOSE_NUMBERS = 0.01
"""How far numbers of one answer may be apart, relative to the largest, and still be rounding."""


TEXTS_DIFFER = "the texts differ, and no log probabilities say how close it was"


class Verdict(StrEnum):
    """What came of a comparison, the best first."""

    SAME = "same"
    NOISE = "same within the engine's noise"
    UNDECIDED = "cannot tell"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDifference:
    """The first difference of two answers: in which text, and what stands there in each.

    `before` is the text that both share there, `a` and `b` are how they go on.
    """

    where: str
    character: int
    before: str
    a: str
    b: str
    gap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, the reason as a sentence, and what it is based on.

    `kl_mean` is in nats and None without log probabilities of both answers.
    """

    verdict: Verdict
    reason: str
    difference: TextDifference | None = None
    agreement: float = 1.0
    kl_mean: float | None = None
    logprob_max: float | None = None


def judge(a: Reading, b: Reading, *, chance: str = "", max_kl: float = MAX_KL) -> Judgement:
    """Compare two answers to one request.

    `chance` says why the request may be answered otherwise each time, "" if it should not.
    """
    names = sorted({*a.texts, *b.texts}, key=_place)
    pairs = {name: (_get(a, name), _get(b, name)) for name in names}
    found = {name: compare(*pair) for name, pair in pairs.items()}
    first = next((name for name in names if found[name].difference is not None), None)
    divergences = [value for each in found.values() for value in each.deltas.divergences]
    deltas = [value for each in found.values() for value in each.deltas.logprobs]
    kl_mean = fmean(divergences) if divergences else None
    difference = None
    if first is not None and (one := found[first].difference) is not None:
        difference = _show(first, one, *pairs[first])
    # answers that agree as far as both go may be of different lengths
    cut = next((name for name, (one, two) in pairs.items() if len(one.text) != len(two.text)), "")
    verdict, reason = _decide(a, b, found.get(first or ""), cut, kl_mean, chance, max_kl)
    return Judgement(
        verdict=verdict,
        reason=reason,
        difference=difference,
        agreement=min((each.agreement for each in found.values()), default=1.0),
        kl_mean=kl_mean,
        logprob_max=max(deltas, default=None),
    )


def judge_all(judgements: Sequence[Judgement]) -> Judgement:
    """Return the judgement over several replays of one request.

    If some are the same and others are not, the engine itself is not always the same.
    """
    verdicts = [one.verdict for one in judgements]
    worst = max(judgements, key=lambda one: list(Verdict).index(one.verdict))
    if worst.verdict is not Verdict.DIFFERENT or verdicts.count(Verdict.DIFFERENT) == len(verdicts):
        return worst
    same = len(verdicts) - verdicts.count(Verdict.DIFFERENT)
    return Judgement(
        verdict=Verdict.NOISE,
        reason=f"{same} of {len(verdicts)} replays are the same, so the engine varies by itself",
        difference=worst.difference,
        agreement=worst.agreement,
        kl_mean=worst.kl_mean,
        logprob_max=worst.logprob_max,
    )


def _decide(
    a: Reading,
    b: Reading,
    found: Comparison | None,
    cut: str,
    kl_mean: float | None,
    chance: str,
    max_kl: float,
) -> tuple[Verdict, str]:
    """Return a verdict and its reason.

    `found` is the comparison that has the first difference, `cut` names a text that is longer in
    one answer than in the other.
    """
    if a.status != b.status:
        return Verdict.DIFFERENT, f"the status was {a.status} and is {b.status}"
    if found is None or found.difference is None:
        if cut and not chance:
            return Verdict.DIFFERENT, f"the {cut} is cut at another length"
        if kl_mean is not None and kl_mean > max_kl:
            return (
                Verdict.DIFFERENT,
                f"the texts are the same, but the probabilities of their tokens differ by "
                f"{kl_mean:.4f} nats (at most {max_kl:g})",
            )
        return _decide_numbers(a, b)
    if chance:
        return Verdict.UNDECIDED, f"the texts differ, as any two answers may: {chance}"
    difference = found.difference
    gap = _find_gap(difference)
    if gap is None and not difference.is_unforeseen:
        return Verdict.DIFFERENT, TEXTS_DIFFER
    if is_wide(difference):
        if gap is None:
            return Verdict.DIFFERENT, "the texts differ where the other token was not even likely"
        return (
            Verdict.DIFFERENT,
            f"the texts differ where one token was preferred by {gap:.2f} nats (a close call is at "
            f"most {WIDE_GAP:g})",
        )
    if kl_mean is not None and kl_mean > max_kl:
        return (
            Verdict.DIFFERENT,
            f"the texts differ, and the probabilities before that by {kl_mean:.4f} nats (at most "
            f"{max_kl:g})",
        )
    return (
        Verdict.NOISE,
        f"the texts differ at a close call: one token was preferred by {gap:.3f} nats",
    )


def _decide_numbers(a: Reading, b: Reading) -> tuple[Verdict, str]:
    """Compare what there is of numbers."""
    if not a.numbers and not b.numbers:
        return Verdict.SAME, "the answers are the same"
    sizes_a, sizes_b = (
        {name: len(values) for name, values in one.numbers.items()} for one in (a, b)
    )
    if sizes_a != sizes_b:
        return Verdict.DIFFERENT, "the answers have different numbers of numbers"
    apart = max(_apart(values, b.numbers[name]) for name, values in a.numbers.items())
    if apart == 0:
        return Verdict.SAME, "the answers are the same"
    if apart <= CLOSE_NUMBERS:
        return Verdict.NOISE, f"the numbers differ by {apart:.2g} of the largest at most"
    return (
        Verdict.DIFFERENT,
        f"the numbers differ by {apart:.2g} of the largest (rounding is at most {CLOSE_NUMBERS:g})",
    )


def _apart(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the largest difference, relative to the largest number."""
    largest = max((abs(value) for value in (*a, *b)), default=0.0)
    difference = max((abs(x - y) for x, y in zip(a, b, strict=True)), default=0.0)
    return 0.0 if difference == 0 else difference / largest if largest else math.inf


def _find_gap(difference: Difference) -> float | None:
    gaps = [gap for gap in (difference.gap_a, difference.gap_b) if gap is not None]
    return max(gaps, default=None)


def _get(reading: Reading, name: str) -> Answer:
    return reading.texts.get(name) or Answer(text=b"", cut=False)


def _place(name: str) -> tuple[str, int]:
    """Order texts by choice, and within one as they are generated."""
    kind = next(one for one in ORDER if name.startswith(one))
    return name.removeprefix(kind), ORDER.index(kind)


def _show(name: str, difference: Difference, a: Answer, b: Answer) -> TextDifference:
    one, other = (answer.text.decode(errors="replace") for answer in (a, b))
    at = difference.character
    return TextDifference(
        where=name,
        character=at,
        before=one[max(0, at - AROUND) : at],
        a=one[at : at + AROUND],
        b=other[at : at + AROUND],
        gap=_find_gap(difference),
    )
