"""Parts of a request body that go to an engine, spelled as its traits say.

Parameters, schemas, thinking.

See docs/reference/ollama-api.md#request-options, #openai-chat-completions;
docs/reference/engines.md#llama-cpp-python-requests, #llama-cpp-python.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from random import Random, SystemRandom
from typing import Any

from vllama.base.errors import BadRequest, CapabilityMissing
from vllama.chat.engine.context import compute_answer_limit
from vllama.chat.engine.traits import SchemaStyle, Traits, remember_for_traits
from vllama.chat.grammar_schema import SchemaWriter
from vllama.chat.request import Sampling, Think
from vllama.chat.schema import check_schema
from vllama.chat.templates.template_style import template_switches

_INT32_MAX = 2**31 - 1
seeds: ContextVar[Random] = ContextVar("seeds")
"""Source of the running request's random seeds; that of a head's request gives the same again."""

LIMITS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 1e6),
    "top_p": (1e-6, 1.0),  # vLLM refuses 0; this is as greedy
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repeat_penalty": (1e-3, 1e6),
}
"""What all engines accept; Ollama accepts anything, so values are moved inside.

An adapter whose engine accepts less narrows a value in its `finish_body`.
"""

_SENT = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "repeat_penalty", "repeat_last_n",
    "presence_penalty", "frequency_penalty", "num_keep",
)  # fmt: skip

MAX_PUT = 256

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def put_model(body: dict[str, Any], traits: Traits, model: str) -> None:
    """Set the name that the engine wants to hear, and streaming: a client that leaves must free it.

    An answer that is not streamed runs to its end, even if its client has left.
    """
    body["model"] = traits.model_name or model
    body["stream"] = True
    if traits.usage_in_stream:
        body["stream_options"] = {"include_usage": True}


def put_sampling(body: dict[str, Any], sampling: Sampling, traits: Traits) -> None:
    """Send every parameter that the engine knows, under its name there, but `max_tokens`."""
    kept = _put(traits)
    found = kept.get(sampling)
    if found is None:
        if len(kept) >= MAX_PUT:
            kept.clear()
        found = kept[sampling] = _sampling(sampling, traits)
    body.update(found)
    put_seed(body, sampling.seed, traits)


@remember_for_traits
def _put(traits: Traits) -> dict[Sampling, dict[str, Any]]:
    """Return where is kept what `put_sampling` has worked out for an engine."""
    return {}


def _sampling(sampling: Sampling, traits: Traits) -> dict[str, Any]:
    body: dict[str, Any] = {}
    kept = sampling.left_out | (sampling.own if traits.reads_sampling else frozenset())
    for name in _SENT:
        if name in traits.parameters and name not in kept:
            value = getattr(sampling, name)
            if name == "repeat_last_n" and value < 0:  # newer llama-servers refuse -1
                value = traits.context_length
            body[traits.parameters[name]] = clamp(name, value)
    if sampling.stop and "stop" in traits.parameters:
        body[traits.parameters["stop"]] = list(sampling.stop)
    return body


def put_max_tokens(
    body: dict[str, Any], limit: int | None, traits: Traits, *, default_is_small: bool
) -> None:
    """Send a limit; with `default_is_small` (completions: 16) also when there is none."""
    name = traits.parameters.get("max_tokens", "max_tokens")
    limit = compute_answer_limit(limit, traits)
    if limit is not None:
        body[name] = max(1, limit)
    elif default_is_small:
        body[name] = None if traits.takes_nulls else traits.context_length


def clamp(name: str, value: float) -> float:
    """Move a parameter's value into the range that all engines accept."""
    if name == "top_k":
        return int(min(value, _INT32_MAX)) if value > 0 else 0
    if name in ("repeat_last_n", "num_keep"):
        return int(min(max(value, -1), _INT32_MAX))
    low, high = LIMITS[name]
    return min(max(value, low), high)


def mask_seed(seed: int, traits: Traits) -> int | None:
    """Cut a seed to the engine's width (never its sign bit at 64); None for -1, random."""
    return None if seed == -1 else seed & ((1 << min(traits.seed_bits, 63)) - 1)


def put_seed(body: dict[str, Any], seed: int, traits: Traits) -> None:
    """Send a seed; a random one is chosen here if the engine may be asked for the answer again."""
    if seed == -1 and traits.replays:
        seed = seeds.get(SystemRandom()).getrandbits(31)
    masked = mask_seed(seed, traits)
    if masked is not None and "seed" in traits.parameters:
        body[traits.parameters["seed"]] = masked


