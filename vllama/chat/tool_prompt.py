"""Tools for models whose chat template knows none: told in the system message, read back as tags.

The calls are asked for in the syntax that most models have seen, `<tool_call>{…}</tool_call>`. In
the history, calls and their results become text of the assistant and of the user: a template that
knows no tools drops calls in silence, or refuses the role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from vllama.chat.template_style import Style
from vllama.parsers.call_values import object_of

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


def add_guide(messages: Sequence[dict[str, Any]], text: str, style: Style) -> list[dict[str, Any]]:
    """Put `text` into the system message, or before the user's words if the model takes none."""
    out = list(messages)
    role = "system" if style.takes_system else "user"
    at = next((n for n, message in enumerate(out) if message.get("role") == role), -1)
    if style.takes_system and at != 0:
        return [{"role": "system", "content": text}, *out]
    if at < 0:
        return [{"role": "user", "content": text}, *out]
    parts = (_text(out[at]), text) if style.takes_system else (text, _text(out[at]))
    out[at] = _with_text(out[at], "\n\n".join(part for part in parts if part))
    return out


def write_tools_as_text(
    messages: Sequence[dict[str, Any]], *, tagged: bool = False
) -> list[dict[str, Any]]:
    """Rewrite calls and results in a history of OpenAI's form as text.

    `tagged`: calls as `write_guide` asks for them; else in words: models repeat tags they see.
    Results that follow one another, and what the user says after them, become one turn: many
    templates refuse two turns of one role.
    """
    out: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    after_result = False
    for message in messages:
        calls = message.get("tool_calls") or ()
        if calls:
            for call in calls:
                names[str(call.get("id"))] = str(call["function"].get("name", ""))
            written = (_written(call, tagged=tagged) for call in calls)
            text = "\n".join(filter(None, (_text(message), *written)))
            message = _with_text(message, text)
            message.pop("tool_calls", None)
        is_result = message.get("role") in ("tool", "function")
        if is_result:
            name = message.get("name") or names.get(str(message.get("tool_call_id")), "")
            message = {"role": "user", "content": write_result(str(name), _text(message))}
        if after_result and message.get("role") == "user":
            earlier = out.pop()
            message = _with_text(message, f"{_text(earlier)}\n{_text(message)}")
        out.append(message)
        after_result = is_result
    return out


def has_tools(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether a history has calls or results in it."""
    return any(
        message.get("tool_calls") or message.get("role") in ("tool", "function")
        for message in messages
    )


def _written(call: Mapping[str, Any], *, tagged: bool) -> str:
    function = call["function"]
    arguments = object_of(function.get("arguments"))
    value = {
        "name": function.get("name", ""),
        "arguments": function.get("arguments") if arguments is None else arguments,
    }
    if not tagged:
        return write_call(str(value["name"]), value["arguments"])
    return f"<tool_call>\n{msgspec.json.encode(value).decode()}\n</tool_call>"


def write_call(name: str, arguments: object) -> str:
    """Say in words that a function was called."""
    return f"(Called {name} with {msgspec.json.encode(arguments).decode()})"


def write_result(name: str, text: str) -> str:
    """Say what a function returned."""
    return f"Result of {name}: {text}" if name else f"Result: {text}"


def _text(message: Mapping[str, Any]) -> str:
    """Return a message's text, its parts joined."""
    content = message.get("content")
    if isinstance(content, list):
        texts = (part.get("text", "") for part in content if isinstance(part, Mapping))
        return "\n".join(text for text in texts if text)
    return content if isinstance(content, str) else ""


def _with_text(message: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the message with another text; images stay."""
    content = message.get("content")
    if isinstance(content, list):
        others = [part for part in content if part.get("type") != "text"]
        if others:
            return {**message, "content": [{"type": "text", "text": text}, *others]}
    return {**message, "content": text}
