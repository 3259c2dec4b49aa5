"""Ollama's `options`: defaults, the model's own parameters, the request, in this order.

Names, defaults and type rules are Ollama's (`api/types.go`, `FromMap`): an integer takes any
number (fractions are cut), a float any number, booleans and lists are strict, null is "not given",
unknown and obsolete names are ignored. `stop` may also be a plain string, and a wrong type is a
400 where Ollama answers 500 (both are improvements named by the contract).

See docs/reference/ollama-api.md#options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from vllama.base.errors import BadRequest
from vllama.base.kinds import CACHE_TYPES
from vllama.base.meaning import TEXT
from vllama.chat.request import LoadOptions, Sampling

NOTHING: Mapping[str, object] = {}
NEUTRAL: Mapping[str, float] = {
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "typical_p": 1.0,
    "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip
"""vLLM's values for what a `generation_config.json` leaves out (sampling_params.py)."""
N = TypeVar("N", int, float)

_INTEGERS = ("top_k", "repeat_last_n", "seed", "num_predict", "num_keep")
OPTION_FIELDS = {"num_predict": "max_tokens"}
"""Options that have another name in `Sampling`."""
_FLOATS = (
    "temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip
_LOAD_INTEGERS = (
    "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "draft_num_predict",
)  # fmt: skip
OWN_OPTIONS = ("engine", "kv_cache_type", "num_parallel")
"""Options that Ollama does not have: no parameter of a model sets them, and not every key may."""


_NUMBERS: Mapping[str, str] = {
    "temperature": "sampling temperature; 0 always picks the most likely token",
    "top_k": "sample from this many most likely tokens",
    "top_p": "sample from the most likely tokens with this total probability",
    "min_p": "minimum probability, relative to the most likely token",
    "typical_p": "locally typical sampling; 1 disables it",
    "repeat_last_n": "number of recent tokens that penalties apply to",
    "repeat_penalty": "values above 1 penalize repeated tokens",
    "presence_penalty": "values above 0 penalize tokens already used",
    "frequency_penalty": "values above 0 penalize tokens by how often they were used",
    "seed": "random seed, for reproducible responses",
    "num_predict": "maximum tokens to generate; `-1`: no limit",
    "num_keep": "tokens to keep from the start when a prompt is truncated",
    "draft_num_predict": "number of tokens that a draft model predicts at once",
    "num_ctx": "context length, in tokens",
    "num_batch": "prompt tokens per batch",
    "num_gpu": "number of model layers on the GPU",
    "main_gpu": "GPU for tensors that are not split",
    "num_thread": "number of CPU threads",
}
"""What the options that are numbers mean."""
OPTION_SCHEMAS: Mapping[str, dict[str, Any]] = {
    **{name: {"type": "number", "description": text} for name, text in _NUMBERS.items()},
    "use_mmap": {"type": "boolean", "description": "true: map the model file into memory"},
    "stop": {
        "description": "stop sequences",
        "anyOf": [TEXT, {"type": "array", "items": TEXT}],
    },
}


def resolve_options(
    model_defaults: Mapping[str, object],
    request: Mapping[str, object],
    *,
    own: Mapping[str, object] = NOTHING,
    has_own_defaults: bool = False,
) -> tuple[Sampling, LoadOptions]:
    """Merge the layers. Raises BadRequest naming the option whose type is wrong.

    `own` is what the model's files name, below what its Modelfile does. `has_own_defaults`: the
    server has defaults of its own, which Ollama's must not replace.
    """
    named = {
        name: value
        for layer in (model_defaults, request)
        for name, value in layer.items()
        if value is not None
    }
    merged = {**own, **named}
    sampling: dict[str, Any] = {}
    for name in _INTEGERS:
        if name in merged:
            sampling[OPTION_FIELDS.get(name, name)] = _number(name, merged[name], int, "integer")
    for name in _FLOATS:
        if name in merged:
            sampling[name] = _number(name, merged[name], float, "float32")
    if "stop" in merged:
        sampling["stop"] = _strings("stop", merged["stop"])
    if sampling.get("max_tokens", 0) < 0:  # -1: no limit; -2: fill the context, which bounds both
        sampling["max_tokens"] = None
    load: dict[str, Any] = {
        name: _number(name, merged[name], int, "integer")
        for name in _LOAD_INTEGERS
        if name in merged
    }
    if "use_mmap" in merged:
        if not isinstance(merged["use_mmap"], bool):
            raise _refuse("use_mmap", "boolean")
        load["use_mmap"] = merged["use_mmap"]
    load |= {name: x for name in OWN_OPTIONS if (x := request.get(name)) is not None}
    if (count := load.get("num_parallel")) is not None:
        load["num_parallel"] = max(1, _number("num_parallel", count, int, "integer"))
    if not isinstance(load.get("engine", ""), str):
        raise _refuse("engine", "string")
    if load.get("kv_cache_type", CACHE_TYPES[0]) not in CACHE_TYPES:
        raise BadRequest(f'option "kv_cache_type" must be one of {", ".join(CACHE_TYPES)}')
    sampling["own"] = frozenset(own).difference(named)
    if has_own_defaults:
        sampling["left_out"] = frozenset(Sampling.__struct_fields__).difference(sampling)
    return Sampling(**sampling), LoadOptions(**load)


def _refuse(name: str, wanted: str) -> BadRequest:
    return BadRequest(f'option "{name}" must be of type {wanted}')


def _number(name: str, value: object, make: Callable[[int | float], N], wanted: str) -> N:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refuse(name, wanted)
    try:
        return make(value)
    except (OverflowError, ValueError):  # infinity, not a number, beyond a float
        raise _refuse(name, wanted) from None


def _strings(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise _refuse(name, "array")
    if not all(isinstance(item, str) for item in value):
        raise BadRequest(f'option "{name}" must be of an array of strings')
    return tuple(value)
