"""One form of whatever engines stream, made before all filters and writers.

What comes out of `Deltas` is well formed: each call has an index of its own, a name and an id that
come once, and arguments as text, which are an object once the choice has ended; the reason for that
end is one of OpenAI's, comes last, and is what happened; surrogates are whole pairs. Plain events
of text pass by it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from vllama.base.errors import UpstreamError
from vllama.chat.bodies import join_pairs
from vllama.chat.engine.events import (
    Chunk,
    ChunkChoice,
    Delta,
    Event,
    FunctionDelta,
    ToolDelta,
    decode_event,
)
from vllama.chat.parsers.call_values import (
    encodable,
    make_call_id,
    object_of,
    read_input,
    read_twice,
)

MAX_CALLS = 1000  # of one response, which is finished in one piece
MAX_TEXT = 16_000_000  # characters that are kept of an answer that is streamed
TOO_LONG = f"cannot use the engine's answer: it has more than {MAX_TEXT} characters"
TOO_MANY_CALLS = "cannot use the engine's answer: too many tool calls"
CHUNK = "chat.completion.chunk"
_REASONS: dict[str, str | None] = {
    **{name: name for name in ("length", "tool_calls", "content_filter", "abort", "error")},
    **dict.fromkeys(("max_tokens", "max_output_tokens", "model_length"), "length"),
    **dict.fromkeys(("refusal", "safety"), "content_filter"), "": None,
}  # fmt: skip
"""OpenAI's names for the ends that engines report; every other one is a `stop`."""
NO_TOOLS: Mapping[str, bool] = {}
_BLANK = re.compile(r"(null|\{\})(?=\{|$)")  # as some begin; `{}` comes at the end
_MARKS = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)
_INPUT, _INPUT_PIECES = re.compile(r'\s*+\{\s*+"input"\s*+:'), 100  # white space, if one by one


@dataclass(slots=True, eq=False)
class _Call:
    """A call so far; `at` is the engine's index; `has_begun`: its name has been given.

    `held`: arguments that are known at the end only: those of a custom tool, which may be any text,
    JSON that was encoded twice, and those that repeat the `first` piece, which has been given.
    """

    number: int
    at: int | None
    id: str | None
    name: str = ""
    has_begun: bool = False
    has_arguments: bool = False
    first: str = ""
    is_custom: bool = False
    held: list[str] | None = None
    _is_closed: bool = False
    _depth: int = 0
    _is_quoted: bool = False
    _rest: str = ""  # a backslash at the end

    @property
    def is_whole(self) -> bool:
        """True if its arguments have come, all brackets and quotes closed."""
        return self._is_closed and not (self._depth or self._is_quoted) and self._is_object

    @property
    def is_cut(self) -> bool:
        """True if its arguments have begun, and lack their end."""
        return self.has_arguments and not self.is_whole and self._is_object

    @property
    def _is_object(self) -> bool:
        if self.held is None or not self.is_custom:
            return True
        return bool(_INPUT.match("".join(self.held[:_INPUT_PIECES])))

    def drop_repeated(self) -> None:
        """Keep the last piece alone, if each repeats all before it, and only it is an object."""
        pieces = [self.first, *(self.held or ())]
        if (
            self.first
            and object_of("".join(pieces)) is None
            and object_of(pieces[-1]) is not None
            and all(later.startswith(piece) for piece, later in pairwise(pieces))
        ):
            self.held = [pieces[-1].removeprefix(self.first)]
            self._depth, self._is_quoted = 0, False

    def make_rest(self, *, is_over: bool) -> str:
        """Return the arguments that are still to be given; `is_over`: the call is not cut."""
        if self.held is None:
            return "{}" if is_over and not self.has_arguments else ""
        text = join_pairs("".join(self.held))
        if not self.is_custom:
            return read_twice(text)
        return msgspec.json.encode({"input": read_input(text)}).decode() if is_over else text

    def take(self, text: str) -> str:
        """Take a piece of arguments; return what of it can be given by now."""
        if not self.has_arguments and (blank := _BLANK.match(text)):
            text = text[blank.end() :]
        if self.is_whole and not (self.first and self.held):
            return ""  # nothing can follow an object; some engines give it with every piece
        if self.held is None and text:
            if not self.has_arguments and text.lstrip().startswith('"'):
                self.held = []  # JSON in JSON, perhaps
            elif not self.has_arguments:
                self.first = text
            elif self.first and text.startswith(self.first):
                self.held = []  # all so far once more, perhaps
            else:
                self.first = ""
        end = self._follow(text)
        if self.held is None:
            return text[:end]
        self.held.append(text)
        return ""

    def _follow(self, text: str) -> int | None:
        """Follow the brackets of a piece of arguments; return where the last one closes."""
        before, self._rest = self._rest, ""
        text = before + text
        self.has_arguments |= bool(text.strip())
        for found in _MARKS.finditer(text):
            mark = found[0]
            if mark == "\\":
                self._rest = mark
            elif mark == '"':
                self._is_quoted, self._is_closed = not self._is_quoted, True
            elif len(mark) == 1 and not self._is_quoted:
                self._depth += 1 if mark in "{[" else -1
                self._is_closed = True
                if not self._depth and self.held is None:
                    return found.end() - len(before)
        return None


