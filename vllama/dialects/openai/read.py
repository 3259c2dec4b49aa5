"""An OpenAI client's own body, made fit for the engine behind.

What an engine understands passes untouched. What would make it fail (llama.cpp's Python server
answers nulls, content parts, `developer`, `json_schema` and wrong types with 500) is rewritten, or
refused here with OpenAI's words. Absent `temperature` and `top_p` become 1.0 as in Ollama; the
other parameters come from Ollama's defaults or the model's own.

See docs/reference/engines.md#llama-cpp-python-requests;
docs/reference/ollama-api.md#openai-chat-completions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from vllama.chat.engine.fields import (
    adapt_response_format,
    clamp,
    engine_body,
    mask_seed,
    need_completions,
    need_logprobs,
    parse_effort,
    put_completion_format,
    put_continuation,
    put_max_tokens,
    put_model,
    put_sampling,
    put_think,
    read_effort,
)
from vllama.chat.engine.traits import Traits, remember_for_traits
from vllama.chat.go_json import check_messages, decode_object, kind
from vllama.chat.prefill import join_answer_bodies
from vllama.chat.reply import ReplyOptions
from vllama.chat.request import Sampling
from vllama.chat.schema import check_schema
from vllama.chat.template_style import Style, choose_think
from vllama.chat.tool_prompt import has_tools, write_tools_as_text
from vllama.chat.tool_requests import place_tools
from vllama.dialects.openai.messages import adapt_messages
from vllama.errors import BadRequest

_NUMBERS = (
    "temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip
_INTEGERS = ("top_k", "repeat_last_n", "num_keep")
_COUNTS = ("n", "top_logprobs", "min_tokens")
COMPLETION_MAX_TOKENS = 16


def parse_openai(body: bytes) -> dict[str, Any]:
    """Decode a `/v1` body: an object, top-level keys in lower case. Raises BadRequest."""
    source = decode_object(body, "openai.Request", empty="EOF")
    if not "".join(source).islower():
        source = {key.lower(): value for key, value in source.items()}
    if isinstance(messages := source.get("messages"), list):
        check_messages(messages)
    return source


def adapt_chat(
    body: Mapping[str, Any],
    traits: Traits,
    *,
    model: str,
    defaults: Sampling | None = None,
    style: Style | None = None,
) -> tuple[bytes, ReplyOptions]:
    """Adapt `POST /v1/chat/completions`; `defaults` are the model's parameters.

    `style` is what the model's template tells, None if it is not known.
    Raises BadRequest, CapabilityMissing.
    """
    out = _without_nulls(body, traits)
    out["messages"] = join_answer_bodies(adapt_messages(out.get("messages"), traits, model, style))
    include_usage = _include_usage(out)
    effort = _effort(out)
    limit = _max_tokens(out, defaults)
    stream = _boolean(out, "stream")
    _response_format(out, traits)
    tools = place_tools(out, traits, style)
    # engines that tell thinking apart let the grammar begin after it; the others from the start
    constrained = "response_format" in out and not traits.splits_reasoning
    if constrained and traits.completes_chats and has_tools(out["messages"]):
        out["messages"] = write_tools_as_text(out["messages"])
    stop = _parameters(out, traits, defaults)
    top_logprobs = _logprobs(out, traits, model)
    put_model(out, traits, model)
    put_max_tokens(out, limit, traits, default_is_small=False)
    think = False if constrained else choose_think(parse_effort(effort), style)
    put_think(out, think, traits)
    put_continuation(out, traits)
    options = ReplyOptions(
        kind="chat",
        stream=stream,
        include_usage=include_usage,
        model=model,
        upstream_model=out["model"],
        max_tokens=out.get(traits.parameters.get("max_tokens", "max_tokens")),
        tools=tools or False,
        think=think,
        constrained=constrained,
        chat_only="response_format" in out or "logprobs" in out,
        top_logprobs=top_logprobs,
        stop=stop,
    )
    return engine_body(out, traits), options


def adapt_completion(
    body: Mapping[str, Any], traits: Traits, *, model: str, defaults: Sampling | None = None
) -> tuple[bytes, ReplyOptions]:
    """Adapt `POST /v1/completions`; without a limit OpenAI's default of 16 tokens is sent.

    Raises BadRequest, CapabilityMissing.
    """
    need_completions(traits)
    out = _without_nulls(body, traits)
    out["prompt"] = _prompt(out.get("prompt", ""), traits)
    include_usage = _include_usage(out)
    limit = _max_tokens(out, None)
    if limit is None and "max_tokens" not in body:
        limit = COMPLETION_MAX_TOKENS
    stream = _boolean(out, "stream")
    if "suffix" in out and not out["suffix"]:
        out.pop("suffix")
    out.pop("best_of", None)  # not possible in a stream; Ollama ignores it
    _response_format(out, traits)
    put_completion_format(out, out.pop("response_format", None), traits)
    stop = _parameters(out, traits, defaults)
    logprobs = out.get("logprobs")
    if logprobs is False or logprobs == 0:
        out.pop("logprobs")
    elif logprobs is True:
        out["logprobs"] = 1
    elif logprobs is not None:
        out["logprobs"] = _integer("logprobs", logprobs)
    if out.get("logprobs"):
        need_logprobs(traits, model)
    put_model(out, traits, model)
    put_max_tokens(out, limit, traits, default_is_small=True)
    options = ReplyOptions(
        kind="completion",
        stream=stream,
        include_usage=include_usage,
        model=model,
        upstream_model=out["model"],
        max_tokens=limit,
        stop=stop,
    )
    return engine_body(out, traits), options


def _without_nulls(body: Mapping[str, Any], traits: Traits) -> dict[str, Any]:
    out = {name: value for name, value in body.items() if value is not None}
    for name in traits.refused_fields:
        if name in out:
            raise BadRequest(f"Unrecognized request argument supplied: {name}")
    own = out.get(traits.completion_schema or "")
    if isinstance(own, Mapping):  # the engine's own word for it
        check_schema(own)
    return out


# most of what can be asked is not: below, `in` costs nothing beside a call


def _effort(out: dict[str, Any]) -> object:
    """Take the effort out of the body."""
    if "reasoning_effort" not in out and "reasoning" not in out:
        return None
    effort = read_effort(out)
    out.pop("reasoning_effort", None)
    out.pop("reasoning", None)
    return effort


def _logprobs(out: dict[str, Any], traits: Traits, model: str) -> int:
    """Ask for log probabilities if the client does; return of how many alternatives."""
    wanted = "logprobs" in out and _boolean(out, "logprobs")
    top = out.get("top_logprobs") or 0
    if wanted:
        need_logprobs(traits, model)
        out["top_logprobs"] = max(1, top)  # some engines give none at all for 0
    elif "logprobs" in out:
        del out["logprobs"]
        out.pop("top_logprobs", None)
        top = 0
    return top


def _include_usage(out: dict[str, Any]) -> bool:
    if "stream_options" not in out:
        return False
    options = out.pop("stream_options")
    if not isinstance(options, dict):
        _refuse_type("stream_options", "an object", options)
    return options.get("include_usage") is True


def _max_tokens(out: dict[str, Any], defaults: Sampling | None) -> int | None:
    """Take the limit out of the body; OpenAI's new name wins over the old one."""
    old = out.pop("max_tokens") if "max_tokens" in out else None
    new = out.pop("max_completion_tokens") if "max_completion_tokens" in out else None
    if old is None and new is None:
        return defaults.max_tokens if defaults else None
    limit = _integer("max_tokens", old) if new is None else _integer("max_completion_tokens", new)
    return None if limit < 0 else limit


