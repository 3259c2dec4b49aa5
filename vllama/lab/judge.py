"""Judgment of two responses: identical, equal within an engine's variation, or different.

One rule for `vllama replay`, which compares two answers to one request, and `vllama verify`, which
compares two engines over many prompts. A first difference is within the engine's noise where a
close call decided it: rounding, another number of threads or a prompt in the cache can turn one.
Where log probabilities are known, they have to agree as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from vllama.lab.compare import WIDE_GAP, Comparison, Difference, compare, measure
from vllama.observe.captures.answer import Response
from vllama.observe.captures.reading import CALLS, ERROR, REST, TEXT, THINKING, Reading

ORDER = (ERROR, THINKING, TEXT, CALLS, REST)
"""The texts of an answer, in the order in which they are generated."""
MAX_KL = 0.02
"""Nats: how far the mean divergence of two engines with equal weights may be."""
DEFAULT_AGREEMENT = 0.5
CLOSE_NUMBERS = 0.01
"""How far numbers of one answer may be apart, relative to the largest, and still be rounding."""
TEXTS_DIFFER = "the texts differ, and log probabilities are not available"


class Verdict(StrEnum):
    """Result of a comparison, the best first."""

    SAME = "same"
    NOISE = "same within the engine's noise"
    UNDECIDED = "undetermined"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, the reason as a sentence, and what it is based on.

    `kl_mean` is in nats and None without log probabilities of both answers.
    """

    verdict: Verdict
    reason: str
    difference: Difference | None = None
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
    differences = [
        replace(each.difference, where=name) for name, each in found.items() if each.difference
    ]
    first = differences[0] if differences else None  # what follows it continues another text
    # answers that agree as far as both go may be of different lengths
    cut = next((name for name, (one, two) in pairs.items() if len(one.text) != len(two.text)), "")
    numbers = measure(found.values())
    verdict, reason = _decide(a, b, first, cut, numbers.kl_mean, chance, max_kl)
    return Judgement(
        verdict=verdict,
        reason=reason,
        difference=first,
        agreement=min((each.agreement for each in found.values()), default=1.0),
        kl_mean=numbers.kl_mean,
        logprob_max=numbers.logprob_max,
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
    reason = f"{same} of {len(verdicts)} replays are the same, so the engine varies by itself"
    return replace(worst, verdict=Verdict.NOISE, reason=reason)


def judge_engines(
    found: Sequence[Comparison], *, min_agreement: float | None, max_kl: float
) -> tuple[bool, str]:
    """Return whether two engines agree over some prompts, and why, as the end of a sentence.

    Distributions are compared where both engines return log probabilities: a close call may go
    either way, and then greedy texts part though the weights are equal. Where one does not, only
    the text counts. A `min_agreement` that was asked for holds as well.
    """
    share, kl_mean = fmean(each.agreement for each in found), measure(found).kl_mean
    least = DEFAULT_AGREEMENT if min_agreement is None and kl_mean is None else min_agreement
    differences = [each.difference for each in found if each.difference]
    faults, reasons = [], []
    if kl_mean is not None:
        faults = list_faults(differences, kl_mean, max_kl)
        reasons.append(describe_divergence(kl_mean, max_kl))
    if least is not None:
        text = f"{percent(share)} of the text is the same (at least {percent(least)})"
        faults += [text] if share < least else []
        reasons.append(text)
    return not faults, ", and ".join(faults or reasons)


def list_faults(
    differences: Sequence[Difference], kl_mean: float | None, max_kl: float
) -> list[str]:
    """Return the differences between texts that rounding cannot explain; empty if none.

    `differences` are the first ones of their texts, `kl_mean` is the mean divergence before them.
    """
    faults = []
    wide = [one for one in differences if one.is_wide]
    gaps = [one.gap for one in wide if one.gap is not None]
    if gaps:
        faults.append(
            f"the texts differ where one token was preferred by {max(gaps):.2f} nats (a close call "
            f"is at most {WIDE_GAP:g})"
        )
    elif wide:
        faults.append("the texts differ where the other token was not even likely")
    if kl_mean is not None and kl_mean > max_kl:
        faults.append(describe_divergence(kl_mean, max_kl))
    return faults


def describe_divergence(kl_mean: float, max_kl: float) -> str:
    """Return how far the probabilities of tokens are apart, as a part of a sentence."""
    return f"the token probabilities differ by {kl_mean:.4f} nats (at most {max_kl:g})"


def percent(share: float) -> str:
    """Write a share; only all is 100 %."""
    return "100 %" if share == 1.0 else f"{min(share * 100, 99.9):.1f} %"


def _decide(
    a: Reading,
    b: Reading,
    first: Difference | None,
    cut: str,
    kl_mean: float | None,
    chance: str,
    max_kl: float,
) -> tuple[Verdict, str]:
    """Return a verdict and its reason.

    `first` is the first difference, `cut` names a text that is longer in one answer than in the
    other.
    """
    if a.status != b.status:
        return Verdict.DIFFERENT, f"the status was {a.status} and is {b.status}"
    if first is None:
        if cut and not chance:
            return Verdict.DIFFERENT, f"the {cut} is cut at a different length"
        if faults := list_faults((), kl_mean, max_kl):
            return Verdict.DIFFERENT, f"the texts are the same, but {faults[0]}"
        return _decide_numbers(a, b)
    if chance:
        return Verdict.UNDECIDED, f"the texts differ, as two sampled responses may: {chance}"
    if not first.is_measured:
        return Verdict.DIFFERENT, TEXTS_DIFFER
    if faults := list_faults([first], kl_mean, max_kl):
        return Verdict.DIFFERENT, ", and ".join(faults)
    return (
        Verdict.NOISE,
        f"the texts differ at a close call: one token was preferred by {first.gap:.3f} nats",
    )


def _decide_numbers(a: Reading, b: Reading) -> tuple[Verdict, str]:
    """Compare what there is of numbers."""
    if not a.numbers and not b.numbers:
        return Verdict.SAME, "the responses are identical"
    sizes_a, sizes_b = (
        {name: len(values) for name, values in one.numbers.items()} for one in (a, b)
    )
    if sizes_a != sizes_b:
        return Verdict.DIFFERENT, "the responses have different numbers of values"
    apart = max(_apart(values, b.numbers[name]) for name, values in a.numbers.items())
    if apart == 0:
        return Verdict.SAME, "the responses are identical"
    if apart <= CLOSE_NUMBERS:
        return Verdict.NOISE, f"the numbers differ by at most {apart:.2g} of the largest"
    return (
        Verdict.DIFFERENT,
        f"the numbers differ by {apart:.2g} of the largest (rounding is at most {CLOSE_NUMBERS:g})",
    )


def _apart(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the largest difference, relative to the largest number."""
    largest = max((abs(value) for value in (*a, *b)), default=0.0)
    difference = max((abs(x - y) for x, y in zip(a, b, strict=True)), default=0.0)
    return 0.0 if difference == 0 else difference / largest if largest else math.inf


def _get(reading: Reading, name: str) -> Response:
    return reading.texts.get(name) or Response(text=b"", cut=False)


def _place(name: str) -> tuple[str, int]:
    """Order texts by choice, and within one as they are generated."""
    kind = next(one for one in ORDER if name.startswith(one))
    return name.removeprefix(kind), ORDER.index(kind)
