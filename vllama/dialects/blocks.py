"""Answers made of blocks: thinking, text and tool calls, one after the other, opened and closed.

The base of the dialects that stream so: Anthropic's messages and OpenAI's responses. What engines
leave in the text is told apart as in `openai_out` (contract §3.5). It knows no dialect's spelling.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from vllama.chat.engine.events import Choice, ToolDelta, decode_chunk
from vllama.chat.engine.traits import Traits
from vllama.chat.framing import DONE
from vllama.chat.reply import EVENT_STREAM, JSON, Tap
from vllama.chat.request import ToolCall
from vllama.dialects.openai.read import Passage
from vllama.dialects.openai.rewrite import Sifter
from vllama.errors import VllamaError
from vllama.parsers.thinking import Trim
from vllama.parsers.tool_calls import CallCollector, call_id


class BlockKind(StrEnum):
    """What a block holds."""

    THINKING = "thinking"
    TEXT = "text"
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
        """Whether a call's arguments are a whole object; other blocks may end anywhere."""
        if self.kind is not BlockKind.CALL:
            return True
        try:
            return isinstance(msgspec.json.decode(self.text or "{}"), dict)
        except (ValueError, RecursionError):
            return False


class BlockReply(Tap):
    """An answer of blocks in the making. Steps of one event:

    1. An error raises; what was translated before it in the same read is sent first.
    2. Thinking and text go to the open block, or close it and open one of their kind. White space
       alone opens none.
    3. A call's arguments flow as they come. A second call begins when the first one's are whole;
       until then its pieces are collected, since only one block can be open.
    4. At the end follow the calls that were collected or found in the text; what does not parse
       as a call is text.
    """

    def __init__(
        self,
        passage: Passage,
        traits: Traits,
        *,
        seed: str,
        hide_thinking: bool = False,
        prompt_tokens: int | None = None,
        think: bool = False,
        think_opened: bool = False,
    ) -> None:
        """`seed` is unique to the request: ids are made of it."""
        super().__init__(
            passage,
            traits,
            prompt_tokens=prompt_tokens,
            think=think,
            think_opened=think_opened,
        )
        self._stream = passage.stream
        self.content_type = EVENT_STREAM if passage.stream else JSON
        self._seed = seed
        self._hide = hide_thinking
        self._sifter = Sifter(split=self._split, opened=self._opened, scan=self._scan)
        self._trim = Trim()
        self._begun = False
        self._blocks: list[Block] = []
        self._block: Block | None = None
        self._live: int | None = None  # the engine's index of the call that is or was open
        self._later = CallCollector()
        self._held: list[str] = []  # text that may not open a block yet
        self._stopped_by: object = None  # the stop sequence, if the engine says so

    @property
    def text(self) -> str:
        """The answer so far, without its thinking."""
        return "".join(block.text for block in self._blocks if block.kind is BlockKind.TEXT)

    @property
    def cut_in_call(self) -> bool:
        """Whether the answer ended inside a call's arguments."""
        return bool(self._blocks) and not self._blocks[-1].complete

    def finish(self, now_ns: int) -> bytes:
        """Return the last events, or the whole object. Raises EngineCrashed if it is not whole."""
        out: list[bytes] = []
        self._take_rest(now_ns, out)
        self._flush(out)
        if not self._stream:
            return self._whole(now_ns)
        out.append(self._end(now_ns))
        return b"".join(out)

    def _take(self, payloads: list[bytes], now_ns: int, out: list[bytes]) -> None:
        for payload in payloads:
            if payload == DONE:
                self.ended = True
                continue
            chunk = decode_chunk(payload)
            self._watch(chunk, now_ns)
            for choice in chunk.choices or ():
                if choice.index == 0:
                    self._choice(choice, out)

    def _choice(self, choice: Choice, out: list[bytes]) -> None:
        if not self._begun:
            self._begun = True
            if self._stream:
                out.append(self._begin())
        if choice.stop_reason is not None:
            self._stopped_by = choice.stop_reason
        delta = choice.delta
        if delta is None:
            return
        thinking = delta.reasoning or delta.reasoning_content or ""
        text = delta.content or ""
        if text and self._sifter.active:
            more, text = self._sifter.feed(text)
            thinking += more
        thinking, text = self._trim.feed(thinking, text)
        if thinking:
            self._say(BlockKind.THINKING, thinking, out)
        if text:
            self._say(BlockKind.TEXT, text, out)
        for position, piece in enumerate(delta.tool_calls or ()):
            self._piece(piece, position if piece.index is None else piece.index, out)

    def _say(self, kind: BlockKind, text: str, out: list[bytes]) -> None:
        """Add to the open block of `kind`, opening it if need be."""
        if kind is BlockKind.THINKING and self._hide:
            return
        block = self._block
        if block is None or block.kind is not kind:
            if text.isspace() or (block is not None and not block.complete):
                if kind is BlockKind.TEXT:
                    self._held.append(text)
                return
            if kind is BlockKind.TEXT and self._held:
                text = "".join((*self._held, text))
                self._held.clear()
            block = self._open(Block(kind=kind, index=len(self._blocks)), out)
        self._add(block, text, out)

    def _piece(self, piece: ToolDelta, index: int, out: list[bytes]) -> None:
        """Add a piece to the open call, open the next one, or keep it for the end."""
        function, block = piece.function, self._block
        name = function.name if function is not None else None
        may_open = block is None or block.complete
        if name and index != self._live and not self._later and may_open:
            position = sum(known.kind is BlockKind.CALL for known in self._blocks)
            identity = piece.id or call_id(name, self._seed, position)
            number = len(self._blocks)
            call = Block(kind=BlockKind.CALL, index=number, id=identity, name=name)
            block = self._open(call, out)
            self._live = index
        if index != self._live or block is None or block.kind is not BlockKind.CALL:
            piece.index = index
            self._later.add([piece])
            return
        arguments = function.arguments if function is not None else None
        if isinstance(arguments, dict):  # some engines give the object, with every piece
            arguments = "" if block.parts else msgspec.json.encode(arguments).decode()
        if isinstance(arguments, str) and arguments:
            self._add(block, arguments, out)

    def _open(self, block: Block, out: list[bytes]) -> Block:
        self._close(out)
        self._blocks.append(block)
        self._block = block
        if self._stream:
            out.append(self._opened_block(block))
        return block

    def _add(self, block: Block, text: str, out: list[bytes]) -> None:
        block.parts.append(text)
        if self._stream:
            out.append(self._delta(block, text))

    def _close(self, out: list[bytes]) -> None:
        if self._block is not None and self._stream:
            out.append(self._closed_block(self._block))
        self._block = None

    def _flush(self, out: list[bytes]) -> None:
        """Give what was held back and close the last block."""
        thinking, text, found = self._sifter.finish()
        if thinking:
            self._say(BlockKind.THINKING, thinking, out)
        if text:
            self._say(BlockKind.TEXT, text, out)
        collected, broken = self._later.finish()
        self._close(out)
        rest = "".join((*self._held, broken))
        self._held.clear()
        if rest and (not self._blocks or not rest.isspace()):
            self._add(
                self._open(Block(kind=BlockKind.TEXT, index=len(self._blocks)), out), rest, out
            )
        for call in (*collected, *found):
            self._whole_call(call, out)
        self._close(out)

    def _whole_call(self, call: ToolCall, out: list[bytes]) -> None:
        block = Block(kind=BlockKind.CALL, index=len(self._blocks), id=call.id, name=call.name)
        self._add(self._open(block, out), msgspec.json.encode(call.arguments).decode(), out)

    @abstractmethod
    def fail(self, error: VllamaError) -> bytes:
        """Return how the dialect reports `error` inside a stream that has begun."""

    @abstractmethod
    def _begin(self) -> bytes:
        """Return the events before the first block."""

    @abstractmethod
    def _opened_block(self, block: Block) -> bytes:
        """Return the events that open a block."""

    @abstractmethod
    def _delta(self, block: Block, text: str) -> bytes:
        """Return the event that adds `text` to the open block."""

    @abstractmethod
    def _closed_block(self, block: Block) -> bytes:
        """Return the events that close a block."""

    @abstractmethod
    def _end(self, now_ns: int) -> bytes:
        """Return the events after the last block."""

    @abstractmethod
    def _whole(self, now_ns: int) -> bytes:
        """Return the answer as one object."""
