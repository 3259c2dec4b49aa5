"""Tool calls in answers: pieces of a stream made whole, or found in the text.

`CallCollector` joins OpenAI's deltas. `CallScanner` is for engines that pass tools to the template
and leave the answer as text (llama.cpp's Python server): it finds what the families of models
write, by the readers of `families`. What cannot be read stays text, without its tags: they must
never be seen in the content.

See docs/reference/engines.md#llama-cpp-python-requests; docs/reference/ollama-api.md#thinking,
#chat, #openai-chat-completions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from vllama.chat.engine.events import ToolDelta
from vllama.chat.request import ToolCall
from vllama.parsers.call_values import (
    Toolset,
    call_id,
    encodable,
    make_call,
    object_of,
    short_id,
)
from vllama.parsers.scan import begins_bare, markers_of, read_calls

__all__ = [
    "CallCollector",
    "CallScanner",
    "Toolset",
    "call_id",
    "parse_calls",
    "short_id",
    "write_ollama_calls",
    "write_openai_calls",
]

_ANY = Toolset()


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
        """Take the pieces of one chunk; each may repeat name and id."""
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
                call.whole = function.arguments if encodable(function.arguments) else None

    def finish(self) -> tuple[list[ToolCall], str]:
        """Return the whole calls, and as text what is no call: arguments must be an object."""
        calls: list[ToolCall] = []
        broken: list[str] = []
        for _, partial in sorted(self._calls.items()):
            raw = "".join(partial.arguments)
            arguments = partial.whole if partial.whole is not None else object_of(raw)
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
    """Holds back what may be a tool call in streamed text, and reads it at the end.

    The result is the same wherever the text was cut. White space before a call is not content.
    """

    __slots__ = ("_blank", "_held", "_holding", "_markers", "_started", "_tools")

    def __init__(self, tools: Toolset | bool = True) -> None:
        """`tools` are those of the request; True: they are not known."""
        self._tools = tools = tools if isinstance(tools, Toolset) else _ANY
        self._markers = markers_of(tools)
        self._blank: list[str] = []  # white space at the start: content, unless a call follows
        self._held = ""  # what may become a marker, or show that the answer begins with a call
        self._holding: list[str] | None = [] if tools.forced else None  # all that follows a call
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
            if len(start) < len(held):
                self._blank.append(held[: len(held) - len(start)])
                held = start
            bare = begins_bare(held, self._tools) if held else None
            if bare is None:
                self._held = held
                return ""
            if bare:
                self._holding = [*self._blank, held]
                return ""
        at = self._markers.find(held)
        if at >= 0:
            self._holding = [held[at:]]
            certain = held[:at]
        else:
            certain = held[: len(held) - self._markers.partial(held)]
            self._held = held[len(certain) :]
        if certain and not self._started:
            self._started = True
            certain = "".join((*self._blank, certain))
            self._blank.clear()
        return certain

    def finish(self) -> tuple[list[ToolCall], str]:
        """Return the calls, and the text that turned out to be none."""
        text = "".join((*self._blank, self._held) if self._holding is None else self._holding)
        self._blank, self._held, self._holding = [], "", None
        found, rest = read_calls(text, self._tools)
        return [make_call(named, position) for position, named in enumerate(found)], rest


def parse_calls(text: str, tools: Toolset = _ANY) -> list[ToolCall]:
    """Read the calls of a whole text."""
    return [make_call(named, n) for n, named in enumerate(read_calls(text, tools)[0])]


def write_ollama_calls(calls: Sequence[ToolCall]) -> list[dict[str, object]]:
    """Write calls in Ollama's form: arguments are an object, the index is always there."""
    return [
        {
            "id": call.id,
            "function": {"index": call.index, "name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]


def write_openai_calls(calls: Sequence[ToolCall]) -> list[dict[str, object]]:
    """Write calls in OpenAI's form: arguments are JSON in a string."""
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
