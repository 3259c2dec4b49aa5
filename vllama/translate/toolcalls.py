"""Tool calls in answers: pieces of a stream made whole, or found in the text.

`CallCollector` joins OpenAI's deltas. `CallScanner` is for engines that pass tools to the template
and leave the answer as text (llama.cpp's Python server): it finds what the common families
 write: `<tool_call>{…}</tool_call>` (Hermes, Qwen), `[TOOL_CALLS][…]` (Mistral),
`<|python_tag|>{…}` or a bare `{"name": …}` (Llama 3). What does not parse stays text, always.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence

import msgspec

from vllama.translate.events import ToolDelta
from vllama.translate.types import ToolCall

_MARKERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
_CLOSING = re.compile(r"\s*(?:</tool_call>|<\|eom_id\|>|<\|eot_id\|>|[;,])?\s*")
_BARE = re.compile(r'\{\s*"(?:name|type|function)"\s*:')
_BARE_DECIDED = 24
_SPACE = re.compile(r"\s*")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_DECODER = json.JSONDecoder()


def call_id(name: str, arguments: object, position: int) -> str:
    """Make an id as Ollama's, `call_` + 8 alphanumerics, always the same for the same call."""
    seed = msgspec.json.encode([name, arguments, position])
    number = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big")
    letters = []
    for _ in range(8):
        number, rest = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[rest])
    return "call_" + "".join(letters)


class _Partial:
    __slots__ = ("arguments", "id", "name", "whole")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.whole: dict[str, object] | None = None


class CallCollector:
    """Joins the deltas of a stream's tool calls."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[int, _Partial] = {}

    def openai(self) -> list[dict[str, object]]:
        """Return the calls in OpenAI's form, arguments as the engine wrote them."""
        out: list[dict[str, object]] = []
        for position, (_, call) in enumerate(sorted(self._calls.items())):
            raw = "".join(call.arguments) or "{}"
            if call.whole is not None:
                raw = msgspec.json.encode(call.whole).decode()
            identity = call.id or call_id(call.name, raw, position)
            function = {"name": call.name, "arguments": raw}
            out.append(
                {"index": position, "id": identity, "type": "function", "function": function}
            )
        return out

    def __bool__(self) -> bool:
        """Tell whether any call has begun."""
        return bool(self._calls)

    def add(self, deltas: Iterable[ToolDelta]) -> None:
        """Take the pieces of one chunk; each may repeat name and id (engines-llamacpp §2)."""
        for position, delta in enumerate(deltas):
            index = position if delta.index is None else delta.index
            call = self._calls.setdefault(index, _Partial())
            call.id = call.id or delta.id or ""
            function = delta.function
            if function is None:
                continue
            call.name = call.name or function.name or ""
            if isinstance(function.arguments, str):
                call.arguments.append(function.arguments)
            elif isinstance(function.arguments, dict):
                call.whole = _encodable(function.arguments)

    def finish(self) -> tuple[list[ToolCall], str]:
        """Return the whole calls, and as text what is no call: arguments must be an object."""
        calls: list[ToolCall] = []
        broken: list[str] = []
        for _, partial in sorted(self._calls.items()):
            raw = "".join(partial.arguments)
            arguments = partial.whole if partial.whole is not None else _arguments(raw)
            if arguments is None or not partial.name:
                name = msgspec.json.encode(partial.name).decode()
                broken.append(f'{{"name": {name}, "arguments": {raw or "{}"}}}')
                continue
            position = len(calls)
            identity = partial.id or call_id(partial.name, arguments, position)
            calls.append(
                ToolCall(id=identity, name=partial.name, arguments=arguments, index=position)
            )
        self._calls.clear()
        return calls, "\n".join(broken)


class CallScanner:
    """Holds back what may be a tool call in streamed text, and reads it at the end."""

    __slots__ = ("_held", "_holding", "_started")

    def __init__(self) -> None:
        self._held = ""
        self._holding: list[str] | None = None  # once a call has begun, all that follows
        self._started = False  # whether anything was let through

    def feed(self, text: str) -> str:
        """Return the text that is certainly content."""
        if self._holding is not None:
            self._holding.append(text)
            return ""
        held = self._held + text
        self._held = ""
        if not self._started:
            start = held.lstrip()
            if not start or (start[0] == "{" and len(start) < _BARE_DECIDED):
                self._held = held
                return ""
            if _BARE.match(start):
                self._holding = [held]
                return ""
        begins = [at for at in (held.find(marker) for marker in _MARKERS) if at >= 0]
        if begins:
            at = min(begins)
            self._holding = [held[at:]]
            self._started = True
            return held[:at]
        keep = max(_overlap(held, marker) for marker in _MARKERS)
        self._held = held[len(held) - keep :]
        self._started = self._started or len(held) > keep
        return held[: len(held) - keep]

    def finish(self) -> tuple[list[ToolCall], str]:
        """Return the calls, or the text that turned out to hold none."""
        text = "".join(self._holding) if self._holding is not None else self._held
        self._held, self._holding = "", None
        calls = parse_calls(text)
        return (calls, "") if calls else ([], text)


def parse_calls(text: str) -> list[ToolCall]:
    """Read a text that consists of tool calls; [] if it has anything else in it."""
    found: list[ToolCall] = []
    at = 0
    while at < len(text):
        at = _skip(text, at)
        marker = next((m for m in _MARKERS if text.startswith(m, at)), "")
        at = _skip(text, at + len(marker))
        if at >= len(text):
            break
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        for item in value if isinstance(value, list) else [value]:
            call = _call(item, len(found))
            if call is None:
                return []
            found.append(call)
        closing = _CLOSING.match(text, at)
        at = closing.end() if closing else at
    return found


def ollama_calls(calls: Sequence[ToolCall]) -> list[dict[str, object]]:
    """Write calls in Ollama's form: arguments are an object, the index is always there (§1.3)."""
    return [
        {
            "id": call.id,
            "function": {"index": call.index, "name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]


def openai_calls(calls: Sequence[ToolCall]) -> list[dict[str, object]]:
    """Write calls in OpenAI's form: arguments are JSON in a string (§1.8)."""
    return [
        {
            "index": call.index,
            "id": call.id,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": msgspec.json.encode(call.arguments).decode(),
            },
        }
        for call in calls
    ]


def _call(item: object, position: int) -> ToolCall | None:
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict):
        return None
    name = item.get("name")
    arguments = item.get("arguments", item.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _arguments(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    try:
        identity = call_id(name, arguments, position)
    except (ValueError, OverflowError, RecursionError):  # cannot be written as JSON again
        return None
    return ToolCall(id=identity, name=name, arguments=arguments, index=position)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _arguments(raw: str) -> dict[str, object] | None:
    if not raw.strip():
        return {}
    try:
        value = msgspec.json.decode(raw)
        if isinstance(value, str):  # encoded twice: seen with small models
            value = msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return None
    return _encodable(value)


def _encodable(value: object) -> dict[str, object] | None:
    """Return an object that can be written as JSON again, else None."""
    if not isinstance(value, dict):
        return None
    try:
        msgspec.json.encode(value)
    except (ValueError, OverflowError, RecursionError):
        return None
    return value


def _overlap(text: str, marker: str) -> int:
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0
