"""What `vllama verify` reports over all prompts, as values for a program and for a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from vllama.lab.compare import Comparison, measure
from vllama.lab.judge import percent
from vllama.observe.captures.answer import Answer

COLUMNS = ("PROMPT", "AGREED", "FIRST DIFFERENCE", "|ΔLOGPROB|", "MAX", "KL")
NOTHING = "-"
SHOWN = 32
"""How many characters of a prompt the table shows."""
SHOWN_OF_ANSWER = 16


def report(
    prompts: Sequence[str], a: Sequence[Answer], b: Sequence[Answer], found: Sequence[Comparison]
) -> dict[str, Any]:
    """Return the comparisons of the answers to each prompt as plain values.

    Shares are from 0 to 1, log probabilities natural, divergences in nats; what an engine does
    not tell is None. `agreement` is the mean over the prompts; `wide_gaps` counts those whose first
    difference is no close call.
    """
    differences = [each.difference for each in found if each.difference]
    return {
        "agreement": fmean(each.agreement for each in found),
        "text_agreement": fmean(each.text_agreement for each in found),
        "same_answers": len(found) - len(differences),
        "wide_gaps": sum(each.is_wide for each in differences),
        **asdict(measure(found)),
        "prompts": [_row(*each) for each in zip(prompts, a, b, found, strict=True)],
    }


def _row(prompt: str, a: Answer, b: Answer, comparison: Comparison) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "answers": [answer.text.decode(errors="replace") for answer in (a, b)],
        "agreement": comparison.agreement,
        "text_agreement": comparison.text_agreement,
        "agreed_tokens": comparison.agreed,
        "tokens": comparison.tokens,
        "difference": asdict(comparison.difference) if comparison.difference else None,
        **asdict(measure([comparison])),
    }


def table(told: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the cells below `COLUMNS`, one row a prompt and one for all."""
    rows = []
    for row in told["prompts"]:
        prompt = shorten(" ".join(row["prompt"].split()), SHOWN)
        rows.append((prompt, _agreed(row), _difference(row["difference"]), *_cells(row)))
    same = f"{told['same_answers']} of {len(rows)} the same"
    return [*rows, ("all", percent(told["agreement"]), same, *_cells(told))]


def shorten(text: str, most: int) -> str:
    """Return a text, its end cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _agreed(row: Mapping[str, Any]) -> str:
    if row["tokens"] is None:
        return percent(row["agreement"])
    return f"{row['agreed_tokens']} of {row['tokens']}"


def _difference(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "none"
    gap = "" if found["gap"] is None else f", by {found['gap']:.3f}"
    return f"{_quote(found['a'])} or {_quote(found['b'])}{gap}"


def _quote(text: str) -> str:
    return f'"{_visible(shorten(text, SHOWN_OF_ANSWER))}"' if text else "its end"


def _visible(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def _cells(row: Mapping[str, Any]) -> Iterable[str]:
    for key in ("logprob_mean", "logprob_max", "kl_mean"):
        value = row[key]
        yield NOTHING if value is None else f"{value:.4f}"
