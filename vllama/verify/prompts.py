"""What is asked: a set of our own, or a file's. Raw text, so that no template has a part in it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from vllama.errors import ConfigError

BUILT_IN = (
    "The capital of France is",
    "Water boils at a lower temperature on a mountain because",
    "Here is a short story about a lighthouse keeper and her cat.\n\nOne stormy evening",
    'def is_prime(n: int) -> bool:\n    """Tell whether n is a prime number."""\n',
    "Monday, Tuesday, Wednesday,",
    'Three facts about whales, as JSON:\n[\n  {"fact": "',
    "Question: A train leaves at 9:40 and arrives at 11:15. How long is the journey?\nAnswer:",
    "English: Good morning, how are you today?\nFrançais :",
)
"""Prose, code, lists, data, sums and a second language: where engines differ is not the same."""


def parse_prompts(data: bytes, name: str) -> tuple[str, ...]:
    """Read prompts of a file called `name`. Raises ConfigError.

    A JSON array of strings; or JSON lines, each a string or an object with "prompt"; else one
    prompt a line. Blank lines are none.
    """
    try:
        text = data.decode("utf-8-sig")
        stripped, lines = text.strip(), [line for line in text.split("\n") if line.strip()]
        if stripped.startswith("["):
            found = _prompts(json.loads(stripped), name)
        elif stripped.startswith(("{", '"')):
            found = _prompts((json.loads(line) for line in lines), name)
        else:
            found = tuple(line.rstrip("\r") for line in lines)
    except ValueError as error:
        raise ConfigError(
            f"cannot read the prompts in '{name}': {error}",
            hint='write a JSON array of strings, JSON lines with "prompt", or a prompt a line',
        ) from None
    if not found:
        raise ConfigError(f"cannot use the prompts in '{name}': there are none")
    return found


def _prompts(values: Iterable[object], name: str) -> tuple[str, ...]:
    found = []
    for number, value in enumerate(values, 1):
        prompt = value.get("prompt") if isinstance(value, dict) else value
        if not isinstance(prompt, str) or not prompt:
            raise ValueError(f"number {number} has no text")
        found.append(prompt)
    return tuple(found)
