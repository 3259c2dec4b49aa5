"""OpenAI's `POST /v1/responses` as a chat request in OpenAI's older form.

The result goes through `adapt_chat` like any other body. A request may go on from a response that
was kept, by `previous_response_id`; `continue_from` puts the earlier items before its own.

See docs/reference/ollama-api.md#responses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllama.chat.go_json import encode_json, kind
from vllama.dialects.anthropic.read import put_tools
from vllama.dialects.openai.extras import Extras, add_effort, take_extras
from vllama.dialects.openai.read import parse_openai
from vllama.dialects.responses.items import input_messages, refuse_type
from vllama.dialects.responses.request_types import RESPONSES
from vllama.errors import BadRequest

SEPARATOR = "."
_NUMBERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """What a client of the Responses API asked for; `chat` is the request in the older form.

    `echo` are the fields that the answer repeats. `names` maps a tool of a namespace, as the model
    knows it, to (namespace, name). `ignored` names what has no effect here. `truncate`: the oldest
    turns may be dropped. `extras` are Ollama's fields. `input` is as the client wrote it; it goes
    on from the response `previous`. `store` is None where the client has not said.
    """

    model: str
    chat: dict[str, Any]
    echo: dict[str, Any]
    stream: bool = False
    truncate: bool = False
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    extras: Extras = field(default_factory=Extras)
    input: object = None
    previous: str | None = None
    store: bool | None = None


def continue_from(
    asked: ResponsesRequest, items: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]
) -> ResponsesRequest:
    """Return a request whose conversation begins with the `items` of earlier ones.

    `own` are its own items. Instructions are only those of the request itself, as in OpenAI's API.
    """
    messages = input_messages([*items, *own])
    if instructions := asked.echo["instructions"]:
        messages.insert(0, {"role": "system", "content": instructions})
    return replace(asked, chat=asked.chat | {"messages": messages})


def parse_responses(body: bytes) -> ResponsesRequest:
    """Parse a request. Raises BadRequest."""
    rest, extras = take_extras(parse_openai(body, RESPONSES))
    data = {name: value for name, value in rest.items() if value is not None}
    model = _string(data, "model", "")
    instructions = _string(data, "instructions", None)
    messages = input_messages(data.get("input"))
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    chat: dict[str, Any] = {"model": model, "messages": messages}
    stream = _boolean(data, "stream", False)
    chat["stream"] = stream
    previous = data.get("previous_response_id") or None
    background = _boolean(data, "background", False)
    ignored = ["background"] if background else []
    if data.get("conversation"):
        ignored.append("conversation")
    if previous is not None and not isinstance(previous, str):
        ignored.append("previous_response_id")
        previous = None
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        if name in data:
            chat[name] = _number(data, name)
    limit = data.get("max_output_tokens")
    if limit is not None:
        chat["max_tokens"] = limit
    text = _format(data.get("text"), chat)
    reasoning = data.get("reasoning", {})
    if not isinstance(reasoning, Mapping):
        refuse_type("reasoning", "an object", reasoning)
    if reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    names = _tools(data, chat, ignored)
    echo = {
        "instructions": instructions,
        "max_output_tokens": limit,
        "metadata": _object(data, "metadata"),
        "parallel_tool_calls": _boolean(data, "parallel_tool_calls", True),
        "previous_response_id": previous,
        "reasoning": _echo_reasoning(reasoning, stream),
        "store": data.get("store") is True,  # false by default, as Ollama's
        "background": background,
        "frequency_penalty": chat.get("frequency_penalty", 0),
        "presence_penalty": chat.get("presence_penalty", 0),
        "top_logprobs": 0,
        "max_tool_calls": None,
        "service_tier": "default",
        "safety_identifier": data.get("safety_identifier"),
        "prompt_cache_key": data.get("prompt_cache_key"),
        "temperature": chat.get("temperature", 1.0),
        "text": text,
        "tool_choice": data.get("tool_choice", "auto"),
        "tools": [_echo_tool(tool) for tool in data.get("tools", [])],
        "top_p": chat.get("top_p", 1.0),
        "truncation": data.get("truncation", "disabled"),
    }  # fmt: skip
    if data.get("user"):
        echo["user"] = data["user"]
    echo |= {name: _whole(echo[name]) for name in _NUMBERS}
    encode_json(echo)  # refuses what the answer could not repeat, as numbers beyond 64 bits
    return ResponsesRequest(
        model=model,
        chat=add_effort(chat, extras.think),
        echo=echo,
        stream=stream,
        truncate=echo["truncation"] == "auto",
        names=names,
        ignored=tuple(dict.fromkeys(ignored)),
        extras=extras,
        input=data.get("input"),
        previous=previous,
        store=data["store"] if isinstance(data.get("store"), bool) else None,
    )


def _string(data: Mapping[str, Any], name: str, default: Any) -> Any:
    value = data.get(name, default)
    if name in data and not isinstance(value, str):
        refuse_type(name, "a string", value)
    return value


def _boolean(data: Mapping[str, Any], name: str, default: bool) -> bool:
    value = data.get(name, default)
    return value if isinstance(value, bool) else refuse_type(name, "a boolean", value)


def _number(data: Mapping[str, Any], name: str) -> float:
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse_type(name, "a decimal", value)
    return value


def _object(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name, {})
    return value if isinstance(value, Mapping) else refuse_type(name, "an object", value)


def _whole(value: float) -> float:
    """Return a number as Go writes it: a whole one without a fraction."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _echo_reasoning(reasoning: Mapping[str, Any], stream: bool) -> dict[str, Any] | None:
    """Return what was asked for, as Ollama does: nulls for the rest in streams only."""
    names = ("effort", "summary")
    given = {name: reasoning[name] for name in names if reasoning.get(name)}
    return (dict.fromkeys(names) if stream and given else {}) | given or None