def make_response_format(
    wanted: Mapping[str, Any] | None, traits: Traits
) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """Spell a `response_format` of OpenAI's form as the engine takes it; None is free text.

    Return it with the keywords of the schema that the engine cannot hold. Raises CapabilityMissing
    if it cannot keep to any: answering anyhow would look like it; BadRequest for a schema that
    cannot be used.
    """
    if wanted is None:
        return None, ()
    if traits.schema_style is SchemaStyle.NONE:
        raise CapabilityMissing(
            "the engine of this model does not support structured outputs (format)"
        )
    if wanted.get("type") == "structural_tag":
        if not traits.takes_structural_tags:
            raise CapabilityMissing("the engine of this model does not support structural tags")
        return wanted, ()
    named = wanted.get("json_schema")
    schema = named["schema"] if isinstance(named, Mapping) else wanted.get("schema")
    if not isinstance(schema, Mapping):
        return {"type": "json_object"}, ()
    schema = check_schema(schema)
    left_out: tuple[str, ...] = ()
    if traits.schema_compiler is not None:
        writer = SchemaWriter(traits.schema_compiler)
        if (written := writer.write(schema, "schema")) is None:
            raise BadRequest("cannot use the JSON schema: no value matches it")
        schema, left_out = writer.finish(written), tuple(writer.left_out)
    spelled = spell_format(schema, traits)
    if named is not None and "json_schema" in spelled:
        own = {**spelled["json_schema"], **named, "schema": spelled["json_schema"]["schema"]}
        spelled = {**wanted, "json_schema": own}
    return spelled, left_out


def spell_format(schema: Mapping[str, Any], traits: Traits) -> dict[str, Any]:
    """Return the `response_format` by which the engine is asked for a schema that it can hold.

    A llama.cpp that was built with llguidance, as xllamacpp is, lets any white space come between
    two values, and a small model goes on with it to the end of its context. `x-guidance` (in
    llguidance's docs/json_schema.md) allows one space; other builds ignore it.
    """
    if traits.schema_style is SchemaStyle.JSON_OBJECT:
        return {"type": "json_object", "schema": schema}
    if traits.completion_schema is not None:
        schema = {"x-guidance": _SPACING, **schema}
    return make_schema_format(schema)


def make_schema_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenAI's `response_format` for answers that keep to `schema`."""
    return {"type": "json_schema", "json_schema": {"name": "response", "schema": schema}}


def put_completion_format(
    body: dict[str, Any], wanted: Mapping[str, object] | None, traits: Traits
) -> None:
    """Put a `response_format` into a completion: as it is, or as the engine wants it there."""
    if wanted is None:
        return
    if traits.completion_schema is None:
        body["response_format"] = wanted
        return
    if "json_schema" not in wanted:
        wanted = spell_format({"type": "object"}, traits)
    inner = wanted["json_schema"]
    assert isinstance(inner, Mapping)
    body[traits.completion_schema] = inner["schema"]


def put_think(body: dict[str, Any], think: Think, traits: Traits) -> None:
    """Switch thinking, where the engine's templates can be told; a client's own kwargs win.

    Families differ in the name of the switch, and templates ignore names they do not know.
    """
    if think is None:
        return
    level = think if isinstance(think, str) else None
    if traits.takes_template_kwargs:
        own = body.get("chat_template_kwargs")
        switches = template_switches(think)
        body["chat_template_kwargs"] = switches | (own if isinstance(own, dict) else {})
    if traits.takes_reasoning_effort and level is not None:
        body["reasoning_effort"] = level


def need_logprobs(traits: Traits, model: str) -> None:
    """Raise CapabilityMissing if the engine tells no log probabilities."""
    if not traits.takes_logprobs:
        raise CapabilityMissing(f'"{model}" does not support logprobs')


def need_completions(traits: Traits) -> None:
    """Raise CapabilityMissing if the engine has chats only."""
    if not traits.completes:
        raise CapabilityMissing(
            "the engine of this model supports only chats, not completions of "
            "a rendered prompt (raw, suffix, context, a template)"
        )


def need_tools(traits: Traits) -> None:
    """Raise CapabilityMissing if the engine would not show tools to the model."""
    if not traits.takes_tools:
        raise CapabilityMissing("the engine of this model does not support tools")


def finish_body(body: Mapping[str, Any], traits: Traits) -> Mapping[str, Any]:
    """Return a body as the engine's adapter finishes it."""
    return traits.finish_body(dict(body)) if traits.finish_body else body
