"""An engine's streamed answer as a response of the Responses API.

Order of events: `created`, `in_progress`; for each item `output_item.added`, its parts and deltas,
`output_item.done`; then `completed` or `failed`. Every event has the next `sequence_number`; there
is no `[DONE]`. The event of a response that is cut is `completed`, too: the official client's
streams know no other good end, and Codex retries what ends with `incomplete`. Its `status` and
`incomplete_details` tell, as in OpenAI's API.

See docs/reference/ollama-api.md#responses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from vllama.base.errors import ContextOverflow, VllamaError
from vllama.chat.parsers.call_values import read_input
from vllama.chat.tally import Tally
from vllama.chat.writer import ReplyOptions
from vllama.dialects.blocks import Block, BlockKind, BlockWriter
from vllama.dialects.errors import make_openai_error

_PREFIXES = {BlockKind.THINKING: "rs", BlockKind.CALL: "fc"}
_TEXTS = {
    BlockKind.TEXT: "response.output_text",
    BlockKind.REFUSAL: "response.refusal",
    BlockKind.THINKING: "response.reasoning_summary_text",
    BlockKind.CALL: "response.function_call_arguments",
}
_SUMMARY_PART = "response.reasoning_summary_part"
_CONTENT_PART = "response.content_part"
_CUSTOM = "custom_tool_call"
_CUTS = {"length": "max_output_tokens", "content_filter": "content_filter"}
_encode = msgspec.json.Encoder().encode


class ResponsesWriter(BlockWriter):
    """A response for a client of OpenAI's."""

    def __init__(
        self,
        options: ReplyOptions,
        *,
        seed: str,
        created_ns: int,
        echo: Mapping[str, Any],
        names: Mapping[str, tuple[str, str]],
        keep: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """`echo` and `names` are those of the request.

        `keep` is given the response when it is whole, before the client has its end.
        """
        super().__init__(options, seed=seed)
        self._created_s = created_ns // 1_000_000_000
        self._echo = echo
        self._names, self._customs = names, options.customs
        self._keep = keep
        self._number = 0
        self._head = self._tail = b""  # of the open item's deltas, around number and text

    def fail(self, error: VllamaError) -> bytes:
        """Return `response.failed`, or an error's body."""
        if not self.streams:
            return _encode(make_openai_error(error))
        code = "invalid_prompt" if isinstance(error, ContextOverflow) else "server_error"
        said = {"code": code, "message": make_openai_error(error).error.message}
        response = self._response("failed", self._items("incomplete"), None, {"error": said})
        return self._event("response.failed", {"response": response})

    def _begin(self, tally: Tally) -> bytes:
        response = self._response("in_progress", [], None, {})
        return b"".join(
            self._event(f"response.{name}", {"response": response})
            for name in ("created", "in_progress")
        )

    def _open_block(self, block: Block) -> bytes:
        item = self._item(block, "in_progress", begun=False)
        where = self._where(block)
        name = _TEXTS[block.kind].encode() + b".delta"
        self._head = b'event: %b\ndata: {"type":"%b","sequence_number":' % (name, name)
        self._tail = b"," + _encode(where)[1:-1]
        out = self._event("response.output_item.added", {"output_index": block.index, "item": item})
        match block.kind:
            case BlockKind.THINKING:
                part = {"type": "summary_text", "text": ""}
                return out + self._event(f"{_SUMMARY_PART}.added", {**where, "part": part})
            case BlockKind.TEXT | BlockKind.REFUSAL:
                self._tail += b',"logprobs":[]' if block.kind is BlockKind.TEXT else b""
                part = _write_part(block.kind, "")
                return out + self._event(f"{_CONTENT_PART}.added", {**where, "part": part})
            case BlockKind.CALL:
                return out

    def _delta(self, block: Block, text: str) -> bytes:
        if block.kind is BlockKind.CALL and block.name in self._customs:
            return b""  # a piece of JSON, whose text comes at the end
        number, self._number = self._number, self._number + 1
        return b'%b%d%b,"delta":%b}\n\n' % (self._head, number, self._tail, _encode(text))

    def _close_block(self, block: Block) -> bytes:
        text, where, name = block.text, self._where(block), f"{_TEXTS[block.kind]}.done"
        match block.kind:
            case BlockKind.THINKING:
                part = {"type": "summary_text", "text": text}
                out = self._event(name, {**where, "text": text})
                out += self._event(f"{_SUMMARY_PART}.done", {**where, "part": part})
            case BlockKind.TEXT | BlockKind.REFUSAL:
                part = _write_part(block.kind, text)
                told = {k: x for k, x in part.items() if k in ("text", "refusal", "logprobs")}
                out = self._event(name, {**where, **told})
                out += self._event(f"{_CONTENT_PART}.done", {**where, "part": part})
            case BlockKind.CALL:
                called = self._item(block, "completed")
                if called["type"] == _CUSTOM:
                    name, said = f"response.{_CUSTOM}_input", called["input"]
                    out = self._event(f"{name}.delta", {**where, "delta": said})
                    out += self._event(f"{name}.done", {**where, "input": said})
                else:
                    known = {"name": called["name"], "arguments": called["arguments"]}
                    out = self._event(name, {**where, **known})
        status = "completed" if block.complete else "incomplete"
        item = self._item(block, status)
        return out + self._event(
            "response.output_item.done", {"output_index": block.index, "item": item}
        )

    def _end(self, tally: Tally, now_ns: int) -> bytes:
        response = self._write_end(tally, now_ns)
        if not (response["output"] or tally.usage.completion_tokens):
            response = response | {"output": None}  # as Ollama answers a request without input
        told = [self._event(f"response.{name}", {name: x}) for name, x in tally.collected.items()]
        return b"".join(told) + self._event("response.completed", {"response": response})

    def _whole(self, tally: Tally, now_ns: int) -> bytes:
        if all(block.kind is BlockKind.THINKING for block in self._blocks):
            self._blocks.append(Block(kind=BlockKind.TEXT, index=len(self._blocks)))
        return _encode({**self._write_end(tally, now_ns), **tally.collected})

    def _write_end(self, tally: Tally, now_ns: int) -> dict[str, Any]:
        """Return the response as it is at the end."""
        more: dict[str, Any] = {"completed_at": now_ns // 1_000_000_000}
        status = "completed"
        if (reason := _CUTS.get(tally.finish_reason or "")) is not None:
            more["incomplete_details"], status = {"reason": reason}, "incomplete"
        response = self._response(status, self._items("completed"), _usage(tally), more)
        if self._keep is not None:
            self._keep(response)
        return response

    def _response(
        self,
        status: str,
        output: list[dict[str, Any]],
        usage: dict[str, Any] | None,
        more: Mapping[str, Any],
    ) -> dict[str, Any]:
        return {
            "id": f"resp_{self._seed}",
            "object": "response",
            "created_at": self._created_s,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._options.model,
            **self._echo,
            **more,
            "output": output,
            "usage": usage,
        }

    def _items(self, status: str) -> list[dict[str, Any]]:
        """Return all items; `status` is that of items that are as long as they were meant."""
        return [
            self._item(block, status if block.complete else "incomplete") for block in self._blocks
        ]

    def _item(self, block: Block, status: str, *, begun: bool = True) -> dict[str, Any]:
        """Return a block as an output item, empty if it has not `begun`."""
        text = block.text
        item: dict[str, Any] = {"id": self._id(block), "type": "message", "status": status}
        match block.kind:
            case BlockKind.TEXT | BlockKind.REFUSAL:
                item["role"] = "assistant"
                item["content"] = [_write_part(block.kind, text)] if begun else []
            case BlockKind.THINKING:
                item["type"] = "reasoning"
                if not self.streams:
                    del item["status"]
                item["summary"] = [{"type": "summary_text", "text": text}] if begun else []
                if begun:  # plain text: it comes back with the next request
                    item["encrypted_content"] = text
            case BlockKind.CALL:
                item["type"] = "function_call"
                item["call_id"] = block.id
                space, name = self._names.get(block.name, ("", block.name))
                if space:
                    item["namespace"] = space
                item["name"] = name
                if block.name in self._customs:
                    item |= {"type": _CUSTOM, "input": read_input(text) if begun else ""}
                else:
                    item["arguments"] = text if begun else ""
        return item

    def _id(self, block: Block) -> str:
        return f"{_PREFIXES.get(block.kind, 'msg')}_{self._seed}{block.index:02d}"

    def _where(self, block: Block) -> dict[str, Any]:
        """Return the fields that say which part of which item an event is about."""
        where: dict[str, Any] = {"item_id": self._id(block), "output_index": block.index}
        if block.kind in (BlockKind.TEXT, BlockKind.REFUSAL):
            where["content_index"] = 0
        elif block.kind is BlockKind.THINKING:
            where["summary_index"] = 0
        return where

    def _event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        number, self._number = self._number, self._number + 1
        value = {"type": name, "sequence_number": number, **fields}
        return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(value))


def _write_part(kind: BlockKind, text: str) -> dict[str, Any]:
    if kind is BlockKind.REFUSAL:
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(tally: Tally) -> dict[str, Any]:
    usage = tally.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
