"""Log probabilities: OpenAI's two forms made into Ollama's or into each other.

See docs/reference/ollama-api.md#generate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from vllama.base.errors import BadRequest

MAX_LOGPROBS = 20
"""The most alternatives to a token that a request may ask for, as in Ollama and OpenAI's API."""


def check_top_logprobs(number: int) -> None:
    """Raise BadRequest for a number of alternatives beyond the limit."""
    if not 0 <= number <= MAX_LOGPROBS:
        raise BadRequest(f"top_logprobs must be between 0 and {MAX_LOGPROBS}")


def pack(entries: Iterable[object]) -> list[msgspec.Raw]:
    """Encode entries to be kept: millions of dictionaries would take memory and long pauses."""
    return [msgspec.Raw(msgspec.json.encode(entry)) for entry in entries]


def tidy(source: Mapping[str, Any] | None, top: int) -> bool:
    """Mend a chat's `logprobs` in place; False if nothing was to be done.

    Tokens get their UTF-8 bytes, which Ollama and OpenAI write and some engines leave null, and
    `top` alternatives are kept: some engines give no logprobs unless they are asked for one.
    """
    changed = False
    for item in _objects((source or {}).get("content")):
        others = _objects(item.get("top_logprobs"))
        if len(others) > top:
            item["top_logprobs"] = others = others[:top]
            changed = True
        for entry in (item, *others):
            if entry.get("bytes") is None and isinstance(entry.get("token"), str):
                entry["bytes"] = list(entry["token"].encode())
                changed = True
    return changed


def _objects(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def convert_logprobs(
    source: Mapping[str, Any] | None, top: int | None = None
) -> list[dict[str, Any]]:
    """Convert one choice's `logprobs`, of a chat or of a completion; [] for none.

    Of the alternatives `top` are kept, None: all.
    """
    if not source:
        return []
    content, tokens = source.get("content"), source.get("tokens")
    if isinstance(content, list):
        found = [_entry(item) for item in content if isinstance(item, Mapping)]
    else:
        found = _from_completion(source, tokens) if isinstance(tokens, list) else []
    for entry in found if top is not None else ():
        entry["top_logprobs"] = entry.get("top_logprobs", [])[:top]
        if not entry["top_logprobs"]:
            del entry["top_logprobs"]
    return found


def _entry(item: Mapping[str, Any]) -> dict[str, Any]:
    out = _token(item.get("token"), item.get("logprob"), item.get("bytes"))
    top = item.get("top_logprobs")
    if isinstance(top, list) and top:
        out["top_logprobs"] = [
            _token(other.get("token"), other.get("logprob"), other.get("bytes"))
            for other in top
            if isinstance(other, Mapping)
        ]
    return out


def _from_completion(source: Mapping[str, Any], tokens: list[Any]) -> list[dict[str, Any]]:
    values = _pad(source.get("token_logprobs"), len(tokens))
    tops = _pad(source.get("top_logprobs"), len(tokens))
    out = []
    for token, value, top in zip(tokens, values, tops, strict=True):
        entry = _token(token, value, None)
        if isinstance(top, Mapping) and top:
            entry["top_logprobs"] = [_token(name, lp, None) for name, lp in top.items()]
        out.append(entry)
    return out


def _token(token: object, logprob: object, raw: object) -> dict[str, Any]:
    text = token if isinstance(token, str) else ""
    known = isinstance(logprob, int | float) and abs(logprob) < 1e9
    data = list(text.encode(errors="replace"))
    if isinstance(raw, list) and all(isinstance(b, int) and 0 <= b < 256 for b in raw):
        data = raw
    return {"token": text, "logprob": logprob if known else 0.0, "bytes": data}


def _pad(values: object, size: int) -> list[Any]:
    given = values[:size] if isinstance(values, list) else []
    return given + [None] * (size - len(given))


def convert_completion_logprobs(
    source: Mapping[str, Any] | None, offset: int, top: int
) -> dict[str, list[Any]] | None:
    """Convert one chunk's `logprobs`, of a chat or of a completion, to a completion's; None: none.

    `offset`: characters of text before it. `top`: how many alternatives were asked for.
    """
    entries = convert_logprobs(source)
    if not entries:
        return None
    out: dict[str, list[Any]] = {
        "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [],
    }  # fmt: skip
    for entry in entries:
        others: dict[str, float] = {}
        for other in entry.get("top_logprobs", ())[:top]:
            others.setdefault(other["token"], other["logprob"])  # the likelier of one text
        out["tokens"].append(entry["token"])
        out["token_logprobs"].append(entry["logprob"])
        out["top_logprobs"].append(others or None)
        out["text_offset"].append(offset)
        offset += len(entry["token"])
    return out
