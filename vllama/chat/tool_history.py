"""Earlier calls and results in a conversation, as the model's template can take them.

For Ollama's routes, whose messages are our own values; `adapt` does the same with OpenAI's.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from vllama.chat.request import Message
from vllama.chat.template_style import Style
from vllama.chat.tool_prompt import write_call, write_result
from vllama.parsers.tool_calls import short_id


def fit_history(messages: Sequence[Message], style: Style) -> Sequence[Message]:
    """Return the messages as a template of this style can render them.

    One that knows no tools would drop calls in silence and may refuse the role `tool`, so both
    become text. Mistral's refuse ids that do not have nine letters or digits.
    """
    if not any(message.tool_calls or message.role == "tool" for message in messages):
        return messages
    if not style.takes_tools:
        return _as_text(messages)
    return _with_short_ids(messages) if style.short_ids else messages


def _as_text(messages: Sequence[Message]) -> tuple[Message, ...]:
    out: list[Message] = []
    names: dict[str, str] = {}
    after_result = False
    for message in messages:
        if message.tool_calls:
            names |= {call.id: call.name for call in message.tool_calls}
            written = (write_call(call.name, call.arguments) for call in message.tool_calls)
            text = "\n".join(filter(None, (message.content, *written)))
            message = replace(message, content=text, tool_calls=())
        is_result = message.role == "tool"
        if is_result:
            name = message.tool_name or names.get(message.tool_call_id or "", "")
            message = Message(role="user", content=write_result(name, message.content))
        if after_result and message.role == "user":  # templates refuse two turns of one role
            message = replace(message, content=f"{out.pop().content}\n{message.content}")
        out.append(message)
        after_result = is_result
    return tuple(out)


def _with_short_ids(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Give calls without an id one of their own, which their results then bear."""
    out: list[Message] = []
    waiting: list[tuple[str, str]] = []  # (id, name) of calls without a result
    for number, message in enumerate(messages):
        if message.tool_calls:
            calls = tuple(
                replace(call, id=short_id(call.id or f"{number} {call.index} {call.name}"))
                for call in message.tool_calls
            )
            waiting += [(call.id, call.name) for call in calls]
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
