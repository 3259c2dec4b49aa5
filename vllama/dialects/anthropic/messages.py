"""Anthropic's conversations as OpenAI's messages.

A turn of the user becomes the results of tools, each a message of its own, and what else was said;
a turn of the assistant one message with its text, calls and earlier thinking.

See docs/reference/ollama-api.md#messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from vllama.base.errors import BadRequest
from vllama.chat.bodies import encode_json
from vllama.dialects.ollama.request_types import is_base64

# changes with every request and would spoil the engine's prefix cache; it instructs nobody
_BILLING = "x-anthropic-billing-header:"


def refuse(where: str, problem: str) -> NoReturn:
    """Raise BadRequest in Anthropic's words."""
    raise BadRequest(f"{where}: {problem}")


def system_messages(value: object) -> list[dict[str, Any]]:
    """Return `system`, a string or blocks, as at most one message."""
    if isinstance(value, str):
        texts = [value]
    elif isinstance(value, list):
        blocks = _blocks("system", value)
        texts = [read_text(block) for where, block in blocks if block.get("type") == "text"]
    else:  # Ollama passes over it
        return []
    text = "\n\n".join(text for text in texts if not text.startswith(_BILLING))
    return [{"role": "system", "content": text}] if text else []


def chat_messages(value: Sequence[Mapping[str, Any] | None]) -> list[dict[str, Any]]:
    """Return `messages`, whose types are right, in OpenAI's form. Raises BadRequest.

    As with Ollama, every role will do, blocks of unknown kinds are passed over, and a message
    without any content is left out.
    """
    out: list[dict[str, Any]] = []
    for number, item in enumerate(value):
        fields = item or {}
        role, content = str(fields.get("role") or "").lower(), fields.get("content")
        if isinstance(content, str):
            out.append({"role": role, "content": content})
            continue
        blocks = _blocks(f"messages.{number}.content", content or [])
        out.extend(_assistant(blocks) if role == "assistant" else _user(role, blocks))
    return out


def _blocks(where: str, value: object) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (path, block) of each; a plain string stands for a block of text."""
    if isinstance(value, str):
        return [(where, {"type": "text", "text": value})]
    if not isinstance(value, list):
        refuse(where, "Input should be a valid string or list")
    return [
        (f"{where}.{number}", block)
        for number, block in enumerate(value)
        if isinstance(block, Mapping) and isinstance(block.get("type"), str)
    ]


def read_text(block: Mapping[str, Any], name: str = "text") -> str:
    """Return a string field, "" if it is not there."""
    text = block.get(name)
    return text if isinstance(text, str) else ""


def _need_text(block: Mapping[str, Any], name: str) -> str:
    """Return a field that a call must have. Raises BadRequest."""
    if not (text := read_text(block, name)):
        raise BadRequest(f"tool_use block missing required '{name}' field")
    return text


def _assistant(blocks: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for _, block in blocks:
        match block["type"]:
            case "text":
                texts.append(read_text(block))
            case "thinking":
                thoughts.append(read_text(block, "thinking"))
            case "tool_use":
                given = block.get("input")
                identity = _need_text(block, "id")
                function = {
                    "name": _need_text(block, "name"),
                    "arguments": encode_json({} if given is None else given).decode(),
                }
                calls.append({"id": identity, "type": "function", "function": function})
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = calls
    return [message] if len(message) > 2 or message["content"] else []


def _user(role: str, blocks: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Split a turn: results of tools first, as engines want them next to the calls."""
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    speaks = False  # Ollama keeps a message that has a call or a thought only, whoever sent it
    for where, block in blocks:
        kind = block["type"]
        if kind == "tool_use":
            _need_text(block, "id")
            _need_text(block, "name")
        speaks = speaks or kind == "tool_use" or (kind == "thinking" and bool(block.get(kind)))
        if kind != "tool_result":
            parts.extend(_part(where, block))
            continue
        content = block.get("content")
        inner: list[dict[str, Any]] = []
        for place, item in _blocks(f"{where}.content", "" if content is None else content):
            try:
                inner.extend(_part(place, item))
            except BadRequest as error:  # a tool's result must not end a conversation
                inner.append({"type": "text", "text": f"[omitted: {error.message}]"})
        identity = read_text(block, "tool_use_id")
        texts = [part["text"] for part in inner if part["type"] == "text"]
        if block.get("is_error") and not "".join(texts).lower().startswith("error"):
            texts.insert(0, "Error:")  # OpenAI's form has no field for it
        results.append({"role": "tool", "tool_call_id": identity, "content": "\n".join(texts)})
        # engines take pictures from the user only
        parts.extend(part for part in inner if part["type"] != "text")
    if parts or speaks:
        results.append({"role": role, "content": join_blocks(parts)})
    return results


def join_blocks(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return OpenAI's parts, as one string if all of them are text."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(where: str, block: Mapping[str, Any]) -> list[dict[str, Any]]:
    match block["type"]:
        case "text":
            return [{"type": "text", "text": read_text(block)}]
        case "image":
            return [_image(block.get("source"))]
        case "document":
            return _document(where, block.get("source"))
        case "search_result":
            head = {"type": "text", "text": f"{block.get('title', '')} ({block.get('source', '')})"}
            inner = _blocks(f"{where}.content", block.get("content") or [])
            return [head, *(part for place, item in inner for part in _part(place, item))]
        case _:
            return []


def _image(source: object) -> dict[str, Any]:
    if not isinstance(source, Mapping):
        raise BadRequest("invalid image source")
    if source.get("type") != "base64":
        raise BadRequest(
            f"invalid image source type: {read_text(source, 'type')}. "
            "Only base64 images are supported."
        )
    kind, data = read_text(source, "media_type") or "image/png", read_text(source, "data")
    if not is_base64(data):
        raise BadRequest("invalid base64 image data")
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}


def _document(where: str, source: object) -> list[dict[str, Any]]:
    match source:
        case {"type": "text", "data": str(text)}:
            return [{"type": "text", "text": text}]
        case {"type": "content", "content": content}:
            inner = _blocks(f"{where}.source.content", content)
            return [part for place, item in inner for part in _part(place, item)]
        case _:
            refuse(f"{where}.source", "only plain-text documents are supported")
