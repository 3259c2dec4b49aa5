"""Reads the calls of a whole text."""

from __future__ import annotations

from vllama.chat.parsers.call_values import ToolCall
from vllama.chat.tool_calls import CallScanner


def parse_calls(text: str) -> list[ToolCall]:
    """Return the calls of a text that comes in one piece, of any tools."""
    scanner = CallScanner()
    scanner.feed(text)
    return scanner.finish()[0]
