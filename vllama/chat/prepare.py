"""A request made fit for one engine and one template: the pure part of `routes.prompts.prepare`.

Its tools become the engine's own fields, a schema, or words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from vllama.base.errors import BadRequest
from vllama.chat.bodies import decode_value
from vllama.chat.conversation import (
    drop_past_media,
    fold_roles,
    has_tools,
    is_continued,
    join_answers,
    shorten_ids,
    write_tools_as_text,
)
from vllama.chat.engine.fields import (
    make_response_format,
    make_schema_format,
    need_tools,
    spell_format,
)
from vllama.chat.engine.request_fields import pass_fields
from vllama.chat.engine.traits import SchemaStyle, Stops, Traits
from vllama.chat.grammar_schema import FRAGILE, Compiler, SchemaWriter, is_safe
from vllama.chat.parsers.call_values import Toolset
from vllama.chat.request import ChatRequest, Message, PlacedSchema, PreparedChat
from vllama.chat.schema import check_schema, check_size
from vllama.chat.templates.template_style import Style, choose_think


def make_call_schema(
    tools: Sequence[Mapping[str, Any]], compiler: Compiler = FRAGILE, names: Collection[str] = ()
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the schema of `{"name": …, "arguments": {…}}`, and what of it cannot be held.

    `tools` in OpenAI's form, each with `function.name` and `function.parameters`; `names` are those
    that may be called, if not all. Raises BadRequest if they are too large, or if the only one has
    no schema.
    """
    check_size(tools)
    writer, calls = SchemaWriter(compiler), []
    for number, tool in enumerate(tools):
        function = tool["function"]
        name = function["name"]
        if names and name not in names:
            continue
        where = f"tools[{number}].parameters"
        try:
            given = check_schema(function["parameters"])
        except BadRequest as error:  # no error of one of several tools
            if 1 in (len(tools), len(names)):
                raise BadRequest(f"cannot call the tool '{name[:80]}': {error.message}") from None
            writer.left_out[where] = None
            given = {}
        parameters = writer.write(given, where)
        if not parameters or parameters.get("type", "object") != "object":
            parameters = {"type": "object"}
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": name}
                    if is_safe(name) or not compiler.is_fragile
                    else {"type": "string"},
                    "arguments": parameters,
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    whole = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return writer.finish(whole), tuple(writer.left_out)


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
        # its own way to force a call may hold less than the schemas
        unsure = _place_parameters(asked.tools) if mode == "required" else {}
        return replace(
            chat,
            tools=asked.tools,
            tool_fields={name: value for name, value in given.items() if value is not None},
            toolset=make_toolset(asked.tools, style),
            half_held={**chat.half_held, **unsure},
        )
    every = tools = [_check_tool(number, tool) for number, tool in enumerate(asked.tools)]
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
        schema, left_out = make_call_schema(every, traits.schema_compiler or FRAGILE, names)
        is_unsure = bool(left_out) or traits.schema_compiler is None
        chat = replace(
            chat,
            response_format=spell_format(schema, traits),
            ignored=(*chat.ignored, *left_out),
            half_held=_place_parameters(every) if is_unsure else {},
        )
    if style is not None and not style.takes_tools:
        messages = write_tools_as_text(asked.messages, tagged=True)
        guide = write_guide(tools, must=forced, most=most)
        return replace(chat, messages=add_guide(messages, guide, style))
    silent = traits.silent_tool_choice
    return replace(chat, tools=tools, tool_fields={} if silent is None else {"tool_choice": silent})


def _place_parameters(tools: Sequence[Mapping[str, Any]]) -> dict[str, PlacedSchema]:
    """Return the schemas of tools with their places, by the tools' names."""
    out = {}
    for number, tool in enumerate(tools):
        match tool.get("function"):
            case {"name": str(name), "parameters": Mapping() as parameters}:
                out[name] = (f"tools[{number}].parameters", parameters)
    return out


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
    """Return the tools to look for in the response to a request with these."""
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


def _check_tool(number: int, tool: Mapping[str, Any]) -> dict[str, Any]:
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


def find_schema_fields(asked: ChatRequest, traits: Traits) -> set[str | None]:
    """Return the fields in which vLLM and the engine read a schema."""
    own = asked.extra.get("structured_outputs")
    has_json = isinstance(own, dict) and "json" in own
    return {"guided_json", traits.completion_schema} | (
        {"structured_outputs"} if has_json else set()
    )


