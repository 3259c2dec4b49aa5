"""The body of a request: what adapters let pass, and small changes for their `finish_body`. Pure.

The sets are fields that engines add to OpenAI's and that are known to be harmless: they choose
tokens, or bound, shape or annotate the answer. What may be code, names files or addresses, or
touches the requests of others (`priority`, ids, slots, sessions, ranks) is not here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vllama.chat.engine.request_fields import HARMLESS


def add_fields(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body with the fields that it does not set; lists are joined, the body's first."""
    return {
        **defaults,
        **body,
        **{
            name: [*body[name], *value]
            for name, value in defaults.items()
            if isinstance(value, list) and isinstance(body.get(name), list)
        },
    }


def keep_fields(body: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the body without the fields that the engine would refuse."""
    return {name: value for name, value in body.items() if name in names}


def clamp_field(body: dict[str, Any], name: str, low: float, high: float) -> None:
    """Move a number in the body, if it is there, into the range that the engine accepts."""
    if isinstance(value := body.get(name), int | float):
        body[name] = min(max(value, low), high)


GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")


def write_guided(body: dict[str, Any]) -> dict[str, Any]:
    """Write vLLM's older words for a format as it takes them since 0.12, which drops the others."""
    if guided := {name.removeprefix("guided_"): body.pop(name) for name in GUIDED if name in body}:
        own = body.get("structured_outputs")
        body["structured_outputs"] = guided | (own if isinstance(own, dict) else {})
    return body


VLLM = HARMLESS | frozenset((
    *GUIDED, "structured_outputs",
    "use_beam_search", "best_of", "bad_words", "allowed_token_ids", "logprob_token_ids",
    "prompt_logprobs", "echo", "truncation_side", "thinking_token_budget", "repetition_detection",
    "return_token_ids", "return_tokens_as_token_ids", "return_prompt_text", "stream_interval",
    "watermarking", "softmax", "activation", "to_language",
))  # fmt: skip
SGLANG = HARMLESS | frozenset((
    "regex", "ebnf", "stop_regex", "no_stop_trim", "separate_reasoning", "stream_reasoning",
    "return_cached_tokens_details", "return_token_ids", "return_prompt_token_ids",
    "use_audio_in_video", "max_dynamic_patch", "min_dynamic_patch",
))  # fmt: skip
LLAMACPP = HARMLESS | frozenset((
    "mirostat", "mirostat_mode", "mirostat_tau", "mirostat_eta", "samplers", "min_keep",
    "top_n_sigma", "dynatemp_range", "dynatemp_exponent", "xtc_probability", "xtc_threshold",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers", "adaptive_target", "adaptive_decay", "n_probs", "post_sampling_probs",
    "logit_bias_type", "t_max_predict_ms", "n_indent", "n_discard", "n_keep", "json_schema",
    "cache_prompt", "timings_per_token", "return_tokens", "return_progress", "reasoning_format",
    "reasoning_budget", "thinking_budget_tokens",
))  # fmt: skip
