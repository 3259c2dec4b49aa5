"""The input items of the Responses API as OpenAI's chat messages.

Calls and the reasoning before them belong to one message of the assistant; the API lists them one
after the other. Reasoning comes back as we gave it: plain text in `encrypted_content`.

See docs/reference/ollama-api.md#responses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vllama.base.errors import BadRequest
from vllama.chat.bodies import decode_json, encode_json
from vllama.chat.request import MAX_MESSAGES
from vllama.dialects.anthropic.messages import join_blocks, split_result
from vllama.dialects.responses.answer_types import InputItems

REFERENCE, TOOLS = "item_reference", "additional_tools"


def kind_of(item: Mapping[str, Any]) -> str:
    """Return the type of an item; a role alone makes it a message, an id alone a reference."""
    return item.get("type") or ("message" if item.get("role") else REFERENCE)


def find_tools(value: object) -> list[Any]:
    """Return the tools that Codex gives in items of the input."""
    items = value if isinstance(value, list) else []
    return [one for item in items if kind_of(item) == TOOLS for one in item.get("tools") or ()]


def input_messages(value: object, before: int = 0) -> tuple[list[dict[str, Any]], list[str]]:
    """Return `input`, a text or items, as messages, and places and types of what is passed over.

    The first items are those of responses `before`. Raises BadRequest.
    """
    if not isinstance(value, list):
        return [{"role": "user", "content": value}] if value else [], []
    if len(value) > MAX_MESSAGES:  # with those of earlier responses
        raise BadRequest(
            f"cannot read the request: it has {len(value)} messages, at most {MAX_MESSAGES}"
        )
    items = _Items()
    named: list[str] = []
    for number, item in enumerate(value):
        items.add(item)
        place = f"input[{number - before}]" if number >= before else "previous_response_id"
        named += [f"{place} {kind}" for kind in items.passed_over[len(named) :]]
    items.add_media()
    return items.messages, named


class _Items:
    """Messages in the making."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.passed_over: list[str] = []
        self._reasoning = ""
        self._media: list[dict[str, Any]] = []

    def add(self, item: Mapping[str, Any]) -> None:
        """Take the next item, or note that it is passed over.

        A call that its client ran has a `call_id`, and its result another; their types are many
        (`custom_tool_call`, `local_shell_call`, `apply_patch_call` …). Those of OpenAI's servers
        have none.
        """
        kind = kind_of(item)
        has_id = isinstance(item.get("call_id"), str)
        if kind == "message":
            self.add_media()
            self._message(item)
        elif kind == "function_call":
            self.add_media()
            self._call(item, item.get("arguments"))
        elif kind == "reasoning" and (thought := _reasoning(item)):
            self._reasoning += thought
        elif kind.endswith("_output") and (has_id or kind == "function_call_output"):
            self._output(item)
        elif kind.endswith("_call") and has_id:
            self.add_media()
            given = {name: x for name, x in item.items() if name not in _OF_ITEMS}
            self._call({"name": kind.removesuffix("_call"), **item}, encode_json(given).decode())
        elif kind != TOOLS:
            self.passed_over.append(kind[:80])

    def _message(self, item: Mapping[str, Any]) -> None:
        role = (item.get("role") or "").lower()
        parts = _parts(item.get("content"))
        if role != "assistant":
            self.messages.append({"role": role, "content": join_blocks(parts)})
            return
        self.passed_over += [part["type"][:80] for part in parts if "text" not in part]
        self._assistant({"role": role, "content": "".join(x.get("text", "") for x in parts)})

    def _call(self, item: Mapping[str, Any], arguments: object) -> None:
        name, space = str(item.get("name") or ""), item.get("namespace")
        call = {
            "id": str(item.get("call_id") or ""),
            "type": "function",
            "function": {
                "name": f"{space}.{name}" if isinstance(space, str) and space else name,
                "arguments": _arguments(arguments),
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
        output = item.get("output")
        if not (output is None or isinstance(output, str) or _is_content(output)):
            output = encode_json(output).decode()
        text, media = split_result(_parts(output))
        identity = str(item.get("call_id") or "")
        self.messages.append({"role": "tool", "tool_call_id": identity, "content": text})
        self._media += media

    def add_media(self) -> None:
        """Add the media of tools' results as the user's: engines take them from nobody else.

        They come after the last result, because the results of parallel calls belong together.
        """
        if self._media:
            self.messages.append({"role": "user", "content": self._media})
            self._media = []


def _arguments(given: object) -> str:
    """Return arguments that are an object: a model's mistake must not end its conversation."""
    text = given if isinstance(given, str) else encode_json({} if given is None else given).decode()
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
    if isinstance(text, str) and text and not _CIPHER.fullmatch(text):
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


_CIPHER = re.compile(r"[\w+/=-]{64,}+", re.ASCII)  # of another server, which nobody can read
_TEXTS = ("input_text", "output_text", "text", "refusal", "summary_text")
_OF_ITEMS = ("type", "id", "call_id", "status", "name", "namespace")


def _is_content(value: object) -> bool:
    """Tell whether a value is a list of parts with a type."""
    return isinstance(value, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in value
    )


def _parts(
    content: str | list[Any] | Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    """Return a message's or an output's content in the parts of a chat message.

    Parts of other types stay: `read_chat` refuses them, or passes over them.
    """
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    out: list[dict[str, Any]] = []
    for part in [content] if isinstance(content, Mapping) else content or ():
        given = part if isinstance(part, Mapping) else {"text": part}
        kind, text = given.get("type"), given.get("text") or given.get("refusal")
        if kind == "input_image":
            if url := given.get("image_url"):  # Ollama, too, leaves out what has a file_id only
                out.append({"type": "image_url", "image_url": {"url": url}})
        elif isinstance(text, str) or (text is None and kind in _TEXTS):
            out.append({"type": "text", "text": text or ""})
        else:
            out.append({"type": str(kind), "input_audio": given.get("input_audio")})
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
    kind = item["type"] = kind_of(item)
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
