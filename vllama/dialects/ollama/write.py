"""Answers in Ollama's dialect: lines of JSON, or one object at the end.

Shapes and numbers: docs/reference/ollama-api.md. All times are Unix nanoseconds and come as
arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec

from vllama.base.errors import VllamaError
from vllama.base.units import rfc3339_utc
from vllama.chat.engine.events import Event
from vllama.chat.event_template import EventTemplate, TimestampCache
from vllama.chat.logprobs import convert_logprobs, pack
from vllama.chat.parsers.call_values import ToolCall
from vllama.chat.tally import Tally
from vllama.chat.tool_calls import CallCollector, write_ollama_calls
from vllama.dialects.errors import make_ollama_error

NDJSON = "application/x-ndjson"
JSON = "application/json; charset=utf-8"

MILLION = 1_000_000
BILLION = 1_000_000_000

_encode = msgspec.json.Encoder().encode


@lru_cache(maxsize=4)
def _second_text(second: int) -> bytes:
    """Write a Unix second; all streams of one second share it."""
    return rfc3339_utc(second * BILLION)[:19].encode()


class _Milliseconds(TimestampCache):
    """The time in the lines of tokens, to a millisecond: all streams of one share its text."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.until_ns = 0

    def begin(self, now_ns: int) -> None:
        """Write the time of `now_ns`."""
        ms = now_ns // MILLION
        self.since_ns, self.until_ns = ms * MILLION, (ms + 1) * MILLION
        self.text = b"%b.%03d" % (_second_text(ms // 1000), ms % 1000)


_milliseconds = _Milliseconds()


@lru_cache(maxsize=64)
def _line_head(model: str) -> bytes:
    """Write the beginning of every line; all streams of a model share it."""
    return b'{"model":%b,"created_at":"' % _encode(model)


class OllamaWriter(ABC):
    """Base of the writers for chats and for generation."""

    # of a plain token's line what stands between the time and the text, and after it
    _around: tuple[bytes, bytes]

    def __init__(
        self,
        *,
        model: str,
        stream: bool,
        started_ns: int,
        loaded_ns: int,
        sent_ns: int,
        hide_thinking: bool = False,
        top_logprobs: int = 0,
    ) -> None:
        """`sent_ns` is when the request went to the engine."""
        self.content_type = NDJSON if stream else JSON
        self.streams = stream
        self._started_ns, self._loaded_ns, self._sent_ns = started_ns, loaded_ns, sent_ns
        self._hide_thinking = hide_thinking
        self._top_logprobs = top_logprobs
        self._collector = CallCollector()
        self._head = _line_head(model)
        self.template = EventTemplate(self._head, *self._around, timestamp=_milliseconds)
        self._answer = bytearray()  # UTF-8: a list of texts would be ten times as large
        self._thoughts: list[str] = []
        self._logprobs: list[msgspec.Raw] = []
        if not stream:
            self._keep_all()

    def _keep_all(self) -> None:
        """Keep the whole answer's text."""
        self.template.kept = self._answer

    @property
    def text(self) -> str:
        """The answer so far, without its thinking; of a stream only if it was to be kept."""
        return self._answer.decode(errors="surrogatepass")

    def write(self, event: Event, tally: Tally, now_ns: int) -> bytes:
        """Return the line of an event; calls come with the last one."""
        if event.text is not None and not event.changed:
            return self._plain_line(event.text, now_ns)
        if not event.chunk.choices:
            return b""
        choice = event.chunk.choices[0]
        delta = choice.delta
        text = (choice.text if delta is None else delta.said) or ""
        thinking = ""
        if delta is not None:
            thinking = delta.thinking
            if delta.tool_calls:
                self._collector.add(delta.tool_calls)
        if text or thinking or event.changed:  # else it is the token that ends the answer
            self._logprobs += pack(convert_logprobs(choice.logprobs, self._top_logprobs))
        return self._say(text, thinking, now_ns)

    def finish(self, tally: Tally, now_ns: int) -> bytes:
        """Return the calls and the last line, or the whole object."""
        calls, broken = self._collector.finish()
        out = self._say(broken, "", now_ns)
        last = self._last(tally, now_ns)
        if self.streams:
            if calls:
                out += self._line(now_ns, self._body("", "", calls), [])
            if tally.collected:
                out += self._line(now_ns, self._body("", "", []) | tally.collected, [])
            return out + self._line(now_ns, self._body("", "", []), [], last)
        body = self._body(self.text, "".join(self._thoughts), calls)
        return self._line(now_ns, body, self._logprobs, last | tally.collected).rstrip(b"\n")

    def fail(self, error: VllamaError) -> bytes:
        """Return the line that ends a stream with an error."""
        return _encode(make_ollama_error(error)) + b"\n"

    def _say(self, text: str, thinking: str, now_ns: int) -> bytes:
        if self._hide_thinking:
            thinking = ""
        if thinking:
            self._thoughts.append(thinking)
        if text and not (thinking or self._logprobs):
            return self._plain_line(text, now_ns)
        self._keep(text)
        if not self.streams or not (text or thinking):
            return b""
        logprobs, self._logprobs = self._logprobs, []
        return self._line(now_ns, self._body(text, thinking, []), logprobs)

    def _plain_line(self, text: str, now_ns: int) -> bytes:
        self._keep(text)
        return self.template.write((_encode(text)[1:-1],), now_ns) if self.streams else b""

    def _keep(self, text: str) -> None:
        if self.template.kept is not None:
            self._answer += text.encode(errors="surrogatepass")

    def _line(
        self,
        now_ns: int,
        body: dict[str, Any],
        logprobs: Sequence[msgspec.Raw],
        last: dict[str, Any] | None = None,
    ) -> bytes:
        time = b"%b.%09dZ" % (_second_text(now_ns // BILLION), now_ns % BILLION)
        value = {**body, "done": last is not None, **(last or {})}
        if logprobs:
            value["logprobs"] = list(logprobs)
        return b'%b%b",%b\n' % (self._head, time, _encode(value)[1:])

    def _last(self, tally: Tally, now_ns: int) -> dict[str, Any]:
        """Return the fields of the last object; no duration is 0, since clients divide by them."""
        usage, timings, reason = tally.usage, tally.timings, tally.finish_reason
        last_ns = tally.last_token_ns
        first_ns = last_ns if tally.first_token_ns is None else tally.first_token_ns
        prompt_ns = first_ns - self._sent_ns
        eval_ns = last_ns - first_ns
        if not eval_ns:  # all tokens in one read: nobody knows when the first was made
            eval_ns = prompt_ns // 2
            prompt_ns -= eval_ns
        if timings.prompt_ms is not None and timings.predicted_ms is not None:
            prompt_ns = int(timings.prompt_ms * 1e6)
            eval_ns = int(timings.predicted_ms * 1e6)
        cached = usage.cached_tokens
        return {
            "done_reason": reason if reason in ("length", "content_filter") else "stop",
            **self._extra(),
            "total_duration": max(1, now_ns - self._started_ns),
            "load_duration": max(1, self._loaded_ns - self._started_ns),
            "prompt_eval_count": usage.prompt_tokens,
            **({} if cached is None else {"prompt_eval_cached_count": cached}),
            "prompt_eval_duration": max(1, prompt_ns),
            # an answer that ends at once has made the token that ends it
            "eval_count": usage.completion_tokens or int(tally.finish_reason == "stop"),
            "eval_duration": max(1, eval_ns),
        }

    def _extra(self) -> dict[str, Any]:
        return {}

    @abstractmethod
    def _body(self, text: str, thinking: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        """Return the dialect's bytes between `created_at` and `done`."""


class ChatWriter(OllamaWriter):
    """`POST /api/chat`. Tool calls come whole in one line before the last."""

    _around = (b'Z","message":{"role":"assistant","content":"', b'"},"done":false}\n')

    def _body(self, text: str, thinking: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = write_ollama_calls(calls)
        return {"message": message}


class GenerateWriter(OllamaWriter):
    """`POST /api/generate`, of a chat or a completion.

    `context` may be set until `finish`; it is not given when `raw`.
    """

    def __init__(self, *, raw: bool = False, **common: Any) -> None:
        super().__init__(**common)
        self.context: Sequence[int] | None = None
        self._raw = raw
        if not raw:  # for `context`
            self._keep_all()

    _around = (b'Z","response":"', b'","done":false}\n')

    def _body(self, text: str, thinking: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        body: dict[str, Any] = {"response": text}
        if thinking:
            body["thinking"] = thinking
        if calls:
            body["tool_calls"] = write_ollama_calls(calls)
        return body

    def _extra(self) -> dict[str, Any]:
        if self._raw or self.context is None:
            return {}
        return {"context": list(self.context)}


def write_without_text(
    model: str, now_ns: int, kind: Literal["chat", "generate"], *, role: str, **rest: object
) -> bytes:
    """Build the one object of an answer for which nothing is generated; `rest` are its ends."""
    message = {"message": {"role": role, "content": ""}}
    text = message if kind == "chat" else {"response": ""}
    return _encode({"model": model, "created_at": rfc3339_utc(now_ns), **text, **rest})
