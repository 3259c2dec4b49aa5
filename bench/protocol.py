# SPDX-License-Identifier: MIT
"""Requests as bytes, and the correctness of answers. Pure functions.

`Expected` is derived from the directives of the prompt (see `answers.py`), which also control the
engine.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from bench.answers import STAMP_DIGITS, TOOL_CALL, UTF8, directives

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": TOOL_CALL["function"]["name"],
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
            },
        },
    }
]
STAMP = re.compile(rb"~(\d{%d})" % STAMP_DIGITS)
PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-completions": "/v1/completions",
    "openai-embeddings": "/v1/embeddings",
    "ollama-chat": "/api/chat",
    "ollama-generate": "/api/generate",
    "ollama-embed": "/api/embed",
}


# -------------------------------------------------------------------- requests
def document(api: str, model: str, prompt: str, tokens: int, stream: bool) -> dict:
    """Return the JSON body of a request; `@tool` offers a tool."""
    ollama, asked = api.startswith("ollama"), directives(prompt.encode())
    if api.endswith(("embed", "embeddings")):
        return {"model": model, "input": prompt}
    doc: dict = {"model": model, "stream": stream}
    if api.endswith("chat"):
        doc["messages"] = [{"role": "user", "content": prompt}]
        if "tool" in asked:
            doc["tools"] = TOOLS
    else:
        doc["prompt"] = prompt
    if ollama:
        doc["options"] = {"num_predict": tokens}
    else:
        doc["max_tokens"] = tokens
        if stream and api == "openai-chat":
            doc["stream_options"] = {"include_usage": True}
    return doc


def request(
    api: str,
    host: str,
    *,
    model: str = "synthetic/model-8b",
    prompt: str = "",
    tokens: int = 1,
    stream: bool = True,
    path: str | None = None,
    headers: tuple[str, ...] = (),
    keep: bool = True,
) -> bytes:
    """Return one HTTP request. `api`: a key of `PATHS`, or `get:/PATH`."""
    if api.startswith("get:"):
        return f"GET {api[4:]} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n\r\n".encode()
    if api not in PATHS:
        raise SystemExit(f"cannot ask: unknown --api {api}; known: {', '.join(PATHS)}, get:/PATH")
    body = json.dumps(document(api, model, prompt, tokens, stream)).encode()
    lines = [
        f"POST {path or PATHS[api]} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        "Accept: */*",
        *([] if keep else ["Connection: close"]),
        *headers,
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def take_request(data: bytes) -> tuple[bytes, bytes, bytes, bool, bytes] | None:
    """Return method, path, body, whether to close, and the rest; None if it is incomplete."""
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        return None
    low = head.lower()
    method, path, version = head.split(b"\r\n", 1)[0].split(b" ", 2)
    close = b"connection: close" in low or version == b"HTTP/1.0"
    length = header(low, b"content-length")
    if length is not None:
        n = int(length)
        return None if len(rest) < n else (method, path, rest[:n], close, rest[n:])
    if b"transfer-encoding: chunked" not in low:
        return method, path, b"", close, rest
    body, pos = b"", 0
    while True:
        line = rest.find(b"\r\n", pos)
        if line < 0:
            return None
        n = int(rest[pos:line].split(b";")[0], 16)
        pos = line + 2 + n + 2
        if len(rest) < pos:
            return None
        body += rest[line + 2 : line + 2 + n]
        if n == 0:
            return method, path, body, close, rest[pos:]


def header(head: bytes, name: bytes) -> bytes | None:
    """Return the value of a header; `head` and `name` in lower case."""
    _, found, rest = head.partition(b"\r\n" + name + b":")
    return rest.split(b"\r\n", 1)[0].strip() if found else None


# --------------------------------------------------------------------- answers
@dataclass(frozen=True, kw_only=True)
class Expected:
    """The properties of a correct answer.

    `tokens` is the number of `~`, None for any. `end` are bytes that its last part contains, or
    empty. `cut`: the engine resets the connection, so the answer must not have a regular end.
    """

    status: int = 200
    tokens: int | None = None
    end: bytes = b""
    cut: bool = False


def expected(api: str, prompt: str, tokens: int, stream: bool) -> Expected:
    """Return the correct answer for the directives of a prompt."""
    asked = directives(prompt.encode())
    if "status" in asked:
        return Expected(status=asked["status"])
    if api.startswith("get:") or not stream or api.endswith(("embed", "embeddings")):
        return Expected()
    end = b"[DONE]" if api.startswith("openai") else b'"done":true'
    tokens = asked.get("tokens", tokens)
    if asked.get("abort", tokens) < tokens:
        return Expected(tokens=asked["abort"], end=end, cut=True)
    return Expected(tokens=tokens, end=end)


CHUNK_EDGE = re.compile(rb"\r\n[0-9a-fA-F]+\r\n")


def joined(tail: bytes) -> bytes:
    """Return the last bytes of a body without chunk frames, which may split a marker."""
    return CHUNK_EDGE.sub(b"", tail).replace(b'"done": ', b'"done":')


def dechunk(raw: bytes) -> bytes:
    """Return the body of a chunked message. Raises ValueError if its framing is wrong."""
    parts, pos = [], 0
    while True:
        line = raw.index(b"\r\n", pos)
        n = int(raw[pos:line], 16)
        if n == 0:
            return b"".join(parts)
        parts.append(raw[line + 2 : line + 2 + n])
        pos = line + 4 + n


def documents(api: str, raw: bytes, stream: bool) -> list[dict]:
    """Return the JSON documents of a body. Raises ValueError for anything else in it."""
    if not stream:
        return [json.loads(raw)]
    if not api.startswith("openai"):
        return [json.loads(line) for line in raw.splitlines()]
    docs = []
    for event in raw.split(b"\n\n"):
        data = event.removeprefix(b"data:").strip()
        if not event.strip() or event.startswith(b":") or data == b"[DONE]":
            continue
        if not event.startswith(b"data:"):
            raise ValueError(f"not an event: {event[:80]!r}")
        docs.append(json.loads(data))
    return docs


def content(api: str, docs: list[dict]) -> tuple[str, str, list[tuple[str, dict]], int | None]:
    """Return the text, thinking, calls (name, arguments) and token count of an answer."""
    text, thinking, calls, count = [], [], [], None
    parts: dict[int, list[str]] = {}
    for doc in docs:
        if api.startswith("openai"):
            count = (doc.get("usage") or {}).get("completion_tokens", count)
            for choice in doc.get("choices", ()):
                piece = choice.get("delta") or choice.get("message") or choice
                text.append(piece.get("content") or piece.get("text") or "")
                thinking.append(piece.get("reasoning") or piece.get("reasoning_content") or "")
                for number, call in enumerate(piece.get("tool_calls") or ()):
                    at = parts.setdefault(call.get("index", number), ["", ""])
                    at[0] += call["function"].get("name") or ""
                    at[1] += call["function"].get("arguments") or ""
        else:
            count = doc.get("eval_count", count)
            piece = doc.get("message", doc)
            text.append(piece.get("content") or piece.get("response") or "")
            thinking.append(piece.get("thinking") or "")
            for call in piece.get("tool_calls") or ():
                calls.append((call["function"]["name"], call["function"]["arguments"]))
    calls += [(name, json.loads(arguments)) for name, arguments in parts.values()]
    return "".join(text), "".join(thinking), calls, count


def fault(api: str, prompt: str, tokens: int, docs: list[dict]) -> str | None:
    """Return what is wrong with the content of a finished answer, None if it is exactly as sent."""
    asked = directives(prompt.encode())
    tokens = asked.get("tokens", tokens)
    think = min(asked.get("think", 0), tokens)
    if not docs:
        return "nothing was sent"
    if api.startswith("get:") or api.endswith(("embed", "embeddings")):
        return None
    if api.startswith("ollama") and [d["done"] for d in docs] != [False] * (len(docs) - 1) + [True]:
        return "done is not exactly at the end"
    text, thinking, calls, count = content(api, docs)
    one = rf" ~(\d{{{STAMP_DIGITS}}}){re.escape(UTF8 if 'utf8' in asked else '')}"
    stamps: list[str] = []
    for what, value, n in (("thinking", thinking, think), ("text", text, tokens - think)):
        found = re.findall(one, value)
        if len(found) != n or re.sub(one, "", value):
            return f"{what}: {len(found)} tokens of {n}, ends {value[-60:]!r}"
        stamps += found
    if stamps != sorted(stamps):
        return "tokens out of order"
    wanted = json.loads(TOOL_CALL["function"]["arguments"])
    right = [(TOOL_CALL["function"]["name"], wanted)] if "tool" in asked else []
    if calls != right:
        return f"calls: {calls}"
    if count not in (None, tokens):
        return f"counts {count} tokens of {tokens}"
    return None
