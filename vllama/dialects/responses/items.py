"""The input items of the Responses API as OpenAI's chat messages.

Calls and the reasoning before them belong to one message of the assistant; the API lists them one
after the other. Reasoning comes back as we gave it: plain text in `encrypted_content`.

See docs/reference/ollama-api.md#responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from vllama.chat.go_json import check_messages, decode_json, encode_json, kind
from vllama.dialects.anthropic.messages import join_blocks
from vllama.errors import BadRequest

_PASSED_OVER = (
    "web_search_call", "file_search_call", "computer_call", "computer_call_output",
    "code_interpreter_call", "image_generation_call", "mcp_list_tools", "mcp_call",
)  # fmt: skip


_ITEM = 'struct { Type string "json:\\"type\\""; Role string "json:\\"role\\"" }'


def refuse_type(name: str, wanted: str, value: object) -> NoReturn:
    """Raise BadRequest in OpenAI's words."""
    raise BadRequest(
        f"Invalid type for '{name}': expected {wanted}, but got {kind(value)} instead."
    )


def input_messages(value: object) -> list[dict[str, Any]]:
    """Return `input`, a text or items, as messages. Raises BadRequest."""
    if not isinstance(value, list):
        return [{"role": "user", "content": value}] if value else []
    check_messages(value)
    items = _Items()
    for number, item in enumerate(value):
        where = f"input[{number}]"
        if not isinstance(item, Mapping):
            raise BadRequest(
                f"{where}: json: cannot unmarshal {kind(item)} into Go value of type {_ITEM}"
            )
        items.add(where, item)
    items.add_media()
    return items.messages


class _Items:
    """Messages in the making."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._reasoning = ""
        self._media: list[dict[str, Any]] = []

    def add(self, where: str, item: Mapping[str, Any]) -> None:
        """Take the next item."""
        kind_of = item.get("type") or ("message" if item.get("role") else None)
        if kind_of in ("message", "function_call"):
            self.add_media()
        match kind_of:
            case "message":
                self._message(where, item)
            case "function_call":
                self._call(where, item)
            case "function_call_output":
                self._output(where, item)
            case "reasoning":
                self._reasoning += _reasoning(item)
            case None:
                raise BadRequest(f"{where}: input item missing required 'type' field")
            case other if other in _PASSED_OVER:
                pass
            case other:
                raise BadRequest(f'{where}: unknown input item type: "{str(other)[:80]}"')

    def _message(self, where: str, item: Mapping[str, Any]) -> None:
        role, content = item.get("role"), item.get("content")
        if not isinstance(role, str) or not role:
            raise BadRequest(f"Missing required parameter: '{where}.role'.")
        role = role.lower()
        parts = _parts(f"{where}.content", content)
        if role != "assistant":
            self.messages.append({"role": role, "content": join_blocks(parts)})
            return
        text = "".join(part.get("text", "") for part in parts)
        self._assistant({"role": role, "content": text})

    def _call(self, where: str, item: Mapping[str, Any]) -> None:
        name, given = item.get("name"), item.get("arguments", "")
        if not isinstance(name, str) or not name:
            raise BadRequest(f"Missing required parameter: '{where}.name'.")
        if not isinstance(given, str):
            refuse_type(f"{where}.arguments", "a string", given)
        space = item.get("namespace")
        call = {
            "id": _id(where, item),
            "type": "function",
            "function": {
                "name": f"{space}.{name}" if isinstance(space, str) and space else name,
                "arguments": _arguments(given),
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

    def _output(self, where: str, item: Mapping[str, Any]) -> None:
        parts = _parts(f"{where}.output", item.get("output"))
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
        message = {"role": "tool", "tool_call_id": _id(where, item), "content": text}
        self.messages.append(message)
        self._media += [part for part in parts if part["type"] != "text"]

    def add_media(self) -> None:
        """Add the media of tools' results as the user's: engines take them from nobody else.

        They come after the last result, because the results of parallel calls belong together.
        """
        if self._media:
            self.messages.append({"role": "user", "content": self._media})
            self._media = []


def _id(where: str, item: Mapping[str, Any]) -> str:
    identity = item.get("call_id")
    if not isinstance(identity, str):
        raise BadRequest(f"Missing required parameter: '{where}.call_id'.")
    return identity


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


def _parts(where: str, content: object) -> list[dict[str, Any]]:
    """Return a message's or an output's content in the parts of a chat message."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        refuse_type(where, "a string or an array", content)
    out: list[dict[str, Any]] = []
    for number, part in enumerate(content):
        here = f"{where}[{number}]"
        if not isinstance(part, Mapping):
            refuse_type(here, "an object", part)
        match part.get("type"):
            case "input_text" | "output_text" | "text" | "refusal" | "summary_text":
                text = part.get("text", part.get("refusal"))
                if not isinstance(text, str):
                    refuse_type(f"{here}.text", "a string", text)
                out.append({"type": "text", "text": text})
            case "input_image":
                url = part.get("image_url")
                if not isinstance(url, str):
                    raise BadRequest(f"Missing required parameter: '{here}.image_url'.")
                out.append({"type": "image_url", "image_url": {"url": url}})
            case "input_audio":
                out.append({"type": "input_audio", "input_audio": part.get("input_audio")})
            case "input_file":
                raise BadRequest(f"{here}: file inputs are not currently supported")
            case other:
                raise BadRequest(f"Invalid value for '{here}.type': '{str(other)[:80]}'.")
    return out
