"""The `messages` of an OpenAI client as our own values.

Ollama takes text, images as data URIs, and audio. What a model or an engine cannot take is found
out when the engine's body is built (`chat.engine.messages`).

See docs/reference/ollama-api.md#openai-chat-completions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vllama.base.errors import BadRequest
from vllama.chat.engine.request_fields import check_nested
from vllama.chat.go_json import encode_json, kind
from vllama.chat.parsers.call_values import ToolCall, object_of
from vllama.chat.request import Message
from vllama.dialects.openai_values import is_base64

_READ = frozenset(
    ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning", "reasoning_content")
)
_FOR_CONTENT = frozenset(("tool_calls", "reasoning", "reasoning_content"))
"""What a message may have instead of content; Ollama takes the first only."""
GO_TYPES = {
    "null": "<nil>",
    "bool": "bool",
    "number": "float64",
    "object": "map[string]interface {}",
    "array": "[]interface {}",
    "string": "string",
}
"""How Go names the type of a JSON value of unknown type, by its kind."""
_DATA_URI = re.compile(r"data:(?:image/(?:jpeg|jpg|png|webp|gif))?;base64,", re.IGNORECASE)
_OF_CALLS = frozenset(("id", "type", "function"))


def read_messages(value: object) -> tuple[Message, ...]:
    """Return the messages of a body. Raises BadRequest."""
    if value is None or value == []:
        raise BadRequest("[] is too short - 'messages'")
    if not isinstance(value, list):
        raise BadRequest(f"Invalid type for 'messages': expected an array, got {kind(value)}.")
    return tuple(_message(number, item) for number, item in enumerate(value))


def _message(number: int, item: object) -> Message:
    where, item = f"messages[{number}]", {} if item is None else item
    if not isinstance(item, dict):
        raise BadRequest(f"Invalid type for '{where}': expected an object, got {kind(item)}.")
    role, content = str(item.get("role") or "").lower(), item.get("content")
    if len(item) == 2 and isinstance(content, str):  # as most have it
        return Message(role=role, content=content)
    parts: tuple[dict[str, Any], ...] = ()
    if isinstance(content, list):
        parts = _parts(content)
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    elif isinstance(content, str) or (content is None and not _FOR_CONTENT.isdisjoint(item)):
        text = content or ""
    else:
        raise BadRequest(f"invalid message content type: {GO_TYPES[kind(content)]}")
    extra = {k: v for k, v in item.items() if k not in _READ and v is not None}
    check_nested(where, extra)
    return Message(
        role=role,
        content=text,
        parts=parts,
        has_content=content is not None,
        thinking=_text(item, "reasoning") or _text(item, "reasoning_content"),
        tool_calls=_tool_calls(where, item.get("tool_calls") or ()),
        tool_call_id=_text(item, "tool_call_id"),
        tool_name=_text(item, "name"),
        extra=extra,
    )


def _text(item: Mapping[str, Any], name: str) -> str | None:
    value = item.get(name)
    return value if isinstance(value, str) and value else None


def _tool_calls(where: str, calls: object) -> tuple[ToolCall, ...]:
    if not isinstance(calls, list | tuple):
        raise BadRequest(f"Invalid type for '{where}.tool_calls': expected an array.")
    out = []
    for number, call in enumerate(calls):
        call = call if isinstance(call, Mapping) else {}
        function = call.get("function")
        function = function if isinstance(function, Mapping) else {}
        name, given = _text(function, "name") or "", function.get("arguments")
        text = given if isinstance(given, str) else ""
        if given is not None and not isinstance(given, str):
            text = encode_json(given).decode()
        if not (name or text):
            raise BadRequest("invalid tool call arguments")
        extra = {k: v for k, v in call.items() if k not in _OF_CALLS and v is not None}
        check_nested(f"{where}.tool_calls[{number}]", extra)
        out.append(
            ToolCall(
                id=_text(call, "id") or "",
                name=name,
                arguments=object_of(text) or {},
                index=number,
                text=text,
                extra=extra,
            )
        )
    return tuple(out)


def _parts(parts: list[object]) -> tuple[dict[str, Any], ...]:
    """Check the parts and spell them as OpenAI does."""
    out: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            out.append({"type": "text", "text": part})
            continue
        if not isinstance(part, Mapping):
            raise BadRequest("invalid message format")
        match part.get("type"):
            case "text" | "input_text" | "output_text" | "refusal":
                text = part.get("text", part.get("refusal"))
                if not isinstance(text, str):
                    raise BadRequest("invalid message format")
                out.append({"type": "text", "text": text})
            case "image_url":
                out.append(_image(part.get("image_url")))
            case "input_audio":
                out.append(_audio(part.get("input_audio")))
            case _:
                raise BadRequest("invalid message format")
    return tuple(out)


def _image(value: object) -> dict[str, Any]:
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str):
        raise BadRequest("invalid message format")
    if url.startswith(("http://", "https://")):  # the engine would fetch it
        raise BadRequest(
            "image URLs are not currently supported, please use base64 encoded data instead"
        )
    if _DATA_URI.match(url) is None:
        raise BadRequest("invalid image input")
    image: dict[str, Any] = {"url": url}
    if isinstance(value, Mapping) and isinstance(value.get("detail"), str):
        image["detail"] = value["detail"]
    return {"type": "image_url", "image_url": image}


def _audio(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise BadRequest("invalid input_audio format")
    if not isinstance(value.get("data"), str):
        raise BadRequest("invalid input_audio format: missing data")
    if not is_base64(value["data"]):
        raise BadRequest("invalid input_audio format: data is not base64")
    audio = {"data": value["data"], "format": str(value.get("format") or "wav")}
    return {"type": "input_audio", "input_audio": audio}
