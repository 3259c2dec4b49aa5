"""Anthropic's conversations as OpenAI's messages.

A turn of the user becomes the results of tools, each a message of its own, and what else was said;
a turn of the assistant one message with its text, calls and earlier thinking.

See docs/reference/ollama-api.md#messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vllama.base.errors import BadRequest
from vllama.chat.bodies import encode_json
from vllama.dialects.openai.read import read_part

# changes with every request and would spoil the engine's prefix cache; it instructs nobody
_BILLING = "x-anthropic-billing-header:"


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


def chat_messages(
    value: Sequence[Mapping[str, Any] | None], passed_over: list[str]
) -> list[dict[str, Any]]:
    """Return `messages`, whose types are right, in OpenAI's form.

    As with Ollama, every role will do, blocks of unknown kinds are passed over, and a message
    without any content is left out.
    """
    out: list[dict[str, Any]] = []
    for number, item in enumerate(value):
        fields = item or {"content": [{"type": "null"}]}
        role, content = str(fields.get("role") or "").lower(), fields.get("content")
        if isinstance(content, str):
            out.append({"role": role, "content": content})
            continue
        blocks = _blocks(f"messages.{number}.content", content or [])
        is_answer = role == "assistant"
        out += _assistant(blocks, passed_over) if is_answer else _user(role, blocks, passed_over)
    return out


def _blocks(where: str, value: object) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (path, block) of each; a plain string, or any other value, is a block of text."""
    if isinstance(value, Mapping) and "type" in value:
        value = [value]
    if not isinstance(value, list):
        text = value if isinstance(value, str) else encode_json(value).decode()
        return [(where, {"type": "text", "text": text})]
    return [
        (f"{where}.{number}", block)
        for number, given in enumerate(value)
        for block in [{"type": "text", "text": given} if isinstance(given, str) else given]
        if isinstance(block, Mapping) and isinstance(block.get("type"), str)
    ]


def read_text(block: Mapping[str, Any], name: str = "text") -> str:
    """Return a string field, "" if it is not there."""
    text = block.get(name)
    return text if isinstance(text, str) else ""


def _assistant(
    blocks: Iterable[tuple[str, Mapping[str, Any]]], passed_over: list[str]
) -> list[dict[str, Any]]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for where, block in blocks:
        match block["type"]:
            case "text":
                texts.append(read_text(block))
            case "thinking":
                thoughts.append(read_text(block, "thinking"))
            case "tool_use" if name := read_text(block, "name"):
                given = block.get("input")
                arguments = encode_json({} if given is None else given).decode()
                function = {"name": name, "arguments": arguments}
                identity = read_text(block, "id")
                calls.append({"id": identity, "type": "function", "function": function})
            case kind:
                passed_over.append(f"{where} {kind}")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = calls
    return [message] if len(message) > 2 or message["content"] else []


def _user(
    role: str,
    blocks: Iterable[tuple[str, Mapping[str, Any]]],
    passed_over: list[str],
) -> list[dict[str, Any]]:
    """Split a turn: results of tools first, as engines want them next to the calls."""
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    speaks = False  # Ollama keeps a message that has a call or a thought only, whoever sent it
    for where, block in blocks:
        kind = block["type"]
        speaks = speaks or kind == "tool_use" or (kind == "thinking" and bool(block.get(kind)))
        if kind != "tool_result":
            parts += _part(where, block, passed_over)
            continue
        content = block.get("content")
        inner = _parts(f"{where}.content", "" if content is None else content, passed_over)
        text, media = split_result(inner)
        if block.get("is_error") and not text.lower().startswith("error"):
            text = f"Error:\n{text}"  # OpenAI's form has no field for it
        identity = read_text(block, "tool_use_id")
        results.append({"role": "tool", "tool_call_id": identity, "content": text})
        parts += media
    if parts or speaks:
        results.append({"role": role, "content": join_blocks(parts)})
    return results


def split_result(parts: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a tool's result, and its media: engines take them from the user only.

    What cannot be read is named in the text: a result must not end a conversation.
    """
    texts, media = list[str](), list[dict[str, Any]]()
    for part in parts:
        try:
            if "text" in part:
                texts.append(part["text"])
            else:
                media.append(read_part(part))
        except BadRequest as error:
            texts.append(f"[left out: {error.message}]")
    return "\n".join(texts), media


def join_blocks(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return OpenAI's parts, as one string if all of them are text."""
    if all("text" in part for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _parts(where: str, content: object, passed_over: list[str]) -> list[dict[str, Any]]:
    return [x for at, inner in _blocks(where, content) for x in _part(at, inner, passed_over)]


def _part(where: str, block: Mapping[str, Any], passed_over: list[str]) -> list[dict[str, Any]]:
    match block["type"]:
        case "text":
            return [{"type": "text", "text": read_text(block)}]
        case "image":
            return [_image(block.get("source"))]
        case "document":
            return _document(where, block, passed_over)
        case "search_result":
            head = {"type": "text", "text": f"{block.get('title', '')} ({block.get('source', '')})"}
            return [head, *_parts(f"{where}.content", block.get("content") or [], passed_over)]
        case kind:
            passed_over.append(f"{where} {kind}")
            return []


def _image(source: object) -> dict[str, Any]:
    given = source if isinstance(source, Mapping) else {}
    url, data = given.get("url") or "", read_text(given, "data")
    if data:
        url = f"data:{given.get('media_type') or 'image/png'};base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _document(where: str, block: Mapping[str, Any], passed_over: list[str]) -> list[dict[str, Any]]:
    match block.get("source"):
        case {"type": "text", "data": str(text)}:
            return [{"type": "text", "text": text}]
        case {"type": "content", "content": content}:
            return _parts(f"{where}.source.content", content, passed_over)
    return [{"type": "document"}]  # read_chat refuses it, or passes over it
