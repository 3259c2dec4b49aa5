"""Input items as the Responses API keeps and lists them: each with a type, parts and an id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllama.dialects.responses.answer_types import InputItems

_PREFIXES = {
    "message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs",
}  # fmt: skip


def make_input_items(value: object, seed: str) -> list[dict[str, Any]]:
    """Return a request's `input`, which was read before, as a list of items.

    Items without an id get one that is made of `seed`, unique to the request.
    """
    given = [{"role": "user", "content": value}] if isinstance(value, str) else value
    items = [dict(item) for item in given] if isinstance(given, list) else []
    return [_complete(item, f"{seed}{number:02d}") for number, item in enumerate(items)]


def _complete(item: dict[str, Any], identity: str) -> dict[str, Any]:
    kind = item["type"] = item.get("type") or "message"  # whatever is empty, as it was read
    if not item.get("id"):
        item["id"] = f"{_PREFIXES.get(kind, 'item')}_in{identity}"
    if kind == "message" and isinstance(item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        item["content"] = [{"type": part, "text": item["content"]}]
    if kind in _PREFIXES:
        item.setdefault("status", "completed")
    return item


def list_items(items: Sequence[Mapping[str, Any]]) -> InputItems:
    """Return the answer that lists input items, newest first, all on one page."""
    rows = list(reversed(items))
    first, last = (rows[0]["id"], rows[-1]["id"]) if rows else (None, None)
    return InputItems("list", rows, first, last, has_more=False)
