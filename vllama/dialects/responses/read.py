"""OpenAI's `POST /v1/responses` as a chat request in OpenAI's older form.

The result goes through `adapt_chat` like any other body. A request may go on from a response that
was kept, by `previous_response_id`; `continue_from` puts the earlier items before its own.

See docs/reference/ollama-api.md#responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllama.base.errors import BadRequest
from vllama.chat.bodies import encode_json, find_error
from vllama.chat.engine.request_fields import STANDARD, make_function
from vllama.dialects.anthropic.read import put_tools
from vllama.dialects.ollama.request_types import ToolParameters
from vllama.dialects.openai.extras import Extras, add_effort, take_extras
from vllama.dialects.openai.read import parse_openai
from vllama.dialects.responses.items import find_tools, input_messages
from vllama.dialects.responses.request_types import ResponsesBody

SEPARATOR = "."
_NO_TOOL = {"type": "", "name": "", "description": None, "strict": None, "parameters": None}
_NUMBERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
_ONLY_HERE: Mapping[str, Any] = {
    "frequency_penalty": float,
    "metadata": dict[str, Any],
    "parallel_tool_calls": bool,
    "presence_penalty": float,
    "previous_response_id": str,
    "prompt_cache_key": str,
    "safety_identifier": str,
    "store": bool,
    "user": str,
}
"""Fields that Ollama does not read, so that a value of another type is no error, but ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """Request of the Responses API; `chat` is the request in the older form.

    `echo` are the fields that the answer repeats. `names` maps a tool of a namespace, as the model
    knows it, to (namespace, name); `customs` are the custom tools. `ignored` names what has no
    effect here, `passed_over` such items. `truncate`: the oldest
    turns may be dropped. `extras` are Ollama's fields. `input` is as the client wrote it; it goes
    on from the response `previous`. `store` is None where the client has not said.
    """

    model: str
    chat: dict[str, Any]
    echo: dict[str, Any]
    truncate: bool = False
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    customs: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
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
    messages, passed_over = input_messages([*items, *own], len(items))
    if instructions := asked.echo["instructions"]:
        messages.insert(0, {"role": "system", "content": instructions})
    return replace(asked, chat=asked.chat | {"messages": messages}, passed_over=tuple(passed_over))


def parse_responses(body: bytes) -> ResponsesRequest:
    """Parse a request. Raises BadRequest."""
    rest, extras = take_extras(parse_openai(body, ResponsesBody))
    data, ignored = _drop_unusable(rest)
    model, instructions = data.get("model", ""), data.get("instructions") or None
    if isinstance(items := data.get("input"), list):
        ignored += [f"input[{number}] null" for number, item in enumerate(items) if item is None]
        data["input"] = [item for item in items if item is not None]
    messages, passed_over = input_messages(data.get("input"))
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    chat: dict[str, Any] = {"model": model, "messages": messages}
    stream = chat["stream"] = data.get("stream", False)
    previous = data.get("previous_response_id") or None
    ignored += [name for name in ("background", "conversation") if data.get(name)]
    chat |= {name: data[name] for name in _NUMBERS if name in data}
    data["tools"] = [*data.get("tools", []), *find_tools(data.get("input"))]
    limit = data.get("max_output_tokens")
    if limit is not None:
        chat["max_tokens"] = limit
    text = _format(data.get("text", {}), chat)
    reasoning = data.get("reasoning", {})
    if reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    names, customs = _tools(data, chat, ignored)
    echo = {
        "instructions": instructions,
        "max_output_tokens": limit,
        "metadata": data.get("metadata", {}),
        "parallel_tool_calls": data.get("parallel_tool_calls", True),
        "previous_response_id": previous,
        "reasoning": _echo_reasoning(reasoning, stream),
        "store": data.get("store", False),  # false by default, as Ollama's
        "background": data.get("background", False),
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
        "tools": [
            _NO_TOOL | {name: x for name, x in (tool or {}).items() if x is not None}
            for tool in data.get("tools", [])
        ],
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
        truncate=echo["truncation"] == "auto",
        names=names,
        customs=customs,
        ignored=tuple(dict.fromkeys(ignored)),
        passed_over=tuple(passed_over),
        extras=extras,
        input=data.get("input"),
        previous=previous,
        store=data.get("store"),
    )


