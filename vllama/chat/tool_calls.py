"""Tool calls of an answer: those that an engine reads itself, and those found in its text.

`CallCollector` joins what the events of a stream tell of a call piece by piece. `CallScanner` is
for engines that pass tools to the template and leave the answer as text (llama.cpp's Python
server): it finds what the families of models write, by the readers of `scan`. What cannot be read
stays text, without its tags: they must never be seen in the content.

See docs/reference/engines.md#llama-cpp-python-requests; docs/reference/ollama-api.md#thinking,
#chat, #openai-chat-completions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from vllama.base.errors import UpstreamError
from vllama.chat.engine.deltas import MAX_TEXT, TOO_LONG
from vllama.chat.engine.events import FunctionDelta, ToolDelta
from vllama.chat.parsers.call_values import (
    ToolCall,
    Toolset,
    make_call,
    object_of,
    read_input,
    write_call,
)
from vllama.chat.parsers.quoting import Before, Spot, is_indented
from vllama.chat.parsers.scan import MAX_TRIES, begins_bare, markers_of, read_calls

_ANY = Toolset()


class _Partial:
    __slots__ = ("arguments", "extra", "id", "name")

    def __init__(self) -> None:
        self.extra: dict[str, object] = {}
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []


class CallCollector:
    """Joins the deltas of a stream's tool calls, which are well formed (`chat.engine.deltas`)."""

    __slots__ = ("_calls", "_size")

    def __init__(self) -> None:
        self._calls: dict[int, _Partial] = {}
        self._size = 0

    def openai(self, customs: Collection[str] = ()) -> list[dict[str, object]]:
        """Return the calls in OpenAI's form, arguments as written; `customs` are custom tools."""
        out: list[dict[str, object]] = []
        for index, call in sorted(self._calls.items()):
            kind, said = "function", {"name": call.name, "arguments": "".join(call.arguments)}
            if call.name in customs:
                kind, said = "custom", {"name": call.name, "input": read_input(said["arguments"])}
            out.append({"index": index, "id": call.id, "type": kind, kind: said, **call.extra})
        return out

    def __contains__(self, index: int | None) -> bool:
        """Tell whether the call of an index has begun."""
        return index in self._calls

    def __bool__(self) -> bool:
        """Tell whether any call has begun."""
        return bool(self._calls)

    def add(self, deltas: Iterable[ToolDelta]) -> None:
        """Take the pieces of one chunk. Raises UpstreamError for too much."""
        for delta in deltas:
            call = self._calls.setdefault(delta.index or 0, _Partial())
            call.id = call.id or delta.id or ""
            function = delta.function or FunctionDelta()
            call.extra |= {"extra_content": x} if (x := delta.extra_content) is not None else {}
            call.name = call.name or function.name or ""
            call.arguments.append(function.arguments or "")
            self._size += len(call.arguments[-1])
            if self._size > MAX_TEXT:
                raise UpstreamError(TOO_LONG)

    def finish(self) -> tuple[list[ToolCall], str]:
        """Return the whole calls, and as text what is no call: arguments must be an object."""
        calls: list[ToolCall] = []
        broken: list[str] = []
        for _, partial in sorted(self._calls.items()):
            raw = "".join(partial.arguments)
            arguments = object_of(raw) if raw else None  # without any it was cut
            if arguments is None or not partial.name:
                broken.append(write_call(partial.name, raw))
                continue
            position = len(calls)
            calls.append(
                ToolCall(id=partial.id, name=partial.name, arguments=arguments, index=position)
            )
        self._calls.clear()
        return calls, "\n".join(broken)


class CallScanner:
    """Holds back what may be a tool call in streamed text, and reads it at the end.

    The result is the same wherever the text was cut. White space before a call is not content.
    """

    __slots__ = (
        "_before", "_begun", "_blank", "_held", "_holding", "_markers", "_quoted", "_said",
        "_tools",
    )  # fmt: skip

    def __init__(self, tools: Toolset | bool = True) -> None:
        """`tools` are those of the request; True: they are not known."""
        self._tools = tools = tools if isinstance(tools, Toolset) else _ANY
        self._markers = markers_of(tools)
        self._blank: list[str] = []  # white space at the start: content, unless a call follows
        self._begun = False  # more than that was let through
        self._held = ""  # what may become a marker, or show that the answer begins with a call
        self._holding: list[str] | None = [] if tools.forced else None  # all that follows a call
        self._before = Before()  # the text up to the latest marker, which may be quoted
        self._said: list[str] = []  # the text since then
        self._quoted = 0

    def feed(self, text: str) -> str:
        """Return the text that is certainly content."""
        if self._holding is not None:
            self._holding.append(text)
            return ""
        held = self._held + text
        self._held = ""
        if not self._begun:
            start = held.lstrip()
            if len(start) < len(held):
                self._blank.append(held[: len(held) - len(start)])
                self._said.append(self._blank[-1])
                held = start
            bare = begins_bare(held, self._tools) if held else None
            if bare and is_indented("".join(self._blank)):
                bare = False
            if bare is None:
                self._held = held
                return ""
            if bare:
                self._holding = [*self._blank, held]
                return ""
        at, looked_at = self._find(held)
        if at >= 0:
            self._holding = [held[at:]] if at else [*self._blank, held]
            certain = held[:at]
        else:
            certain = held[: len(held) - self._markers.partial(held)]
            self._held = held[len(certain) :]
        if not certain:
            return ""
        self._said.append(certain[looked_at:])
        self._begun = True
        certain = "".join((*self._blank, certain))
        self._blank.clear()
        return certain

    def _find(self, held: str) -> tuple[int, int]:
        """Return where a marker is that may begin a call, or -1, and up to where it was looked."""
        at, looked_at = self._markers.find(held), 0
        while at >= 0 and self._quoted < MAX_TRIES:
            self._before.feed("".join((*self._said, held[looked_at:at])))
            self._said.clear()
            looked_at = at
            if self._before.find_place(self._tools) is not Spot.QUOTED:
                return at, at
            self._quoted += 1
            at = self._markers.find(held, at + 1)
        return -1, looked_at

    def release(self) -> str:
        """Return all that was held back, as text."""
        text = "".join((*self._blank, self._held) if self._holding is None else self._holding)
        self._blank, self._held, self._holding = [], "", None
        return text

    def finish(self) -> tuple[list[ToolCall], str]:
        """Return the calls, and the text that turned out to be none."""
        text = self.release()
        before = self._before if self._begun else None
        found, rest = read_calls(text, self._tools, before)
        return [make_call(named, position) for position, named in enumerate(found)], rest


def write_ollama_calls(calls: Sequence[ToolCall]) -> list[dict[str, object]]:
    """Write calls in Ollama's form: arguments are an object, the index is always there."""
    return [
        {
            "id": call.id,
            "function": {"index": call.index, "name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]
