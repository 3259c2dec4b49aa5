"""Token counts from the timings that llama.cpp prints at the end of a generation.

llama-cpp-python prints them (with `--verbose true`) before it sends the last event, and resets them
when the next generation begins. What the numbers mean, by llama.cpp's source and by trial:

* Tokens evaluated in a batch of several are "prompt eval" tokens, those evaluated alone are "runs".
  So the last token of a prompt whose others are all in the KV cache is a run.
* The token that is generated last is not evaluated, whatever ended the answer: a stop sequence,
  the limit, the end of the context, or itself (end of generation).
* Neither number is printed as less than 1; no runs at all took 0.00 ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from vllama.translate.events import EngineUsage

_RUNS = re.compile(r"\beval time = *([\d.]+) ms / *(\d+) runs")
_PROMPT = re.compile(r"\bprompt eval time = *[\d.]+ ms / *(\d+) tokens")
_GENERATE = "Llama.generate: "
_CACHED = re.compile(r"(\d+) prefix-match hit, remaining (\d+) prompt tokens to eval")
_ALL_CACHED = "full prompt already cached"


def logged_usage(lines: Sequence[str]) -> EngineUsage | None:
    """Return the counts of the generation that ended last in `lines`, None if none is told.

    `completion_tokens` include the token that ended the answer, as Ollama's `eval_count` does.
    `prompt_tokens` include those that were cached; None if the log does not tell how many.
    """
    newest_first = reversed(lines)
    runs = next(filter(None, map(_RUNS.search, newest_first)), None)
    batch = next(filter(None, map(_PROMPT.search, newest_first)), None)
    if runs is None or batch is None:
        return None
    alone = int(runs[2]) if float(runs[1]) else 0
    together = int(batch[1]) if int(batch[1]) > 1 else 0
    begun = _line_of_prompt(newest_first)
    if _ALL_CACHED in begun:
        return EngineUsage(completion_tokens=alone + 1)
    cached = _CACHED.search(begun)
    evaluated = together or 1
    if cached is not None and int(cached[2]) != evaluated:
        return None  # of another generation, or this one drafts tokens
    return EngineUsage(
        prompt_tokens=evaluated + (int(cached[1]) if cached else 0),
        completion_tokens=alone + 1 if together else alone,
    )


def _line_of_prompt(newest_first: Iterator[str]) -> str:
    """Return what was printed of the prompt, "" if nothing was: no token of it was cached."""
    for line in newest_first:
        if _RUNS.search(line):
            break
        if _GENERATE in line:
            return line
    return ""
