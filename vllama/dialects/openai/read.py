"""Bodies of OpenAI's form: bytes to a `ChatRequest`, or BadRequest with OpenAI's words.

The bodies of Anthropic's messages and of the Responses API get this form first. Nothing here
depends on the engine: fields that only engines understand are passed on in `extra`.

See docs/reference/ollama-api.md#openai-chat-completions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllama.base.errors import BadRequest
from vllama.chat.engine.request_fields import check_nested, check_tools_run_here
from vllama.chat.go_json import check_messages, check_tools, kind
from vllama.chat.request import ChatRequest
from vllama.dialects.go_structs import Struct, decode_body
from vllama.dialects.ollama.read import make_format_error
from vllama.dialects.openai.choices import parse_n
from vllama.dialects.openai.extras import NOTHING, Extras, parse_effort, read_effort
from vllama.dialects.openai.messages import read_messages
from vllama.dialects.openai.request_types import OWN
from vllama.dialects.openai_values import read_boolean, read_integer, refuse_type

_NUMBERS = (
    "temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "repetition_penalty",
    "presence_penalty", "frequency_penalty",
)  # fmt: skip
_INTEGERS = ("top_k", "repeat_last_n", "num_keep", "seed")
MAX_LOGPROBS = 20
# what Ollama has for OpenAI's chats and completions in place of a model's own
NEUTRAL: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0}
_OURS = {"repetition_penalty": "repeat_penalty"}  # vLLM's name


def parse_openai(body: bytes, struct: Struct[Any] = OWN) -> dict[str, Any]:
    """Decode a `/v1` body: an object, top-level keys in lower case.

    Fields that Ollama knows have the types of `struct`. Raises BadRequest.
    """
    source = decode_body(body, struct, empty="EOF")
    if not "".join(source).islower():
        source = {key.lower(): value for key, value in source.items()}
    if isinstance(messages := source.get("messages"), list):
        check_messages(messages)
    return source


def read_chat(
    body: Mapping[str, Any],
    extras: Extras = NOTHING,
    *,
    truncate: bool = True,
    assumed: Mapping[str, Any] = NEUTRAL,
    may_be_empty: bool = False,
) -> ChatRequest:
    """Read a chat, without the `extras` that were taken out of it. Raises BadRequest.

    `assumed` are the dialect's values of parameters that are absent; the others are the model's.
    `may_be_empty`: without messages a request loads
    the model. As in Ollama, messages are looked at first, and a `stop` or a `response_format` that
    says nothing is left out.
    """
    rest = {name: value for name, value in body.items() if value is not None}
    given = rest.pop("messages", None)
    messages = () if may_be_empty and not given else read_messages(given)
    logprobs = read_boolean("logprobs", rest.pop("logprobs", False))
    top_logprobs = read_integer("top_logprobs", rest.pop("top_logprobs", 0))
    if not 0 <= top_logprobs <= MAX_LOGPROBS:
        raise BadRequest(f"top_logprobs must be between 0 and {MAX_LOGPROBS}")
    effort = parse_effort(read_effort(rest))
    for name in ("reasoning_effort", "reasoning"):
        rest.pop(name, None)
    if not isinstance(rest.get("user", ""), str):  # of no use to anybody, and engines refuse it
        del rest["user"]
    if "min_tokens" in rest:
        rest["min_tokens"] = max(0, read_integer("min_tokens", rest["min_tokens"]))
    if not isinstance(rest.get("logit_bias", {}), Mapping):
        refuse_type("logit_bias", "an object", rest["logit_bias"])
    return ChatRequest(
        model=str(rest.pop("model", "")),
        messages=messages,
        stream=read_boolean("stream", rest.pop("stream", False)),
        include_usage=_include_usage(rest),
        response_format=_response_format(rest),
        tools=_tools(rest),
        tool_choice=_tool_choice(rest),
        parallel_tool_calls=rest.pop("parallel_tool_calls", None),
        logprobs=logprobs,
        top_logprobs=top_logprobs if logprobs else 0,
        n=parse_n(rest.pop("n", None)),
        think=extras.think if effort is None else effort,
        parameters=_parameters(rest),
        assumed=assumed,
        options=extras.options,
        keep_alive=extras.keep_alive,
        truncate=truncate,
        shift=extras.shift,
        extra=rest,
    )


def _include_usage(rest: dict[str, Any]) -> bool:
    options = rest.pop("stream_options", {})
    if not isinstance(options, dict):
        refuse_type("stream_options", "an object", options)
    return options.get("include_usage") is True


def _response_format(rest: dict[str, Any]) -> Mapping[str, Any] | None:
    value = rest.pop("response_format", None)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise BadRequest("Invalid type for 'response_format': expected an object.")
    match value.get("type"):
        case "json_object":
            return value
        case "json_schema":
            inner = value.get("json_schema")
            schema = inner.get("schema") if isinstance(inner, dict) else None
            if schema is not None and not isinstance(schema, dict):
                raise make_format_error(schema)
            return None if schema is None else value
        case _:
            return None


def _tool_choice(rest: dict[str, Any]) -> object:
    choice = rest.pop("tool_choice", None)
    if isinstance(choice, dict):
        check_nested("tool_choice", choice)
    return choice


def _tools(rest: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    tools = rest.pop("tools", ())
    if not isinstance(tools, list | tuple) or not all(
        isinstance(tool, dict | None) for tool in tools
    ):
        raise BadRequest(
            "Invalid type for 'tools': expected an array of objects, "
            f"but got {kind(tools)} instead."
        )
    check_tools(tools)
    given = tuple(tool for tool in tools if tool is not None)
    check_tools_run_here(given)
    return given


def _parameters(rest: dict[str, Any]) -> dict[str, Any]:
    """Take the sampling parameters out of a body, by our names."""
    given: dict[str, Any] = {}
    for name in _NUMBERS:
        if name in rest:
            given[_OURS.get(name, name)] = _number(name, rest.pop(name))
    for name in _INTEGERS:
        if name in rest:
            given[name] = read_integer(name, rest.pop(name))
    if stop := _stop(rest.pop("stop", None)):
        given["stop"] = stop
    for name in ("max_tokens", "max_completion_tokens"):  # the newer name wins
        if name in rest:
            limit = read_integer(name, rest.pop(name))
            given["max_tokens"] = None if limit < 0 else limit
    return given


def _stop(value: object) -> tuple[str, ...]:
    texts = value if isinstance(value, list) else [value]
    return tuple(text for text in texts if isinstance(text, str) and text)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse_type(name, "a decimal", value)
    return value
