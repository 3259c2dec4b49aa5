"""Anthropic's `POST /v1/messages` as a chat request in OpenAI's form.

The result goes through `adapt_chat` like an OpenAI client's own body, so that what an engine lacks
is supplied in one place. Unknown fields are ignored, as are `metadata`, `cache_control` and the
budget of thinking. What is missing is said in Ollama's words.

See docs/reference/ollama-api.md#messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllama.base.errors import BadRequest
from vllama.chat.bodies import find_error
from vllama.dialects.anthropic.messages import (
    chat_messages,
    system_messages,
)
from vllama.dialects.anthropic.request_types import MessagesBody
from vllama.dialects.ollama.request_types import ToolParameters
from vllama.dialects.openai.extras import Extras, add_effort, take_extras
from vllama.dialects.openai.read import parse_openai

_KNOWN = frozenset((*MessagesBody.__struct_encode_fields__, "output_format"))
_CHOICES = {"auto": "auto", "any": "required", "tool": "named", "none": "none"}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "max"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest:
    """Request of Anthropic's client; `chat` is the request in OpenAI's form.

    `ignored` names tools that only Anthropic's own servers can run, and blocks that the model
    cannot be told, `unknown` the fields that nobody reads. `extras` are Ollama's fields.
    """

    model: str
    chat: dict[str, Any]
    stop: tuple[str, ...] = ()
    hide_thinking: bool = False
    ignored: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    extras: Extras = field(default_factory=Extras)


def parse_messages(body: bytes, *, count_only: bool = False) -> MessagesRequest:
    """Parse a request; with `count_only` (`count_tokens`) there need not be a limit.

    Raises BadRequest.
    """
    data, extras = take_extras(parse_openai(body, MessagesBody))
    model = data.get("model")
    if not model:
        raise BadRequest("model is required")
    chat: dict[str, Any] = {"model": model}
    limit = data.get("max_tokens") or 0
    if limit > 0:
        chat["max_tokens"] = int(limit)
    elif not count_only:
        raise BadRequest("max_tokens is required and must be positive")
    if not data.get("messages"):
        raise BadRequest("messages is required")
    passed_over: list[str] = []
    messages = chat_messages(data["messages"], passed_over)
    chat["messages"] = system_messages(data.get("system")) + messages
    chat["stream"] = data.get("stream") is True
    for name in ("temperature", "top_p", "top_k"):
        if data.get(name) is not None:
            chat[name] = data[name]
    if stop := tuple(text for text in data.get("stop_sequences") or () if text):
        chat["stop"] = list(stop)
    ignored, hide = _tools(data, chat), _thinking(data, chat)
    return MessagesRequest(
        model=model,
        chat=add_effort(chat, extras.think),
        stop=stop,
        hide_thinking=hide,
        ignored=(*ignored, *passed_over),
        unknown=tuple(name for name in data if name not in _KNOWN),
        extras=extras,
    )


def _tools(data: Mapping[str, Any], chat: dict[str, Any]) -> tuple[str, ...]:
    """Put `tools`, `tool_choice` and `parallel_tool_calls`; return the names of those left out."""
    given = data.get("tools")
    if given is None:
        return ()
    tools: list[dict[str, Any]] = []
    ignored: list[str] = []
    for tool in given:
        tool = {} if tool is None else tool
        if tool.get("type") not in (None, "custom"):
            ignored.append(str(tool["type"])[:80])
            continue
        name, schema = str(tool.get("name") or ""), tool.get("input_schema")
        if problem := find_error(schema, ToolParameters | None):
            raise BadRequest(f'invalid input_schema for tool "{name}": {problem}')
        function: dict[str, Any] = {"name": name, "parameters": schema or {"type": "object"}}
        if tool.get("description") is not None:
            function["description"] = tool["description"]
        tools.append({"type": "function", "function": function})
    put_tools(chat, tools, *_choice(data.get("tool_choice")))
    return tuple(dict.fromkeys(ignored))


def put_tools(
    chat: dict[str, Any], tools: list[dict[str, Any]], choice: str, name: str, parallel: bool | None
) -> None:
    """Put tools into a chat request. `choice`: auto, none, required or named.

    None are sent if none may be called: the one way that every engine heeds. The only tool is
    named if one must be called, which more engines understand than `required`.
    """
    if not tools or choice == "none":
        return
    chat["tools"] = tools
    if choice == "required" and len(tools) == 1:
        choice, name = "named", tools[0]["function"]["name"]
    if choice == "named":
        chat["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif choice == "required":
        chat["tool_choice"] = "required"
    if parallel is not None:
        chat["parallel_tool_calls"] = parallel


def _choice(value: Mapping[str, Any] | None) -> tuple[str, str, bool | None]:
    given = {"type": "auto"} if value is None else value
    if (choice := _CHOICES.get(given.get("type") or "")) is None:
        raise BadRequest("tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'")
    name = (given.get("name") or "") if choice == "named" else ""
    return choice, name, False if given.get("disable_parallel_tool_use") else None


def _thinking(data: Mapping[str, Any], chat: dict[str, Any]) -> bool:
    """Put the effort and the output's schema; return whether thinking is to be hidden.

    Types other than enabled and disabled leave it to the model, as does enabled: on is the default.
    """
    thinking, config = data.get("thinking") or {}, data.get("output_config") or {}
    off = thinking.get("type") == "disabled"
    if off or config.get("effort") in _EFFORTS:
        chat["reasoning_effort"] = "none" if off else _EFFORTS[config["effort"]]
    match config.get("format") or data.get("output_format"):
        case {"type": "json_schema", "schema": dict(schema)}:
            named = {"name": "response", "schema": schema}
            chat["response_format"] = {"type": "json_schema", "json_schema": named}
        case dict() as wanted if wanted:
            raise BadRequest("output_config.format: Input should be a json_schema with a schema")
    return off or thinking.get("display") == "omitted"
