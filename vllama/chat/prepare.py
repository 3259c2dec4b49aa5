"""A request made fit for one engine and one template: the pure part of `routes.prompts.prepare`.

Its tools become the engine's own fields, a schema, or words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from vllama.base.errors import BadRequest
from vllama.chat.conversation import (
    fold_roles,
    has_tools,
    is_continued,
    join_answers,
    shorten_ids,
    write_tools_as_text,
)
from vllama.chat.engine.fields import make_response_format, make_schema_format, need_tools
from vllama.chat.engine.request_fields import pass_fields
from vllama.chat.engine.traits import SchemaStyle, Traits
from vllama.chat.grammar_schema import is_safe, make_safe_schema
from vllama.chat.parsers.call_values import Toolset
from vllama.chat.request import ChatRequest, Message, PreparedChat
from vllama.chat.schema import check_size
from vllama.chat.templates.template_style import Style, choose_think


def make_call_schema(tools: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Return the schema of `{"name": …, "arguments": {…}}`. Raises BadRequest if it is too large.

    `tools` in OpenAI's form, each with `function.name` and `function.parameters`.
    """
    check_size(tools)
    calls = []
    for tool in tools:
        function = tool["function"]
        parameters = make_safe_schema(function["parameters"])
        if parameters.get("type") != "object":
            parameters = {"type": "object"}
        name = function["name"]
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": name} if is_safe(name) else {"type": "string"},
                    "arguments": parameters,
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


_NO_PARAMETERS: Mapping[str, object] = {"type": "object", "properties": {}}


def place_tools(
    chat: PreparedChat,
    asked: ChatRequest,
    traits: Traits,
    style: Style | None,
    *,
    renders: bool = False,
) -> PreparedChat:
    """Return `chat` with the tools of a request, as this engine needs them.

    `style` None: the template is not known, and is taken to know tools. `renders`: vllama renders
    the prompt. The engine's completion knows no tools then, so that only a schema forces a call.
    Raises BadRequest, CapabilityMissing.
    """
    mode, names = _read_choice(asked.tool_choice)
    if not asked.tools or mode == "none":
        return chat
    need_tools(traits)
    keeps_choice = mode != "required" or (traits.keeps_call_schema and not renders)
    if traits.parses_tools and keeps_choice:
        given = {
            "tool_choice": asked.tool_choice,
            "parallel_tool_calls": asked.parallel_tool_calls,
        }
        return replace(
            chat,
            tools=asked.tools,
            tool_fields={name: value for name, value in given.items() if value is not None},
            toolset=make_toolset(asked.tools, style),
        )
    tools = [_checked(number, tool) for number, tool in enumerate(asked.tools)]
    known = {tool["function"]["name"] for tool in tools}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise BadRequest(f"Invalid value for 'tool_choice': there is no tool '{unknown[:80]}'.")
    if names:
        tools = [tool for tool in tools if tool["function"]["name"] in names]
    # an engine that knows no schema leaves the choice to the model, as Ollama does with all
    forced = mode == "required" and traits.schema_style is not SchemaStyle.NONE
    most = 1 if forced or asked.parallel_tool_calls is False else None
    chat = replace(chat, toolset=make_toolset(tools, style, most=most, forced=forced))
    if forced:
        # a schema for the whole answer: what a client's own format says cannot hold as well
        wanted = make_response_format(make_schema_format(make_call_schema(tools)), traits)
        chat = replace(chat, response_format=wanted)
    if style is not None and not style.takes_tools:
        messages = write_tools_as_text(asked.messages, tagged=True)
        guide = write_guide(tools, must=forced, most=most)
        return replace(chat, messages=add_guide(messages, guide, style))
    silent = traits.silent_tool_choice
    return replace(chat, tools=tools, tool_fields={} if silent is None else {"tool_choice": silent})


def leaves_choice(asked: ChatRequest) -> bool:
    """Tell whether a request gives tools and leaves it to the model to call them."""
    return bool(asked.tools) and _read_choice(asked.tool_choice)[0] == "auto"


def make_toolset(
    tools: Sequence[Mapping[str, Any]],
    style: Style | None,
    *,
    most: int | None = None,
    forced: bool = False,
) -> Toolset:
    """Return what to look for in the answer to a request with these tools, in OpenAI's form."""
    schemas = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            schemas[function["name"]] = parameters if isinstance(parameters, Mapping) else {}
    known = style or Style()
    return Toolset(
        schemas=schemas,
        form=known.form,
        most=most,
        forced=forced,
        markers=known.markers,
        after_text=style is not None,
    )


