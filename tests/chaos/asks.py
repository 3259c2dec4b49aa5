"""One question in every dialect, streamed or not, and what its answer said: text, end, error.

Written from the dialects themselves, not with our own translators.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import httpx
import psutil

Event = dict[str, Any]


@dataclass
class Answer:
    """What came: `done` is the dialect's own end, `error` the words of its error."""

    status: int = 0
    text: str = ""
    vector: list[float] = field(default_factory=list)
    done: bool = False
    error: str = ""
    odd: str = ""
    retry_after: str | None = None
    queue_position: int = 0
    counts: str = ""  # of tokens, where a reader wants to compare them


@dataclass(frozen=True)
class Dialect:
    """A route: how to ask there, and how to read an answer. `whole` None: it has no streams."""

    path: str
    ask: Callable[[str, int], Event]
    whole: Callable[[Answer, Event], None]
    event: Callable[[Answer, Event], None] | None = None
    lines: bool = False


def _say(text: str) -> list[Event]:
    return [{"role": "user", "content": text}]


def _ollama(**body: Any) -> Callable[[str, int], Event]:
    def ask(text: str, tokens: int) -> Event:
        options = {"temperature": 0, "seed": 1, "num_predict": tokens}
        given = {name: make(text) for name, make in body.items()}
        return {**given, "options": options}

    return ask


def _ollama_part(answer: Answer, value: Event) -> None:
    if "error" in value:
        answer.error = str(value["error"])
        return
    message = value.get("message") or {"content": value.get("response", "")}
    answer.text += message["content"]
    answer.done = answer.done or bool(value["done"])


def _openai_chat(text: str, tokens: int) -> Event:
    return {"messages": _say(text), "temperature": 0, "seed": 1, "max_tokens": tokens}


def _openai_text(text: str, tokens: int) -> Event:
    return {"prompt": text, "temperature": 0, "seed": 1, "max_tokens": tokens}


def _openai_part(answer: Answer, value: Event) -> None:
    if "error" in value:
        answer.error = value["error"]["message"]
        return
    for choice in value["choices"]:
        part = choice.get("message") or choice.get("delta") or choice
        answer.text += part.get("content") or part.get("text") or ""
        answer.done = answer.done or choice.get("finish_reason") is not None


def _messages(text: str, tokens: int) -> Event:
    return {"messages": _say(text), "temperature": 0, "max_tokens": tokens}


def _messages_whole(answer: Answer, value: Event) -> None:
    answer.text = "".join(part.get("text", "") for part in value["content"])
    answer.done = value["stop_reason"] is not None


def _messages_event(answer: Answer, value: Event) -> None:
    match value["type"]:
        case "content_block_delta":
            answer.text += value["delta"].get("text", "")
        case "message_stop":
            answer.done = True
        case "error":
            answer.error = value["error"]["message"]


def _responses(text: str, tokens: int) -> Event:
    return {"input": text, "temperature": 0, "max_output_tokens": tokens}


def _responses_whole(answer: Answer, value: Event) -> None:
    parts = [part for item in value["output"] for part in item.get("content") or ()]
    answer.text = "".join(part.get("text", "") for part in parts)
    answer.done = value["status"] in ("completed", "incomplete")


def _responses_event(answer: Answer, value: Event) -> None:
    match value["type"]:
        case "response.output_text.delta":
            answer.text += value["delta"]
        case "response.completed" | "response.incomplete":
            answer.done = True
        case "response.failed":
            answer.error = value["response"]["error"]["message"]
        case "error":
            answer.error = answer.error or value["message"]


def _vector(answer: Answer, value: Event) -> None:
    answer.vector = (
        value["embeddings"][0] if "embeddings" in value else value["data"][0]["embedding"]
    )
    answer.done = True


def _input(text: str, tokens: int) -> Event:
    return {"input": text}


CHATS = (
    Dialect("/api/chat", _ollama(messages=_say), _ollama_part, _ollama_part, lines=True),
    Dialect("/api/generate", _ollama(prompt=str), _ollama_part, _ollama_part, lines=True),
    Dialect("/v1/chat/completions", _openai_chat, _openai_part, _openai_part),
    Dialect("/v1/messages", _messages, _messages_whole, _messages_event),
    Dialect("/v1/responses", _responses, _responses_whole, _responses_event),
)
# one that goes on with a text: the question itself is the prompt
TEXTS = (Dialect("/v1/completions", _openai_text, _openai_part, _openai_part),)
VECTORS = (
    Dialect("/api/embed", _input, _vector),
    Dialect("/v1/embeddings", _input, _vector),
)


def read_events(raw: str, *, lines: bool) -> Iterator[Event]:
    """Yield the objects of a stream."""
    for line in raw.splitlines():
        data = line if lines else line.removeprefix("data:").strip()
        if data and (lines or line.startswith("data:")) and data != "[DONE]":
            yield json.loads(data)


def read(dialect: Dialect, reply: httpx.Response, raw: str, *, stream: bool) -> Answer:
    """Read what came. `odd` tells what is not of the dialect, or not of its errors."""
    answer = Answer(status=reply.status_code, retry_after=reply.headers.get("retry-after"))
    answer.queue_position = int(reply.headers.get("x-vllama-queue-position", 0))
    try:
        if reply.status_code != 200:
            error = json.loads(raw)["error"]
            answer.error = error if isinstance(error, str) else error["message"]
            if isinstance(error, str) != dialect.path.startswith("/api/"):
                answer.odd = f"an error of another dialect: {raw[:200]!r}"
        elif stream and dialect.event:
            for value in read_events(raw, lines=dialect.lines):
                if answer.done and dialect.lines:
                    answer.odd = f"something after the end: {value!r}"
                dialect.event(answer, value)
        else:
            dialect.whole(answer, json.loads(raw))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        answer.odd = f"{error!r} in {reply.status_code} {raw[-300:]!r}"
    if not answer.odd:
        openai = dialect.path in ("/v1/chat/completions", "/v1/completions")
        if openai and stream and answer.done and not raw.endswith("data: [DONE]\n\n"):
            answer.odd = f"the stream's last line is missing: {raw[-300:]!r}"
        elif not (answer.done or answer.error):
            answer.odd = f"neither end nor error: {raw[-300:]!r}"
        elif answer.status == 503 and int(answer.retry_after or 0) < 1:
            answer.odd = f"503 without Retry-After: {raw[:200]!r}"
    return answer


async def ask(
    client: httpx.AsyncClient, dialect: Dialect, model: str, text: str, tokens: int, *, stream: bool
) -> Answer:
    """Ask and read to the end. What the server itself breaks comes through as httpx's errors."""
    body = {"model": model, **dialect.ask(text, tokens)}
    if dialect.event:
        body["stream"] = stream
    async with client.stream("POST", dialect.path, json=body) as reply:
        raw = (await reply.aread()).decode()
    return read(dialect, reply, raw, stream=stream)


def orphans(pids: Path) -> list[psutil.Process]:
    """Return what lives of all that the fake engines ever were."""
    found = []
    for line in pids.read_text().splitlines():
        try:
            process = psutil.Process(int(line.split()[1]))
            ours = any(word.endswith("engine.py") for word in process.cmdline())
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def report(seen: Counter[str], wrong: list[str], *lines: str) -> NoReturn:
    """Print what a run has counted, found, and what was wrong; exit with 1 if anything was."""
    for name, count in sorted(seen.items()):
        print(f"{count:8} {name}")
    for line in (*lines, *(f"WRONG: {each}" for each in wrong[:50])):
        print(line)
    sys.exit(bool(wrong))
