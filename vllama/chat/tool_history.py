"""Earlier calls and results in a conversation, as the model's template can take them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from vllama.chat.parsers.call_values import ToolCall, object_of, short_id
from vllama.chat.request import Message
from vllama.chat.roles import join_messages

MAX_WAITING = 256
"""Calls of which a result may be; it is looked for among all of them."""


def has_tools(messages: Sequence[Message]) -> bool:
    """Tell whether a history has calls or results in it."""
    return any(message.tool_calls or _is_result(message) for message in messages)


def write_tools_as_text(
    messages: Sequence[Message], *, tagged: bool = False
) -> tuple[Message, ...]:
    """Rewrite calls and results as text: templates that know no tools drop or refuse them.

    `tagged`: calls as `tool_prompt.write_guide` asks for them; else in words: models repeat tags
    they see. Results that follow one another, and what the user says after them, become one turn:
    many templates refuse two turns of one role.
    """
    turns: list[list[Message]] = []
    names: dict[str, str] = {}
    after_result = False
    for message in messages:
        if message.tool_calls:
            names |= {call.id: call.name for call in message.tool_calls}
            written = (_write_call(call, tagged=tagged) for call in message.tool_calls)
            text = "\n".join(filter(None, (message.content, *written)))
            message = replace(message, tool_calls=()).with_text(text)
        is_result = _is_result(message)
        if is_result:
            name = message.tool_name or names.get(message.tool_call_id or "", "")
            text = f"Result of {name}: {message.content}" if name else f"Result: {message.content}"
            message = Message(role="user", images=message.images, parts=message.media)
            message = message.with_text(text)
        if after_result and message.role == "user":
            turns[-1].append(message)
        else:
            turns.append([message])
        after_result = is_result
    return tuple(join_messages(turn, "\n") for turn in turns)


def shorten_ids(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Write the ids of calls as Mistral's templates want them: nine letters or digits.

    Calls without an id get one, which their results then bear.
    """
    out: list[Message] = []
    waiting: list[tuple[str, str]] = []  # (id, name) of calls without a result
    for number, message in enumerate(messages):
        if message.tool_calls:
            calls = tuple(
                replace(call, id=short_id(call.id or f"{number} {call.index} {call.name}"))
                for call in message.tool_calls
            )
            waiting += [(call.id, call.name) for call in calls]
            del waiting[:-MAX_WAITING]
            message = replace(message, tool_calls=calls)
        elif message.role == "tool":
            identity = short_id(message.tool_call_id) if message.tool_call_id else ""
            found = next(
                (one for one in waiting if identity == one[0] or message.tool_name == one[1]),
                waiting[0] if waiting and not identity else (identity or short_id(""), ""),
            )
            if found in waiting:
                waiting.remove(found)
            message = replace(message, tool_call_id=found[0])
        out.append(message)
    return tuple(out)


def _is_result(message: Message) -> bool:
    return message.role in ("tool", "function")


def _write_call(call: ToolCall, *, tagged: bool) -> str:
    arguments: object = object_of(call.text) if call.text else call.arguments
    if arguments is None:  # what a client sent need not be an object
        arguments = call.text
    if not tagged:
        return f"(Called {call.name} with {msgspec.json.encode(arguments).decode()})"
    written = msgspec.json.encode({"name": call.name, "arguments": arguments}).decode()
    return f"<tool_call>\n{written}\n</tool_call>"