def _drop_unusable(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields without nulls and without those that have no effect; name the latter."""
    data = {name: value for name, value in given.items() if value is not None}
    unusable = [
        name
        for name, python_type in _ONLY_HERE.items()
        if name in data and find_error(data[name], python_type)
    ]
    for name in unusable:
        del data[name]
    known = {*ResponsesBody.__struct_encode_fields__, *_ONLY_HERE, *STANDARD, "tool_choice"}
    return data, [*unusable, *(name for name in data if name not in known)]


def _whole(value: float) -> float:
    """Return a number as Go writes it: a whole one without a fraction."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _echo_reasoning(reasoning: Mapping[str, Any], stream: bool) -> dict[str, Any] | None:
    """Return the request's own fields, as Ollama does: nulls for the rest in streams only."""
    names = ("effort", "summary")
    given = {name: reasoning[name] for name in names if reasoning.get(name)}
    return (dict.fromkeys(names) if stream and given else {}) | given or None


def _format(text: Mapping[str, Any], chat: dict[str, Any]) -> dict[str, Any]:
    """Put `response_format`; return `text` for the echo."""
    wanted = text.get("format") or {"type": "text"}
    match wanted.get("type"):
        case "json_schema":
            schema = {
                name: wanted[name] for name in ("name", "schema", "strict", "description")
                if wanted.get(name) is not None
            }  # fmt: skip
            schema.setdefault("name", "response")
            chat["response_format"] = {"type": "json_schema", "json_schema": schema}
        case kind if kind != "text":
            chat["response_format"] = wanted
    return {**text, "format": wanted}


# -- tools ------------------------------------------------------------------------------------


def _tools(
    data: Mapping[str, Any], chat: dict[str, Any], ignored: list[str]
) -> tuple[dict[str, tuple[str, str]], frozenset[str]]:
    """Put tools and choice; return the names in namespaces, and custom tools.

    Tools without a name or of OpenAI's servers are noted in `ignored`.
    """
    tools: list[dict[str, Any]] = []
    names: dict[str, tuple[str, str]] = {}
    customs = set[str]()
    for where, space, fields in _flatten(data.get("tools")):
        kind, own = fields.get("type") or "", fields.get("name") or ""
        name = f"{space}{SEPARATOR}{own}" if space else own
        if own and kind == "function":
            tools.append(_function({**fields, "name": name}))
        elif own and kind == "custom":
            tools.append(make_function({**fields, "name": name}, where, ignored))
            customs.add(name)
        else:
            ignored.append(f"{where} {kind[:60]}".strip())
        if space and own:
            names[name] = (space, own)
    choice, name, allowed = _choice(data.get("tool_choice"))
    if allowed is not None:
        tools = [tool for tool in tools if tool["function"]["name"] in allowed]
    parallel = data.get("parallel_tool_calls")
    put_tools(chat, tools, choice, name, parallel if parallel is False else None)
    return names, frozenset(customs)


def _flatten(
    tools: Sequence[Mapping[str, Any] | None] | None, where: str = "tools", space: str = ""
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the place, the namespace and the fields of each tool."""
    for number, tool in enumerate(tools or ()):
        place, fields = f"{where}[{number}]", tool or {}
        if fields.get("type") == "namespace" and fields.get("name") and not space:
            yield from _flatten(fields.get("tools"), f"{place}.tools", fields["name"])
        else:
            yield place, space, fields


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool in OpenAI's older form. Raises BadRequest."""
    parameters = tool.get("parameters")
    if problem := find_error(parameters, ToolParameters | None):
        raise BadRequest(f"wrong parameters of the tool '{tool['name'][:80]}': {problem}")
    function = {"name": tool["name"], "parameters": parameters or {"type": "object"}}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _choice(value: object) -> tuple[str, str, set[str] | None]:
    """Return the choice, the name of a named tool and which may be called (None: all)."""
    match value:
        case None | "auto" | "none" | "required":
            return value or "auto", "", None
        case {"type": "function" | "custom", "name": str(name), **rest}:
            space = rest.get("namespace")
            return "named", f"{space}{SEPARATOR}{name}" if space else name, None
        case {"type": "allowed_tools", "tools": list(tools), **rest}:
            allowed = {
                tool["name"] for tool in tools
                if isinstance(tool, Mapping) and isinstance(tool.get("name"), str)
            }  # fmt: skip
            return "required" if rest.get("mode") == "required" else "auto", "", allowed
        case _:  # a tool of OpenAI's servers, or nothing that is known
            return "auto", "", None
