"""An engine's streamed answer as Anthropic's message, whole or in events.

Order of events: `message_start`, for each block `content_block_start`, its deltas (and a
`signature_delta` after thinking) and `content_block_stop`, then `message_delta` with the reason and
the real usage, `message_stop`. A failure after the first event is an `error` event.

See docs/reference/ollama-api.md#messages.
"""

from __future__ import annotations

import base64
import hashlib

import msgspec

from vllama.base.errors import ContextOverflow, VllamaError
from vllama.chat.parsers.call_values import object_of, write_call
from vllama.chat.request import Usage
from vllama.chat.tally import Tally
from vllama.chat.writer import ReplyOptions
from vllama.dialects.anthropic import answer_types as answers
from vllama.dialects.blocks import Block, BlockKind, BlockWriter
from vllama.dialects.errors import make_anthropic_error

_DELTAS = {
    BlockKind.TEXT: (b"text_delta", b"text"),
    BlockKind.REFUSAL: (b"text_delta", b"text"),
    BlockKind.THINKING: (b"thinking_delta", b"thinking"),
    BlockKind.CALL: (b"input_json_delta", b"partial_json"),
}
_encode = msgspec.json.Encoder().encode


def make_too_long_error(error: ContextOverflow) -> ContextOverflow:
    """Word an overflow as Anthropic does: at these words Claude Code makes its context smaller."""
    if error.tokens is None or error.limit is None:
        return ContextOverflow(f"prompt is too long: {error.message}", hint=error.hint)
    sizes = f"{error.tokens} tokens > {error.limit} maximum"
    return ContextOverflow(f"prompt is too long: {sizes}", hint=error.hint)


class MessagesWriter(BlockWriter):
    """A message for a client of Anthropic's."""

    def __init__(
        self,
        options: ReplyOptions,
        *,
        seed: str,
        request_id: str = "",
        estimate: int = 0,
        stop: tuple[str, ...] = (),
        hide_thinking: bool = False,
    ) -> None:
        """`estimate`: tokens of the prompt to begin with if they were not counted."""
        super().__init__(options, seed=seed, hide_thinking=hide_thinking)
        self._request_id = request_id
        self._estimate = estimate
        self._stop = stop

    def fail(self, error: VllamaError) -> bytes:
        """Return an `error` event, or an error's body."""
        body = _encode(make_anthropic_error(error, self._request_id))
        return b"event: error\ndata: %b\n\n" % body if self.streams else body

    def _begin(self, tally: Tally) -> bytes:
        known = tally.usage.prompt_tokens or self._estimate
        message = self._message([], None, None, _write_usage(Usage(prompt_tokens=known)))
        return _event(answers.MessageStart(message))

    def _open_block(self, block: Block) -> bytes:
        start: answers.Block
        match block.kind:
            case BlockKind.TEXT | BlockKind.REFUSAL:
                start = answers.TextBlock("")
            case BlockKind.THINKING:
                start = answers.ThinkingBlock("", "")
            case BlockKind.CALL:
                start = answers.ToolUseBlock(block.id, block.name, {})
        return _event(answers.BlockStart(block.index, start))

    def _delta(self, block: Block, text: str) -> bytes:
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":%b}}\n\n'
            % (block.index, *_DELTAS[block.kind], _encode(text))
        )

    def _close_block(self, block: Block) -> bytes:
        stop = _event(answers.BlockStop(block.index))
        if block.kind is not BlockKind.THINKING:
            return stop
        delta = answers.SignatureDelta(_signature(block.text))
        return _event(answers.BlockDelta(block.index, delta)) + stop

    def _end(self, tally: Tally, now_ns: int) -> bytes:
        delta = answers.MessageDelta(answers.EndOfMessage(*self._reason(tally)), self._count(tally))
        own = [(name.encode(), {"type": name, name: x}) for name, x in tally.collected.items()]
        out = b"".join(b"event: %b\ndata: %b\n\n" % (name, _encode(x)) for name, x in own)
        return out + _event(delta) + _event(answers.MessageStop())

    def _whole(self, tally: Tally, now_ns: int) -> bytes:
        reason, sequence = self._reason(tally)
        content = [_content(block) for block in self._blocks]
        if reason == "tool_use" and not any(
            isinstance(part, answers.ToolUseBlock) for part in content
        ):
            reason = "end_turn"
        message = self._message(content, reason, sequence, self._count(tally))
        return _encode(msgspec.structs.replace(message, **tally.collected))

    def _count(self, tally: Tally) -> answers.MessageUsage:
        usage = tally.usage
        if not usage.prompt_tokens:
            usage = msgspec.structs.replace(usage, prompt_tokens=self._estimate)
        return _write_usage(usage)

    def _reason(self, tally: Tally) -> tuple[answers.StopReason, str | None]:
        """Return `stop_reason` and `stop_sequence`; a whole call wins."""
        called = any(block.kind is BlockKind.CALL for block in self._blocks)
        cut = tally.finish_reason == "length"
        if called and not (cut and self.cut_in_call):
            return "tool_use", None
        if cut:
            return "max_tokens", None
        refused = any(block.kind is BlockKind.REFUSAL for block in self._blocks)
        if refused or tally.finish_reason == "content_filter":
            return "refusal", None
        if isinstance(self._stopped_by, str) and self._stopped_by in self._stop:
            return "stop_sequence", self._stopped_by
        return "end_turn", None

    def _message(
        self,
        content: list[answers.Block],
        reason: answers.StopReason | None,
        sequence: str | None,
        usage: answers.MessageUsage,
    ) -> answers.Message:
        return answers.Message(
            id=f"msg_{self._seed}",
            type="message",
            role="assistant",
            model=self._options.model,
            content=content,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=usage,
        )


def _event(value: answers.MessageEvent) -> bytes:
    name = str(value.__struct_config__.tag).encode()
    return b"event: %b\ndata: %b\n\n" % (name, _encode(value))


def _write_usage(usage: Usage) -> answers.MessageUsage:
    """Return Anthropic's counts, where the prompt is the sum of the three kinds of input."""
    cached = min(usage.cached_tokens or 0, usage.prompt_tokens)
    return answers.MessageUsage(
        input_tokens=usage.prompt_tokens - cached,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
    )


def _signature(thinking: str) -> str:
    """Return something opaque: clients drop thinking without it when they send it back."""
    digest = hashlib.blake2b(thinking.encode(errors="replace"), digest_size=24).digest()
    return base64.b64encode(digest).decode()


def _content(block: Block) -> answers.Block:
    match block.kind:
        case BlockKind.TEXT | BlockKind.REFUSAL:
            return answers.TextBlock(block.text)
        case BlockKind.THINKING:
            return answers.ThinkingBlock(block.text, _signature(block.text))
        case BlockKind.CALL:
            arguments = object_of(block.text) if block.text else None
            if arguments is None:
                return answers.TextBlock(write_call(block.name, block.text))
            return answers.ToolUseBlock(block.id, block.name, arguments)
