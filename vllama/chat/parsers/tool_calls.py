"""Tool calls found in the text of an answer.

`CallScanner` is for engines that pass tools to the template
and leave the answer as text (llama.cpp's Python server): it finds what the families of models
write, by the readers of `families`. What cannot be read stays text, without its tags: they must
never be seen in the content.

See docs/reference/engines.md#llama-cpp-python-requests; docs/reference/ollama-api.md#thinking,
#chat, #openai-chat-completions.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllama.chat.parsers.call_values import ToolCall, Toolset, make_call
from vllama.chat.parsers.scan import MAX_TRIES, begins_bare, markers_of, may_begin, read_calls

_ANY = Toolset()


class CallScanner:
    """Holds back what may be a tool call in streamed text, and reads it at the end.

    The result is the same wherever the text was cut. White space before a call is not content.
    """

    __slots__ = ("_blank", "_held", "_holding", "_markers", "_quoted", "_said", "_tools")

    def __init__(self, tools: Toolset | bool = True) -> None:
        """`tools` are those of the request; True: they are not known."""
        self._tools = tools = tools if isinstance(tools, Toolset) else _ANY
        self._markers = markers_of(tools)
        self._blank: list[str] = []  # white space at the start: content, unless a call follows
        self._held = ""  # what may become a marker, or show that the answer begins with a call
        self._holding: list[str] | None = [] if tools.forced else None  # all that follows a call
        self._said: list[str] = []  # what was let through: a tag in it may be quoted
        self._quoted = 0

    def feed(self, text: str) -> str:
        """Return the text that is certainly content."""
        if self._holding is not None:
            self._holding.append(text)
            return ""
        held = self._held + text
        self._held = ""
        if not self._said:
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
        at = self._find(held)
        if at >= 0:
            self._holding = [held[at:]] if at else [*self._blank, held]
            certain = held[:at]
        else:
            certain = held[: len(held) - self._markers.partial(held)]
            self._held = held[len(certain) :]
        if certain:
            certain = "".join((*self._blank, certain))
            self._blank.clear()
            self._said.append(certain)
        return certain

    def _find(self, held: str) -> int:
        """Return where a marker is that may begin a call, -1 if there is none."""
        at = self._markers.find(held)
        while at >= 0 and self._quoted < MAX_TRIES:
            if may_begin("".join((*self._blank, *self._said, held[:at])), self._tools):
                return at
            self._quoted += 1
            at = self._markers.find(held, at + 1)
        return -1

    def release(self) -> str:
        """Return all that was held back, as text."""
        text = "".join((*self._blank, self._held) if self._holding is None else self._holding)
        self._blank, self._held, self._holding = [], "", None
        return text

    def finish(self) -> tuple[list[ToolCall], str]:
        """Return the calls, and the text that turned out to be none."""
        text = self.release()
        found, rest = read_calls(text, self._tools, "".join(self._said))
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
