"""The verdict over all prompts, as values for a program and for a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from vllama.lab.verify.compare import Comparison, Difference, compare
from vllama.observe.captures.answer import Answer

COLUMNS = ("PROMPT", "AGREED", "FIRST DIFFERENCE", "|ΔLOGPROB|", "MAX", "KL")
NOTHING = "-"
DEFAULT_AGREEMENT = 0.5
SHOWN = 32
MAX_KL = 0.02
"""Nats: how far the mean divergence of two engines with equal weights may be."""
WIDE_GAP = 1.0
"""Nats: a first difference at which an engine preferred its choice by more is no close call. Equal
weights in two engines differ by up to 0.6 there (docs/guide/verify.md)."""


def judge(
    told: Mapping[str, Any], *, min_agreement: float | None, max_kl: float
) -> tuple[bool, str]:
    """Return whether two engines agree, and why, as the end of a sentence.

    Distributions are compared where both engines tell log probabilities: a close call may go
    either way, and then greedy texts part though the weights are equal. Where one does not, there
    is only the text. A `min_agreement` that was asked for holds as well.
    """
    share, kl, wide = told["agreement"], told["kl_mean"], told["wide_gaps"]
    least = DEFAULT_AGREEMENT if min_agreement is None and kl is None else min_agreement
    agrees, reasons = True, []
    if kl is not None:
        agrees = kl <= max_kl and not wide
        reasons.append(f"their probabilities differ by {kl:.4f} nats (at most {max_kl:g})")
        if wide:
            reasons.append(f"{wide} of the first differences are no close call")
    if least is not None:
        agrees = agrees and share >= least
        reasons.append(f"{percent(share)} of the text is the same (at least {percent(least)})")
    return agrees, ", ".join(reasons)


def report(prompts: Sequence[str], a: Sequence[Answer], b: Sequence[Answer]) -> dict[str, Any]:
    """Compare the answers to each prompt; return plain values.

    Shares are from 0 to 1, log probabilities natural, divergences in nats; what an engine does
    not tell is None. `agreement` is the mean over the prompts; `wide_gaps` counts those whose first
    difference is no close call.
    """
    pairs = list(zip(a, b, strict=True))
    found = [compare(one, other) for one, other in pairs]
    rows = [
        _row(prompt, *pair, comparison)
        for prompt, pair, comparison in zip(prompts, pairs, found, strict=True)
    ]
    deltas = [comparison.deltas for comparison in found]
    return {
        "agreement": fmean(row["agreement"] for row in rows),
        "text_agreement": fmean(row["text_agreement"] for row in rows),
        "same_answers": sum(row["difference"] is None for row in rows),
        "wide_gaps": sum(
            each.difference is not None and is_wide(each.difference) for each in found
        ),
        **_numbers(
            [value for each in deltas for value in each.logprobs],
            [value for each in deltas for value in each.divergences],
        ),
        "prompts": rows,
    }


def _row(prompt: str, a: Answer, b: Answer, comparison: Comparison) -> dict[str, Any]:
    difference, deltas = comparison.difference, comparison.deltas
    return {
        "prompt": prompt,
        "answers": [answer.text.decode(errors="replace") for answer in (a, b)],
        "agreement": comparison.agreement,
        "text_agreement": comparison.text_agreement,
        "agreed_tokens": comparison.agreed,
        "tokens": comparison.tokens,
        "difference": asdict(difference) if difference else None,
        **_numbers(deltas.logprobs, deltas.divergences),
    }


def is_wide(difference: Difference) -> bool:
    """Tell whether an engine was sure of its choice, so that rounding cannot have made it."""
    gaps = [gap for gap in (difference.gap_a, difference.gap_b) if gap is not None]
    return max(gaps) > WIDE_GAP if gaps else difference.is_unforeseen


def _numbers(logprobs: Sequence[float], divergences: Sequence[float]) -> dict[str, Any]:
    return {
        "compared": len(logprobs),
        "logprob_mean": fmean(logprobs) if logprobs else None,
        "logprob_max": max(logprobs, default=None),
        "kl_mean": fmean(divergences) if divergences else None,
        "kl_max": max(divergences, default=None),
    }


def table(told: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the cells below `COLUMNS`, one row a prompt and one for all."""
    rows = [
        (shorten(row["prompt"]), _agreed(row), _difference(row["difference"]), *_cells(row))
        for row in told["prompts"]
    ]
    same = f"{told['same_answers']} of {len(rows)} the same"
    return [*rows, ("all", percent(told["agreement"]), same, *_cells(told))]


def percent(share: float) -> str:
    """Write a share; only all is 100 %."""
    return "100 %" if share == 1.0 else f"{min(share * 100, 99.9):.1f} %"


def shorten(text: str) -> str:
    """Return a text in one line, its end cut."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"


def _agreed(row: Mapping[str, Any]) -> str:
    if row["tokens"] is None:
        return percent(row["agreement"])
    return f"{row['agreed_tokens']} of {row['tokens']}"


def _difference(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "none"
    a, b = (f'"{_visible(found[key])}"' if found[key] else "its end" for key in ("a", "b"))
    gaps = [gap for gap in (found["gap_a"], found["gap_b"]) if gap is not None]
    return f"{a} or {b}" + (f", by {max(gaps):.3f}" if gaps else "")


def _visible(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def _cells(row: Mapping[str, Any]) -> Iterable[str]:
    for key in ("logprob_mean", "logprob_max", "kl_mean"):
        value = row[key]
        yield NOTHING if value is None else f"{value:.4f}"
