"""An adapted OpenAI body's messages as our own values, to render, count and cut them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from vllama.chat.request import Message, ToolCall


def read_conversation(body: bytes) -> tuple[tuple[Message, ...], tuple[dict[str, object], ...]]:
    """Return messages and tools of a body that `adapt_chat` has made.

    `images` are not themselves there, only the kinds of the parts that are no text.
    """
    decoded = msgspec.json.decode(body)
    messages = tuple(_message(item) for item in decoded.get("messages", ()))
    return messages, tuple(decoded.get("tools") or ())


def keep_messages(body: bytes, messages: Sequence[Message], kept: Sequence[Message]) -> bytes:
    """Return the body with only those of its messages that are among `kept`, by identity."""
    wanted = {id(message) for message in kept}
    decoded = msgspec.json.decode(body)
    decoded["messages"] = [
        item
        for item, message in zip(decoded["messages"], messages, strict=True)
        if id(message) in wanted
    ]
    return msgspec.json.encode(decoded)


def _message(item: Mapping[str, Any]) -> Message:
    content = item.get("content") or ""
    media: tuple[str, ...] = ()
    if not isinstance(content, str):
        parts = [part for part in content if isinstance(part, Mapping)]
        media = tuple(str(part.get("type")) for part in parts if "text" not in part)
        content = "".join(part.get("text", "") for part in parts)
    return Message(
        role=item["role"],
        content=content,
        images=media,
        tool_calls=_calls(item.get("tool_calls") or ()),
        tool_name=item.get("name"),
        tool_call_id=item.get("tool_call_id"),
    )


def _calls(calls: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(
            id=call.get("id") or "",
            name=call["function"]["name"],
            arguments=_arguments(call["function"].get("arguments")),
            index=number,
        )
        for number, call in enumerate(calls)
    )


def _arguments(value: object) -> dict[str, object]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}
