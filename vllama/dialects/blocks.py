"""Answers made of blocks: thinking, text and tool calls, one after the other, opened and closed.

The base of the dialects that stream so: Anthropic's messages and OpenAI's responses. It knows no
dialect's spelling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from vllama.base.errors import UpstreamError, VllamaError
from vllama.chat.bodies import decode_value
from vllama.chat.engine.deltas import MAX_TEXT, TOO_LONG
from vllama.chat.engine.events import ChunkChoice, Event, FunctionDelta, ToolDelta
from vllama.chat.event_template import EventTemplate
from vllama.chat.tally import Tally
from vllama.chat.tool_calls import CallCollector
from vllama.chat.writer import EVENT_STREAM, JSON, ReplyOptions


class BlockKind(StrEnum):
    """Kind of a block's content."""

    THINKING = "thinking"
    TEXT = "text"
    REFUSAL = "refusal"
    CALL = "call"


@dataclass(slots=True, kw_only=True)
class Block:
    """A piece of an answer; `id` and `name` are a tool call's, whose text is its arguments."""

    kind: BlockKind
    index: int
    id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All that it holds so far."""
        return "".join(self.parts)

    @property
    def complete(self) -> bool:
        """True if a call's arguments are a whole object; other blocks may end anywhere."""
        if self.kind is not BlockKind.CALL:
            return True
        try:
            return isinstance(decode_value(self.text), dict)
        except (ValueError, RecursionError):
            return False


class BlockWriter(ABC):
    """An answer of blocks in the making. Steps of one event:

    1. Thinking, text and refusals go to the open block, or close it and open one of their kind.
       White space alone opens none.
    2. A call's arguments flow as they come. A second call begins when the first one's are whole;
       until then its pieces are collected, since only one block can be open.
    3. At the end follow the calls that were collected; what does not parse as a call is text.
    """

    def __init__(self, options: ReplyOptions, *, seed: str, hide_thinking: bool = False) -> None:
        """`seed` is unique to the request: ids are made of it."""
        self.content_type = EVENT_STREAM if options.stream else JSON
        self.streams = options.stream
        self.template = EventTemplate(tries=0)  # blocks keep their text: every event is looked at
        self._options = options
        self._seed = seed
        self._hide = hide_thinking
        self._begun = False
        self._blocks: list[Block] = []
        self._block: Block | None = None
        self._live: int | None = None  # the engine's index of the call that is or was open
        self._later = CallCollector()
        self._size = 0  # of all texts; some dialects write each several times
        self._held: list[str] = []  # text that may not open a block yet
        self._stopped_by: object = None  # the stop sequence, where it is known

    @property
    def text(self) -> str:
        """The answer so far, without its thinking."""
        return "".join(block.text for block in self._blocks if block.kind is BlockKind.TEXT)

    @property
    def cut_in_call(self) -> bool:
        """True if the answer ended inside a call's arguments."""
        return bool(self._blocks) and not self._blocks[-1].complete

    def write(self, event: Event, tally: Tally, now_ns: int) -> bytes:
        """Return the events that one event of the engine's becomes."""
        out: list[bytes] = []
        for choice in event.chunk.choices or ():
            if choice.index == 0:
                self._choice(choice, tally, out)
        return b"".join(out)

    def finish(self, tally: Tally, now_ns: int) -> bytes:
        """Return the last events, or the whole object."""
        out: list[bytes] = []
        self._flush(out)
        if not self.streams:
            return self._whole(tally, now_ns)
        out.append(self._end(tally, now_ns))
        return b"".join(out)

    def _choice(self, choice: ChunkChoice, tally: Tally, out: list[bytes]) -> None:
        if not self._begun:
            self._begun = True
            if self.streams:
                out.append(self._begin(tally))
        if choice.stop_reason is not None:
            self._stopped_by = choice.stop_reason
        delta = choice.delta
        if delta is None:
            return
        if delta.thinking:
            self._say(BlockKind.THINKING, delta.thinking, out)
        if delta.content:
            self._say(BlockKind.TEXT, delta.content, out)
        if delta.refusal:
            self._say(BlockKind.REFUSAL, delta.refusal, out)
        for piece in delta.tool_calls or ():
            self._piece(piece, out)

    def _say(self, kind: BlockKind, text: str, out: list[bytes]) -> None:
        """Add to the open block of `kind`, opening it if need be."""
        if kind is BlockKind.THINKING and self._hide:
            return
        block = self._block
        if block is None or block.kind is not kind:
            if text.isspace() or (block is not None and not block.complete):
                if kind is not BlockKind.THINKING:
                    self._held.append(text)
                return
            if kind is not BlockKind.THINKING and self._held:
                text = "".join((*self._held, text))
                self._held.clear()
            block = self._open(Block(kind=kind, index=len(self._blocks)), out)
        self._add(block, text, out)

    def _piece(self, piece: ToolDelta, out: list[bytes]) -> None:
        """Add a piece to the open call, open the next one, or keep it for the end."""
        function, block, index = piece.function or FunctionDelta(), self._block, piece.index
        begins = function.name and index != self._live and not self._later
        if begins and (block is None or block.complete):
            number, name = len(self._blocks), function.name or ""
            call = Block(kind=BlockKind.CALL, index=number, id=piece.id or "", name=name)
            block = self._open(call, out)
            self._live = index
        if index != self._live or block is None or block.kind is not BlockKind.CALL:
            self._later.add([piece])
        elif function.arguments:
            self._add(block, function.arguments, out)

    def _open(self, block: Block, out: list[bytes]) -> Block:
        self._close(out)
        self._blocks.append(block)
        self._block = block
        if self.streams:
            out.append(self._open_block(block))
        return block

    def _add(self, block: Block, text: str, out: list[bytes]) -> None:
        self._size += len(text)
        if self._size > MAX_TEXT:
            raise UpstreamError(TOO_LONG)
        block.parts.append(text)
        if self.streams:
            out.append(self._delta(block, text))

    def _close(self, out: list[bytes]) -> None:
        if self._block is not None and self.streams:
            out.append(self._close_block(self._block))
        self._block = None

    def _flush(self, out: list[bytes]) -> None:
        """Give what was held back and close the last block."""
        collected, broken = self._later.finish()
        self._close(out)
        rest = "".join((*self._held, broken))
        self._held.clear()
        if rest and (not self._blocks or not rest.isspace()):
            self._add(
                self._open(Block(kind=BlockKind.TEXT, index=len(self._blocks)), out), rest, out
            )
        for call in collected:
            block = Block(kind=BlockKind.CALL, index=len(self._blocks), id=call.id, name=call.name)
            self._add(self._open(block, out), msgspec.json.encode(call.arguments).decode(), out)
        self._close(out)

    @abstractmethod
    def fail(self, error: VllamaError) -> bytes:
        """Return how the dialect reports `error` inside a stream that has begun."""

    @abstractmethod
    def _begin(self, tally: Tally) -> bytes:
        """Return the events before the first block."""

    @abstractmethod
    def _open_block(self, block: Block) -> bytes:
        """Return the events that open a block."""

    @abstractmethod
    def _delta(self, block: Block, text: str) -> bytes:
        """Return the event that adds `text` to the open block."""

    @abstractmethod
    def _close_block(self, block: Block) -> bytes:
        """Return the events that close a block."""

    @abstractmethod
    def _end(self, tally: Tally, now_ns: int) -> bytes:
        """Return the events after the last block."""

    @abstractmethod
    def _whole(self, tally: Tally, now_ns: int) -> bytes:
        """Return the answer as one object."""