def _echo_tool(tool: object) -> object:
    """Return a tool with all fields of Ollama's."""
    if not isinstance(tool, Mapping):
        return tool
    absent = {"type": "", "name": "", "description": None, "strict": None, "parameters": None}
    return absent | {name: value for name, value in tool.items() if value is not None}


def _format(text: object, chat: dict[str, Any]) -> dict[str, Any]:
    """Put `response_format`; return `text` for the echo."""
    if text is None:
        return {"format": {"type": "text"}}
    if not isinstance(text, Mapping):
        refuse_type("text", "an object", text)
    wanted = text.get("format") or {"type": "text"}
    if not isinstance(wanted, Mapping):
        refuse_type("text.format", "an object", wanted)
    match wanted.get("type"):
        case "text":
            pass
        case "json_object":
            chat["response_format"] = {"type": "json_object"}
        case "json_schema" if isinstance(wanted.get("schema"), Mapping):
            schema = {
                name: wanted[name] for name in ("name", "schema", "strict", "description")
                if wanted.get(name) is not None
            }  # fmt: skip
            schema.setdefault("name", "response")
            chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return {**text, "format": wanted}


# -- tools ------------------------------------------------------------------------------------


def _tools(
    data: Mapping[str, Any], chat: dict[str, Any], ignored: list[str]
) -> dict[str, tuple[str, str]]:
    """Put tools and choice; tools that only OpenAI's servers can run are noted in `ignored`."""
    given = data.get("tools", [])
    if not isinstance(given, list):
        refuse_type("tools", "an array", given)
    tools: list[dict[str, Any]] = []
    names: dict[str, tuple[str, str]] = {}
    for number, tool in enumerate(given):
        where = f"tools[{number}]"
        if not isinstance(tool, Mapping):
            refuse_type(where, "an object", tool)
        match tool.get("type", ""):
            case "function":
                tools.append(_function(where, tool, ""))
            case "namespace":
                inner, space = tool.get("tools"), tool.get("name")
                if not isinstance(inner, list) or not isinstance(space, str):
                    raise BadRequest(f"Missing required parameter: '{where}.tools' or its name.")
                for place, one in enumerate(inner):
                    if not isinstance(one, Mapping) or one.get("type") != "function":
                        ignored.append(f"{where}.tools[{place}]")
                        continue
                    function = _function(f"{where}.tools[{place}]", one, space + SEPARATOR)
                    tools.append(function)
                    names[function["function"]["name"]] = (space, one["name"])
            case str(other):
                ignored.append(other[:80])
            case other:
                refuse_type(f"{where}.type", "a string", other)
    choice, name, allowed = _choice(data.get("tool_choice"))
    if allowed is not None:
        tools = [tool for tool in tools if tool["function"]["name"] in allowed]
    parallel = data.get("parallel_tool_calls")
    put_tools(chat, tools, choice, name, parallel if parallel is False else None)
    return names


def _function(where: str, tool: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise BadRequest(f"Missing required parameter: '{where}.name'.")
    parameters = tool.get("parameters")
    function: dict[str, Any] = {
        "name": prefix + name,
        "parameters": parameters if isinstance(parameters, Mapping) else {"type": "object"},
    }
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _choice(value: object) -> tuple[str, str, set[str] | None]:
    """Return the choice, the name of a named tool and which may be called (None: all)."""
    match value:
        case None | "auto" | "none" | "required":
            return value or "auto", "", None
        case {"type": "function", "name": str(name), **rest}:
            space = rest.get("namespace")
            return "named", f"{space}{SEPARATOR}{name}" if space else name, None
        case {"type": "allowed_tools", "tools": list(tools), **rest}:
            allowed = {
                tool["name"] for tool in tools
                if isinstance(tool, Mapping) and isinstance(tool.get("name"), str)
            }  # fmt: skip
            return "required" if rest.get("mode") == "required" else "auto", "", allowed
        case {"type": str()}:
            return "auto", "", None  # a tool of OpenAI's servers
        case _:
            raise BadRequest(f"Invalid value for 'tool_choice': got {kind(value)}.")
