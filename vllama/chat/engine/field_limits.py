"""Limits of the fields that engines are sent: of whatever costs one n times something. Pure.

The costs are measured (docs/reference/engines.md#what-a-field-costs). A field that is not in the
table has the limits of `Limit`: flags, words, and numbers whose size costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from vllama.base.errors import BadRequest
from vllama.chat.bodies import encode_json
from vllama.chat.logprobs import MAX_LOGPROBS
from vllama.chat.schema import MOST_BYTES, MOST_PATTERN, check_grammar, check_schema

_NUMBER = re.compile(r"-?\d++(?:\.\d++)?(?:[eE][+-]?\d++)?")


class Limit(NamedTuple):
    """Bounds of a number; of the values in a list or an object, and of its bytes as JSON."""

    low: float = -1e30
    high: float = 1e30
    values: int = 1000
    size: int = 100_000
    clamps: bool = False  # a number is moved inside, -1 is the highest; else it is refused


_READ = Limit(values=100_000, size=4_000_000)  # the context is the limit
_FORM = Limit(size=MOST_BYTES)
LIMITS: Mapping[str, Limit] = {
    "logit_bias": Limit(values=2000, size=30_000),
    **dict.fromkeys(("documents", "functions", "input", "prediction", "prompt"), _READ),
    **dict.fromkeys(("json_schema", "grammar", "guided_json", "guided_grammar", "ebnf"), _FORM),
    **dict.fromkeys(("guided_regex", "regex", "stop_regex"), Limit(size=MOST_PATTERN)),
    # speech and images: a step, a pixel, a second of sound
    "n": Limit(1, 10),
    "partial_images": Limit(0, 3),
    "size": Limit(0, 4096),
    "speed": Limit(0.25, 4),
    "num_inference_steps": Limit(1, 1000),
    **dict.fromkeys(("max_dynamic_patch", "min_dynamic_patch"), Limit(0, 64)),
    # llama.cpp
    "n_probs": Limit(0, 100),
    "samplers": Limit(values=100, size=2000),
    "dry_penalty_last_n": Limit(0, 2**20, clamps=True),  # no context is longer
    "dry_sequence_breakers": Limit(values=32, size=2000),
    # vLLM
    **dict.fromkeys(("best_of", "logprobs", "prompt_logprobs"), Limit(0, MAX_LOGPROBS)),
    "logprob_token_ids": Limit(values=100),
    "allowed_token_ids": Limit(values=100_000, size=1_000_000),
    "bad_words": Limit(size=20_000),
}


def fit_field(name: str, value: Any) -> Any:
    """Return the value of a field within its limit; numbers in a form are text. Raises BadRequest.

    An object or a text that says the form of a response is checked as such.
    """
    limit = LIMITS.get(name, Limit())
    if name == "structured_outputs" and isinstance(value, Mapping):  # vLLM's newer words
        return {key: fit_field(f"guided_{key}", x) for key, x in value.items()}
    count, size = len(value) if isinstance(value, Mapping | list) else 1, len(encode_json(value))
    if count > limit.values or size > limit.size:
        raise BadRequest(
            f"Invalid '{name}': expected at most {limit.values} values and {limit.size} bytes, "
            f"but got {count} and {size}."
        )
    is_number = isinstance(value, int | float)
    if is_number and limit.clamps:
        return limit.high if value < limit.low else min(value, limit.high)
    has_numbers = is_number or (isinstance(value, str) and limit.high < Limit().high)
    for number in map(float, _NUMBER.findall(str(value)) if has_numbers else ()):
        if not limit.low <= number <= limit.high:
            raise BadRequest(
                f"Invalid '{name}': expected {limit.low:g} to {limit.high:g}, but got {value}."
            )
    if limit is _FORM and isinstance(value, str):
        check_grammar(value)
    return check_schema(value) if limit is _FORM and isinstance(value, Mapping) else value
