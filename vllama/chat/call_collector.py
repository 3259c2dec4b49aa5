"""Tool calls that come in the pieces of a stream, made whole."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from vllama.base.errors import UpstreamError
from vllama.chat.engine.events import ToolDelta
from vllama.chat.parsers.call_values import ToolCall, encodable, make_call_id, object_of, write_call

MAX_CALLS = 1000  # of one answer, which is finished in one piece
MAX_TEXT = 16_000_000  # characters that are kept of an answer that is streamed
TOO_MANY_CALLS = "cannot use the engine's answer: too many tool calls"
TOO_LONG = f"cannot use the engine's answer: it has more than {MAX_TEXT} characters"


class _Partial:
    __slots__ = ("arguments", "id", "name", "whole")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.whole: dict[str, object] | None = None


class CallCollector:
    """Joins the deltas of a stream's tool calls."""

    __slots__ = ("_calls", "_size")

    def __init__(self) -> None:
        self._calls: dict[int, _Partial] = {}
        self._size = 0

    def openai(self) -> list[dict[str, object]]:
        """Return the calls in OpenAI's form, arguments as the engine wrote them."""
        out: list[dict[str, object]] = []
        for position, (_, call) in enumerate(sorted(self._calls.items())):
            raw = "".join(call.arguments) or "{}"
            if call.whole is not None:
                raw = msgspec.json.encode(call.whole).decode()
            identity = call.id or make_call_id()
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
            if index not in self._calls and len(self._calls) >= MAX_CALLS:
                raise UpstreamError(TOO_MANY_CALLS)
            call = self._calls.setdefault(index, _Partial())
            call.id = call.id or delta.id or ""
            function = delta.function
            if function is None:
                continue
            call.name = call.name or function.name or ""
            if isinstance(function.arguments, str):
                call.arguments.append(function.arguments)
                self._size += len(function.arguments)
                if self._size > MAX_TEXT:
                    raise UpstreamError(TOO_LONG)
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
                broken.append(write_call(partial.name, raw or "{}"))
                continue
            position = len(calls)
            identity = partial.id or make_call_id()
            calls.append(
                ToolCall(id=identity, name=partial.name, arguments=arguments, index=position)
            )
        self._calls.clear()
        return calls, "\n".join(broken)
