"""Tools for models whose chat template knows none: told in the system message, read back as tags.

The calls are asked for in the syntax that most models have seen, `<tool_call>{…}</tool_call>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from vllama.chat.request import Message
from vllama.chat.template_style import Style

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