class Deltas:
    """Makes the events of one response well formed, in order.

    The event that ends a choice is held until the next one, or the end, shows that nothing follows.
    """

    def __init__(self, tools: Mapping[str, bool] = NO_TOOLS) -> None:
        """`tools` are the names of the request's tools, true for custom tools."""
        self._tools, self._size = tools, 0  # of the texts that are held
        self._calls: dict[int, list[_Call]] = {}
        self._held: Event | None = None
        self._last: Chunk | None = None
        self._has_messages = False  # in the place of deltas
        self._halves = dict[tuple[int, str, int | None], str]()  # by choice, kind of text, call

    @property
    def needs_all(self) -> bool:
        """True if the next event has to pass through, even a plain one."""
        return self._held is not None or self._last is None or bool(self._halves)

    def ends(self, unfinished: set[int]) -> bool:
        """Return whether the held events end all choices."""
        held = self._held.chunk.choices or () if self._held is not None else ()
        return bool(held) and not unfinished - {choice.index for choice in held}

    def take(self, event: Event, *, has_begun: bool) -> list[Event]:
        """Return the events that are certain by now; `has_begun`: a text or call has come."""
        chunk = self._last = event.chunk
        for choice in chunk.choices or ():
            if choice.message is not None:
                self._read_message(event, choice, has_begun=has_begun)
            if choice.finish_reason is not None:
                reason = _REASONS.get(choice.finish_reason.lower(), "stop")
                event.changed |= reason != choice.finish_reason
                choice.finish_reason = reason
            delta = choice.delta or Delta()
            if choice.delta is None and choice.text is None:
                choice.delta, event.changed = delta, True
            named = delta.reasoning or delta.reasoning_content
            if (delta.reasoning_details or delta.thought) and not named:
                delta.reasoning, event.changed = delta.thinking, True
            if (called := delta.function_call) is not None and not delta.tool_calls:
                delta.tool_calls, event.changed = [ToolDelta(index=0, function=called)], True
            if delta.tool_calls:
                delta.tool_calls = self._read_calls(event, delta.tool_calls, choice.index)
        if event.torn or self._halves:
            self._join_halves(event)
        out = []
        if self._held is not None:
            over = {choice.index for choice in self._held.chunk.choices or ()}
            rest = [
                x for x in chunk.choices or () if x.index not in over or x.speaks or x.finish_reason
            ]
            if len(rest) < len(chunk.choices or ()):
                chunk.choices, event.changed = rest, True
            out = self.release({choice.index for choice in rest})
        if chunk.choices is None and chunk.usage is not None:
            chunk.choices, event.changed = [], True
        if any(choice.finish_reason for choice in chunk.choices or ()):
            self._held = event
        elif chunk.choices or chunk.usage is not None or (chunk.choices is not None and not out):
            out.append(event)
        return out

    def release(self, going_on: Collection[int] = ()) -> list[Event]:
        """Return the held events, an end unless its choice is `going_on`."""
        event, self._held = self._held, None
        if event is None:
            return []
        for choice in event.chunk.choices or ():
            if choice.index in going_on:
                choice.finish_reason, event.changed = None, True
            else:
                self._end(event, choice)
        return [event]

    def end(self, unfinished: Collection[int]) -> list[Event]:
        """Return the end of choices that have none: the engine has said that all is over."""
        last = self._last
        if last is None or not unfinished:
            return []
        head = {"id": last.id, "object": last.object, "created": last.created, "model": last.model}
        choices = [{"index": one, "delta": {}, "finish_reason": "stop"} for one in unfinished]
        self._held = decode_event(msgspec.json.encode({**head, "choices": choices}))
        self._join_halves(self._held)
        return self.release()

    def _read_message(self, event: Event, choice: ChunkChoice, *, has_begun: bool) -> None:
        """Take a message as a delta, unless it repeats what came in deltas."""
        if self._has_messages or not (has_begun or choice.speaks):
            self._has_messages = True
            choice.delta = choice.message
            event.chunk.object = CHUNK
        choice.message, event.changed = None, True

    def _join_halves(self, event: Event) -> None:
        """Join halves of surrogate pairs that come apart; U+FFFD is what remains alone."""
        event.changed = True
        for choice in event.chunk.choices or ():
            delta, is_over, speaks = choice.delta, choice.finish_reason is not None, choice.speaks
            texts: list[tuple[Any, str, int | None]] = [(choice, "text", None)]
            if delta is not None:
                delta.reasoning, delta.reasoning_content = delta.thinking or None, None
                texts = [(delta, name, None) for name in ("reasoning", "content", "refusal")]
                texts += [(x.function, "arguments", x.index) for x in delta.tool_calls or ()]
            for holder, name, call in texts:
                key, given = (choice.index, name, call), getattr(holder, name) or ""
                text, goes_on = self._halves.pop(key, "") + given, given or call is not None
                if "\ud800" <= text[-1:] < "\udc00" and not is_over and (goes_on or not speaks):
                    self._halves[key], text = text[-1], text[:-1]
                if text or given:
                    setattr(holder, name, join_pairs(text))

    def _read_calls(self, event: Event, pieces: Sequence[ToolDelta], index: int) -> list[ToolDelta]:
        """Return the pieces that can be given by now: a name may go on in the next piece."""
        calls, touched, given = self._calls.setdefault(index, []), set[_Call](), list[ToolDelta]()
        for piece in pieces:
            if piece.function is None:
                piece.function = FunctionDelta(piece.name, piece.arguments)
                piece.name = piece.arguments = None
                event.changed = True
            function = piece.function
            before = (piece.index, piece.id, piece.type, function.name, function.arguments)
            text = function.arguments or ""
            if not isinstance(text, str):
                text = msgspec.json.encode(text).decode() if encodable(text) else ""
            if not (calls or piece.id or function.name or text):
                event.changed = True
                continue  # says nothing of any call
            self._join_name(piece, function, calls)
            said = "" if _BLANK.fullmatch(text) else text
            call = _find_call(piece, function.name, said, calls, touched)
            touched.add(call)
            call.name = call.name or function.name or ""
            for waiting in calls[-2:-1]:  # what follows is another call
                if waiting.name and not waiting.has_begun:
                    given.append(self._begin(waiting, ToolDelta()))
            if not (call.has_begun or text) and self._may_grow(call.name):
                event.changed = True
                continue
            self._begin(call, piece)
            function.arguments = call.take(text)
            self._size += len(text) - len(function.arguments)  # what is held
            if self._size > MAX_TEXT:
                raise UpstreamError(TOO_LONG)
            after = (piece.index, piece.id, piece.type, function.name, function.arguments)
            event.changed |= before != after
            given.append(piece)
        return given

    def _join_name(self, piece: ToolDelta, function: FunctionDelta, calls: list[_Call]) -> None:
        """Add a name to that of the latest call, if a tool's name goes on so."""
        call, name = calls[-1] if calls else None, function.name
        if name and call is not None and call.name and not call.has_begun:
            is_same = piece.index == call.at and (not piece.id or piece.id == call.id)
            whole = call.name + name
            if is_same and (whole in self._tools or self._may_grow(whole)):
                call.name, function.name = whole, None

    def _may_grow(self, name: str) -> bool:
        return any(tool != name and tool.startswith(name) for tool in self._tools)

    def _begin(self, call: _Call, piece: ToolDelta) -> ToolDelta:
        """Give name and id with a piece, once."""
        piece.index = call.number
        function = piece.function = piece.function or FunctionDelta()
        piece.id = piece.type = function.name = None
        if call.name and not call.has_begun:
            call.has_begun, call.is_custom = True, self._tools.get(call.name, False)
            call.held = [] if call.is_custom else call.held
            piece.id, piece.type, function.name = call.id or make_call_id(), "function", call.name
        return piece

    def _end(self, event: Event, choice: ChunkChoice) -> None:
        """Correct the reason of an end, and give the arguments that calls lack."""
        calls = [call for call in self._calls.get(choice.index, ()) if call.name]
        for call in calls:
            call.drop_repeated()
        reason = choice.finish_reason
        if reason in ("stop", "tool_calls"):
            reason = "tool_calls" if calls else "stop"
            if any(call.is_cut for call in calls):
                reason = "length"  # in the middle, whatever the engine says
        if choice.finish_reason != reason:
            choice.finish_reason, event.changed = reason, True
        for call in calls:
            rest = call.make_rest(is_over=reason == "tool_calls")
            if rest or not call.has_begun:
                event.changed = True
                delta = choice.delta = choice.delta or Delta()
                last = self._begin(call, ToolDelta(function=FunctionDelta(arguments=rest)))
                delta.tool_calls = [*(delta.tool_calls or ()), last]