def _response_format(out: dict[str, Any], traits: Traits) -> None:
    if "response_format" in out:
        adapted = adapt_response_format(out.pop("response_format"), traits)
        if adapted is not None:
            out["response_format"] = adapted


def _parameters(out: dict[str, Any], traits: Traits, defaults: Sampling | None) -> tuple[str, ...]:
    """Check, rename and complete the sampling parameters; return the stop sequences."""
    given: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}
    for spelled, name in _spellings(traits):
        if spelled in out:
            read = _integer if name in _INTEGERS else _number
            given[name] = clamp(name, read(spelled, out.pop(spelled)))
    seed = out.pop("seed") if "seed" in out else None
    stop = _stop(out.pop("stop")) if "stop" in out else None
    for name in _COUNTS:
        if name in out:
            out[name] = max(0, _integer(name, out[name]))
    if "logit_bias" in out and not isinstance(out["logit_bias"], Mapping):
        _refuse_type("logit_bias", "an object", out["logit_bias"])
    put_sampling(out, defaults or Sampling(), traits)
    for name, value in given.items():
        if name in traits.parameters:
            out[traits.parameters[name]] = value
    if seed is not None and "seed" in traits.parameters:
        masked = mask_seed(_integer("seed", seed), traits)
        out.pop(traits.parameters["seed"], None)
        if masked is not None:
            out[traits.parameters["seed"]] = masked
    if stop is not None and "stop" in traits.parameters:
        out[traits.parameters["stop"]] = stop
    return tuple(stop) if stop is not None else (defaults or Sampling()).stop


@remember_for_traits
def _spellings(traits: Traits) -> tuple[tuple[str, str], ...]:
    """Return (a name that a client may use, ours): it may know the engine's own as well."""
    names = []
    for name in (*_NUMBERS, *_INTEGERS):
        theirs = traits.parameters.get(name, name).rpartition(".")[2]
        names += [(spelled, name) for spelled in dict.fromkeys((name, theirs))]
    return tuple(names)


def _stop(value: object) -> list[str] | None:
    if value is None or value == "" or value == []:
        return None
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return _refuse_type("stop", "a string or an array of strings", value)


def _prompt(value: object, traits: Traits) -> object:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        return value[0]
    if isinstance(value, str) or (traits.takes_prompt_lists and isinstance(value, list)):
        return value
    return _refuse_type("prompt", "a string", value)


def _boolean(out: Mapping[str, Any], name: str) -> bool:
    value = out.get(name, False)
    if not isinstance(value, bool):
        _refuse_type(name, "a boolean", value)
    return value


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse_type(name, "a decimal", value)
    return value


def _integer(name: str, value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse_type(name, "an integer", value)
    return value


def _refuse_type(name: str, wanted: str, value: object) -> NoReturn:
    raise BadRequest(
        f"Invalid type for '{name}': expected {wanted}, but got {kind(value)} instead."
    )
