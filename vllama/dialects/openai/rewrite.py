"""Rewriting the chunks of an engine whose stream is not what OpenAI's clients expect.

`<think>…</think>` left in the text becomes `reasoning`, a call found there becomes `tool_calls`
with the finish reason of that name (contract §1.8, §3.5). A tool's name and id repeated in every
piece are said once: clients join the pieces (engines-llamacpp §2). Each choice has its own state.
"""

from __future__ import annotations

from typing import Any

import msgspec

from vllama.chat.request import ToolCall
from vllama.parsers.thinking import ThinkSplitter
from vllama.parsers.tool_calls import CallScanner, Toolset, openai_calls


class Sifter:
    """Tells thinking, text and tool calls apart where the engine leaves all in one text."""

    __slots__ = ("_scanner", "_splitter", "active")

    def __init__(self, *, split: bool, opened: bool, scan: Toolset | bool) -> None:
        """`split`: look for `<think>`, which the prompt has `opened` or not; `scan`: for calls."""
        self.active = split or bool(scan)
        self._splitter = ThinkSplitter(opened=opened, calls=bool(scan)) if split else None
        self._scanner = CallScanner(scan) if scan else None

    def feed(self, text: str) -> tuple[str, str]:
        """Return (thinking, text) that are certain by now."""
        thinking = ""
        if self._splitter is not None:
            thinking, text = self._splitter.feed(text)
        if self._scanner is not None:
            text = self._scanner.feed(text)
        return thinking, text

    def finish(self) -> tuple[str, str, list[ToolCall]]:
        """Return what was held back: thinking, text and the calls."""
        thinking, text = "", ""
        calls: list[ToolCall] = []
        if self._splitter is not None:
            thinking, text = self._splitter.finish()
        if self._scanner is not None:
            text = self._scanner.feed(text)
            calls, rest = self._scanner.finish()
            text += rest
        return thinking, text, calls


class Rewriter:
    """Rewrites chat chunks, one after the other."""

    __slots__ = ("_named", "_opened", "_scan", "_sifters", "_split", "active")

    def __init__(self, *, split: bool, opened: bool, scan: Toolset | bool) -> None:
        self.active = split or bool(scan)
        """Whether every chunk must be rewritten, not only those with tool calls."""
        self._split, self._opened, self._scan = split, opened, scan
        self._named: set[tuple[int, object]] = set()
        self._sifters: dict[int, Sifter] = {}

    def rewrite(self, payload: bytes) -> bytes | None:
        """Return the chunk to send instead, None if nothing of it is certain yet.

        `payload` was decoded as a chunk before, so that its shape is known.
        """
        chunk: dict[str, Any] = msgspec.json.decode(payload)
        worth = False
        for choice in chunk["choices"]:
            worth = self._choice(choice) or worth
        return msgspec.json.encode(chunk) if worth else None

    def _choice(self, choice: dict[str, Any]) -> bool:
        """Rewrite in place; return whether something is left to say."""
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return True
        index = choice.get("index") or 0
        self._name_once(index, delta.get("tool_calls"))
        given = delta.get("content")
        last = choice.get("finish_reason") is not None
        sifter = self._sifters.get(index)
        if sifter is None:
            sifter = Sifter(split=self._split, opened=self._opened, scan=self._scan)
            self._sifters[index] = sifter
        thinking, text = sifter.feed(given or "")
        if last:
            more_thinking, more_text, calls = sifter.finish()
            thinking, text = thinking + more_thinking, text + more_text
            if calls:
                delta["tool_calls"] = openai_calls(calls)
                choice["finish_reason"] = "tool_calls"
        if thinking:
            delta["reasoning"] = thinking
        if given is not None or text:
            delta["content"] = text
        others = any(value for name, value in delta.items() if name != "content")
        return bool(text) or last or others or not given

    def _name_once(self, index: int, pieces: object) -> None:
        for number, piece in enumerate(pieces if isinstance(pieces, list) else ()):
            function = piece.get("function")
            key = (index, piece.get("index", number))
            if key in self._named:
                piece.pop("id", None)
                piece.pop("type", None)
                if isinstance(function, dict):
                    function.pop("name", None)
            elif isinstance(function, dict) and function.get("name"):
                self._named.add(key)