def _find_call(
    piece: ToolDelta, name: str | None, arguments: str, calls: list[_Call], touched: set[_Call]
) -> _Call:
    """Return the call of a piece: by id, by index, else the first open one of its name.

    Without an index each call is `touched` once in an event. A name may begin another call.
    Raises UpstreamError for too many.
    """
    at, identity = piece.index, piece.id
    mine = calls if at is None else [call for call in calls if call.at == at]
    found = [call for call in (mine if name else calls) if identity and call.id == identity]
    if not found and at is not None:
        found = [x for x in mine[-1:] if not _begins_another(x, identity, name, arguments)]
    elif not found and not (name and identity):
        found = [
            call
            for call in calls
            if not (call in touched or call.is_whole)
            and (not name or (call.name == name and (call.has_arguments or arguments)))
        ] or ([] if name else calls[-1:])
    if found:
        found[0].id = found[0].id or identity
        return found[0]
    if len(calls) >= MAX_CALLS:
        raise UpstreamError(TOO_MANY_CALLS)
    calls.append(_Call(len(calls), at, identity))
    return calls[-1]


def _begins_another(last: _Call, identity: str | None, name: str | None, arguments: str) -> bool:
    """Return whether a piece begins another call than the latest with its index.

    Engines repeat name and id in every piece, some with a new id each time (vLLM's named tools).
    """
    if not (name and last.name):
        return False
    if name != last.name or (last.is_whole and (arguments or identity)):
        return True
    return bool(identity and last.id) and not (last.has_arguments or arguments)