def take_schema(asked: ChatRequest, traits: Traits) -> ChatRequest:
    """Return a request whose schema is in `response_format`, if vLLM's or the engine's word has it.

    These fields are not sent: a schema in `response_format` wins, and they are named. Raises
    BadRequest.
    """
    if asked.response_format is not None or not asked.extra:
        return asked
    extra = dict(asked.extra)
    found = extra.pop("guided_json", None)
    own = extra.get("structured_outputs")
    if isinstance(own, dict) and own.get("json") is not None:
        found = own["json"]
        extra["structured_outputs"] = {name: x for name, x in own.items() if name != "json"}
        if not extra["structured_outputs"]:
            del extra["structured_outputs"]
    if found is None and traits.completion_schema is not None:
        found = extra.pop(traits.completion_schema, None)
    if isinstance(found, str):
        found = decode_value(found.encode())
    if not isinstance(found, dict):
        return asked
    return replace(asked, extra=extra, response_format=make_schema_format(found))


_FORMS = {"structured_outputs", "guided_regex", "guided_choice", "guided_grammar", "regex", "ebnf"}


def prepare_chat(
    asked: ChatRequest,
    traits: Traits,
    style: Style | None,
    *,
    n: int = 1,
    renders: bool = False,
    thinks: bool = False,
) -> PreparedChat:
    """Return a request as the engine of `traits` takes it.

    `style` is what the template in force tells, None if another server keeps it to itself; `n`
    is how many choices the engine is asked for. `renders`: vllama renders the prompt, with a
    Modelfile's template. `thinks`: the model can. Raises BadRequest, CapabilityMissing.
    """
    told, dropped = drop_past_media(asked.messages, traits)
    asked = take_schema(replace(asked, messages=told), traits)
    known = {*traits.passed_fields, *traits.refused_fields} - find_schema_fields(asked, traits)
    extra, ignored = pass_fields(asked.extra, known) if asked.extra else ({}, ())
    ignored = (*asked.passed_over, *ignored)
    if asked.effort and asked.think is None:  # the model cannot
        ignored = (*ignored, "reasoning_effort")
    wanted, left_out = make_response_format(asked.response_format, traits)
    # nobody knows what an unknown server's grammar holds, and whether it has one
    given = asked.response_format or {}
    unsure = traits.schema_compiler is None and given.get("type") == "json_schema"
    chat = PreparedChat(
        model=asked.model,
        messages=asked.messages,
        customs=asked.customs,
        response_format=wanted,
        logprobs=asked.logprobs,
        top_logprobs=asked.top_logprobs,
        n=n,
        extra=extra,
        ignored=(*ignored, *left_out, *dropped),
        half_held={"": ("schema", (given.get("json_schema") or given)["schema"])}
        if left_out or unsure
        else {},
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
    messages = join_answers(messages)
    if traits.folds_roles:
        messages = fold_roles(messages)
    chat = replace(
        chat,
        messages=messages,
        think=choose_think(asked.think, style),
        continues=is_continued(messages),
        # with tools the answer may be cut after a call, and engines' parsers want small pieces
        is_whole=not (asked.stream or asked.tools),
    )
    # An engine that tells thinking apart lets the grammar begin after it; another one, and any
    # engine in a completion, lets it begin at the start, so that the thinking needs its own pass.
    splits = traits.splits_reasoning and not (renders and traits.formats_completions)
    if splits or (chat.response_format is None and not _FORMS & chat.extra.keys()):
        return chat
    if thinks and style is not None and may_think_first(chat, asked, traits):
        return replace(chat, thinks_first=True)
    return hold_from_start(chat, asked, thinks=thinks)


def may_think_first(chat: PreparedChat, asked: ChatRequest, traits: Traits) -> bool:
    """Tell whether a thinking model's response can have two passes, as completions of its prompt.

    Images, log probabilities and what is collected inside the model need one call.
    """
    if chat.think is False or chat.continues or chat.logprobs or chat.n > 1 or asked.inspect:
        return False
    if asked.is_text or asked.context or any(message.media_count for message in chat.messages):
        return False
    ends_at_marks = "stop" in traits.parameters and traits.stops is Stops.LEFT_OUT
    return traits.completes and traits.formats_completions and ends_at_marks


def hold_from_start(chat: PreparedChat, asked: ChatRequest, *, thinks: bool) -> PreparedChat:
    """Return a request whose format holds from the first token on; a model that `thinks` cannot.

    That is named, unless the client wants no thinking.
    """
    lost = ("think",) if thinks and asked.think is not False and not asked.is_text else ()
    chat = replace(chat, ignored=(*chat.ignored, *lost))
    return replace(chat, thinks_first=False, constrained=True, think=False)
