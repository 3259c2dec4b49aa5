"""Messages and tools as Ollama's templates see them.

The names are those of Ollama's docs/template.md and template/template.go: `.Messages[]` has Role,
Content, Thinking, Images, ToolCalls[].Function{Name, Arguments, Index}, ToolName, ToolCallID;
`.Tools[]` has Type, Function{Name, Description, Parameters{Type, Required, Properties}}. A tool, a
call's arguments and their like are written as JSON. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from vllama.chat.parsers.call_values import ToolCall
from vllama.chat.request import Message, Think
from vllama.chat.templates.go.values import JsonList, JsonMap, Struct, TypeNames


def collate(messages: Iterable[Message]) -> tuple[str, list[Message]]:
    """Return all system messages in one text, and the messages with neighbors of one role joined.

    Tools' results stay apart: each belongs to a call of its own.
    """
    system: list[str] = []
    out: list[Message] = []
    for message in messages:
        if message.role == "system":
            system.append(message.content)
        last = out[-1] if out else None
        if last is None or last.role != message.role or message.role == "tool":
            out.append(message)
            continue
        out[-1] = replace(
            last,
            content=f"{last.content}\n\n{message.content}",
            images=last.images + message.images,
            tool_calls=last.tool_calls + message.tool_calls,
        )
    return "\n\n".join(system), out


def thinking_values(think: Think) -> dict[str, object]:
    """Return `.Think`, `.ThinkLevel` and `.IsThinkSet`; the level of a plain true is medium."""
    level = think if isinstance(think, str) else ("medium" if think else "")
    return {"Think": bool(think), "ThinkLevel": level, "IsThinkSet": think is not None}


def message_value(message: Message) -> Struct:
    """Return one of `.Messages`."""
    fields: dict[str, object] = {
        "Role": message.role,
        "Content": message.content,
        "Thinking": message.thinking or "",
        "Images": list(message.images),
        "ToolCalls": [_call(call) for call in message.tool_calls],
        "ToolName": message.tool_name or "",
        "ToolCallID": message.tool_call_id or "",
    }
    return Struct(fields, fields)


def tool_values(tools: Sequence[Mapping[str, object]]) -> JsonList:
    """Return `.Tools`."""
    return JsonList(_tool(tool) for tool in tools)


def _call(call: ToolCall) -> Struct:
    arguments = JsonMap(_any(call.arguments))
    function = {"Index": call.index, "Name": call.name, "Arguments": arguments}
    inner = Struct(function, {"index": call.index, "name": call.name, "arguments": arguments})
    return Struct({"ID": call.id, "Function": inner}, {"id": call.id, "function": inner})


def _tool(tool: Mapping[str, object]) -> Struct:
    given = _fold_keys(tool)
    function = _fold_keys(given.get("function"))
    parameters = _fold_keys(function.get("parameters"))
    properties = parameters.get("properties")
    inner = _struct(
        ("Type", "type", _text(parameters.get("type")), True),
        ("Defs", "$defs", _any(parameters.get("$defs")), False),
        ("Items", "items", _any(parameters.get("items")), False),
        ("Required", "required", _texts(parameters.get("required")), False),
        ("Properties", "properties", _properties(properties), True),
    )
    outer = _struct(
        ("Name", "name", _text(function.get("name")), True),
        ("Description", "description", _text(function.get("description")), True),
        ("Parameters", "parameters", inner, True),
    )
    return _struct(
        ("Type", "type", _text(given.get("type")), True),
        ("Items", "items", _any(given.get("items")), False),
        ("Function", "function", outer, True),
    )


class _Properties(JsonMap):
    """Properties by name; one that is missing is one that says nothing."""


def _properties(value: object) -> _Properties | None:
    if not isinstance(value, Mapping):
        return None
    return _Properties({str(name): _property(item) for name, item in value.items()})


def _property(value: object) -> Struct:
    given = _fold_keys(value)
    choices = given.get("anyof")
    kinds = given.get("type")
    return _struct(
        (
            "AnyOf",
            "anyOf",
            [_property(item) for item in choices] if isinstance(choices, list) else [],
            False,
        ),
        ("Type", "type", TypeNames([kinds] if isinstance(kinds, str) else _texts(kinds)), False),
        ("Items", "items", _any(given.get("items")), False),
        ("Description", "description", _text(given.get("description")), False),
        ("Enum", "enum", _any(given.get("enum")) or [], False),
        ("Properties", "properties", _properties(given.get("properties")), False),
        ("Required", "required", _texts(given.get("required")), False),
    )


def _struct(*rows: tuple[str, str, object, bool]) -> Struct:
    """Make a struct of (name, name in JSON, value, whether it is encoded when it is empty)."""
    fields = {name: value for name, _, value, _ in rows}
    encoded = {
        key: value for _, key, value, always in rows if always or value not in (None, "", [])
    }
    return Struct(fields, encoded)


def _any(value: object) -> Any:
    """Return decoded JSON as Go holds it: every number is a float."""
    match value:
        case bool():
            return value
        case int():
            try:
                return float(value)
            except OverflowError:
                return float("inf")
        case list() | tuple():
            return [_any(item) for item in value]
        case Mapping():
            return {str(key): _any(item) for key, item in value.items()}
        case _:
            return value


def _fold_keys(value: object) -> Mapping[str, object]:
    """Return an object with its keys in lower case, {} for anything else."""
    if not isinstance(value, Mapping):
        return {}
    return {str(key).lower(): item for key, item in value.items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


_Properties.zero = _property(None)