def _read_choice(value: object) -> tuple[str, tuple[str, ...]]:
    """Return auto, none or required, and which tools may be called (none named: all)."""
    match value:
        case None | "":
            return "auto", ()
        case "auto" | "none" | "required":
            return value, ()
        case "any":  # what some clients of other dialects say
            return "required", ()
        case {"type": "function", "function": {"name": str(name)}}:
            return "required", (name,)
        case {"type": "allowed_tools", "allowed_tools": {"tools": list(tools), **rest}}:
            named = tuple(
                tool["function"]["name"]
                for tool in tools
                if isinstance(tool, Mapping)
                and isinstance(tool.get("function"), Mapping)
                and isinstance(tool["function"].get("name"), str)
            )
            return "required" if rest.get("mode") == "required" else "auto", named
    raise BadRequest(
        f"Invalid value for 'tool_choice': {str(value)[:80]!r}. Supported values are: 'none', "
        "'auto', 'required', and an object that names a function."
    )


def _checked(number: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool with all that templates read of it. Raises BadRequest."""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise BadRequest(f"Missing required parameter: 'tools[{number}].function.name'.")
    parameters = function.get("parameters")
    if not isinstance(parameters, Mapping):
        parameters = _NO_PARAMETERS
    known = {key: value for key, value in function.items() if value is not None}
    return {"type": "function", "function": {**known, "parameters": dict(parameters)}}


# for models whose template knows no tools; most models have seen this syntax of calls
_GUIDE = """\
You have functions that you may call. They are, one JSON object per line:
{tools}

{when} To call a function, write this and nothing else:
<tool_call>
{{"name": "the function's name", "arguments": {{"argument": "value"}}}}
</tool_call>
{many}You are then told its result; use it for your answer."""
_MAY = "If no function helps, answer in your own words."
_MUST = "You must call a function now."
_MANY = "Write one such block for each call.\n"


def write_guide(tools: Sequence[Mapping[str, Any]], *, must: bool, most: int | None) -> str:
    """Return the words that tell a model its tools. `must`: a call is wanted now."""
    lines = []
    for tool in tools:
        known = {key: tool["function"].get(key) for key in ("name", "description", "parameters")}
        known = {key: value for key, value in known.items() if value is not None}
        lines.append(msgspec.json.encode(known).decode())
    return _GUIDE.format(
        tools="\n".join(lines),
        when=_MUST if must else _MAY,
        many="" if most == 1 else _MANY,
    )


def add_guide(messages: Sequence[Message], text: str, style: Style) -> tuple[Message, ...]:
    """Put `text` into the system message, or before the user's words if the model takes none."""
    role = "system" if style.takes_system else "user"
    at = next((n for n, message in enumerate(messages) if message.role == role), -1)
    if at < 0 or (style.takes_system and at != 0):
        return (Message(role=role, content=text), *messages)
    said = messages[at].content
    parts = (said, text) if style.takes_system else (text, said)
    changed = messages[at].with_text("\n\n".join(filter(None, parts)))
    return (*messages[:at], changed, *messages[at + 1 :])


def prepare_chat(
    asked: ChatRequest,
    traits: Traits,
    style: Style | None,
    *,
    n: int = 1,
    renders: bool = False,
) -> PreparedChat:
    """Return a request as the engine of `traits` takes it.

    `style` is what the template in force tells, None if another server keeps it to itself; `n`
    is how many choices the engine is asked for. `renders`: vllama renders the prompt, with a
    Modelfile's template. Raises BadRequest, CapabilityMissing.
    """
    known = {*traits.passed_fields, *traits.refused_fields, traits.completion_schema}
    extra, ignored = pass_fields(asked.extra, known) if asked.extra else ({}, ())
    chat = PreparedChat(
        model=asked.model,
        messages=asked.messages,
        response_format=make_response_format(asked.response_format, traits),
        logprobs=asked.logprobs,
        top_logprobs=asked.top_logprobs,
        n=n,
        extra=extra,
        ignored=ignored,
    )
    chat = place_tools(chat, asked, traits, style, renders=renders)
    messages = chat.messages
    if style is not None and has_tools(messages):
        if style.short_ids:
            messages = shorten_ids(messages)
        elif not (style.takes_tools or style.keeps_history or chat.tools):
            messages = write_tools_as_text(messages)
    if not (traits.takes_calls or renders) and has_tools(messages):
        messages = write_tools_as_text(messages)
    # An engine that tells thinking apart lets the grammar begin after it; another one, and any
    # engine in a completion, lets it begin at the start, so that the model cannot think first.
    splits = traits.splits_reasoning and not (renders and traits.formats_completions)
    constrained = chat.response_format is not None and not splits
    messages = join_answers(messages)
    if traits.folds_roles:
        messages = fold_roles(messages)
    return replace(
        chat,
        messages=messages,
        constrained=constrained,
        think=False if constrained else choose_think(asked.think, style),
        continues=is_continued(messages),
    )
