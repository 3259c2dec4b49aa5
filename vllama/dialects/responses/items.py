"""The input items of the Responses API as OpenAI's chat messages.

Calls and the reasoning before them belong to one message of the assistant; the API lists them one
after the other. Reasoning comes back as we gave it: plain text in `encrypted_content`.

See docs/reference/ollama-api.md#responses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllama.base.errors import BadRequest
from vllama.chat.bodies import decode_json, encode_json
from vllama.chat.request import MAX_MESSAGES
from vllama.dialects.anthropic.messages import join_blocks
from vllama.dialects.responses.answer_types import InputItems


def input_messages(value: object) -> list[dict[str, Any]]:
    """Return `input`, a text or items whose types are right, as messages. Raises BadRequest."""
    if not isinstance(value, list):
        return [{"role": "user", "content": value}] if value else []
    if len(value) > MAX_MESSAGES:  # with those of earlier responses
        raise BadRequest(
            f"cannot read the request: it has {len(value)} messages, at most {MAX_MESSAGES}"
        )
    items = _Items()
    for item in value:
        items.add(item)
    items.add_media()
    return items.messages


class _Items:
    """Messages in the making."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._reasoning = ""
        self._media: list[dict[str, Any]] = []

    def add(self, item: Mapping[str, Any]) -> None:
        """Take the next item. Calls that OpenAI's servers ran are passed over."""
        match item.get("type") or "message":
            case "message":
                self.add_media()
                self._message(item)
            case "function_call":
                self.add_media()
                self._call(item)
            case "function_call_output":
                self._output(item)
            case "reasoning":
                self._reasoning += _reasoning(item)

    def _message(self, item: Mapping[str, Any]) -> None:
        role = (item.get("role") or "").lower()
        parts = _parts(item.get("content"))
        if role != "assistant":
            self.messages.append({"role": role, "content": join_blocks(parts)})
            return
        text = "".join(part.get("text", "") for part in parts)
        self._assistant({"role": role, "content": text})

    def _call(self, item: Mapping[str, Any]) -> None:
        name, space = item.get("name") or "", item.get("namespace")
        call = {
            "id": item.get("call_id") or "",
            "type": "function",
            "function": {
                "name": f"{space}.{name}" if isinstance(space, str) and space else name,
                "arguments": _arguments(item.get("arguments") or ""),
            },
        }
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant" or self._reasoning:
            last = self._assistant({"role": "assistant", "content": None})
        last.setdefault("tool_calls", []).append(call)

    def _assistant(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._reasoning:
            message["reasoning"], self._reasoning = self._reasoning, ""
        self.messages.append(message)
        return message

    def _output(self, item: Mapping[str, Any]) -> None:
        parts = _parts(item.get("output"))
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
        identity = item.get("call_id") or ""
        self.messages.append({"role": "tool", "tool_call_id": identity, "content": text})
        self._media += [part for part in parts if part["type"] != "text"]

    def add_media(self) -> None:
        """Add the media of tools' results as the user's: engines take them from nobody else.

        They come after the last result, because the results of parallel calls belong together.
        """
        if self._media:
            self.messages.append({"role": "user", "content": self._media})
            self._media = []


def _arguments(text: str) -> str:
    """Return arguments that are an object: a model's mistake must not end its conversation."""
    try:
        value = decode_json(text.encode(errors="replace")) if text.strip() else {}
    except BadRequest:
        value = text
    return (
        text
        if isinstance(value, dict) and value
        else encode_json(value if isinstance(value, dict) else {"input": value}).decode()
    )


def _reasoning(item: Mapping[str, Any]) -> str:
    text = item.get("encrypted_content")
    if isinstance(text, str) and text:
        return text
    out = []
    for name in ("content", "summary"):
        parts = item.get(name)
        out = [
            part["text"] for part in (parts if isinstance(parts, list) else ())
            if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        ]  # fmt: skip
        if out:
            break
    return "\n".join(out)


def _parts(content: str | list[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Return a message's or an output's content in the parts of a chat message.

    Raises BadRequest for a file.
    """
    if not content:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    out: list[dict[str, Any]] = []
    for part in content:
        match part["type"]:
            case "input_image":
                if url := part.get("image_url"):  # Ollama, too, leaves out what has a file_id only
                    out.append({"type": "image_url", "image_url": {"url": url}})
            case "input_audio":
                out.append({"type": "input_audio", "input_audio": part.get("input_audio")})
            case "input_file":
                raise BadRequest("file inputs are not currently supported")
            case _:
                text = part.get("text") or part.get("refusal") or ""
                out.append({"type": "text", "text": text if isinstance(text, str) else ""})
    return out


_PREFIXES = {
    "message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs",
}  # fmt: skip


def make_input_items(value: object, seed: str) -> list[dict[str, Any]]:
    """Return a request's `input`, which was read before, as a list of items.

    Items without an id get one that is made of `seed`, unique to the request.
    """
    given = [{"role": "user", "content": value}] if isinstance(value, str) else value
    items = [dict(item) for item in given] if isinstance(given, list) else []
    return [_complete(item, f"{seed}{number:02d}") for number, item in enumerate(items)]


def _complete(item: dict[str, Any], identity: str) -> dict[str, Any]:
    kind = item["type"] = item.get("type") or "message"  # whatever is empty, as it was read
    if not item.get("id"):
        item["id"] = f"{_PREFIXES.get(kind, 'item')}_in{identity}"
    if kind == "message" and isinstance(item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        item["content"] = [{"type": part, "text": item["content"]}]
    if kind in _PREFIXES:
        item.setdefault("status", "completed")
    return item


def list_items(items: Sequence[Mapping[str, Any]]) -> InputItems:
    """Return the answer that lists input items, newest first, all on one page."""
    rows = list(reversed(items))
    first, last = (rows[0]["id"], rows[-1]["id"]) if rows else (None, None)
    return InputItems("list", rows, first, last, has_more=False)
