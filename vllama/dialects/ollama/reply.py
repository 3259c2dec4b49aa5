"""The work common to Ollama's chat and generate replies: an engine's stream taken apart and timed.

Several events in one read give their lines in one `bytes`: one write (proxy-performance §1.4).
Sources: contract §1.2–1.3 (shapes), §3.3 (numbers), §3.5 (thinking). All times are Unix
nanoseconds and come as arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from vllama.chat.engine.events import (
    Choice,
    EngineUsage,
    Timings,
    check_finish,
    decode_event,
    plain_text,
)
from vllama.chat.engine.traits import Traits
from vllama.chat.event_template import Moment, Usual
from vllama.chat.framing import DONE, SseReader
from vllama.chat.logprobs import ollama_logprobs
from vllama.chat.reply import CUT_SHORT, CountsReader
from vllama.chat.request import ToolCall, Usage
from vllama.dialects.errors import ollama_error
from vllama.errors import EngineCrashed, VllamaError
from vllama.parsers.thinking import ThinkSplitter, Trim
from vllama.parsers.tool_calls import CallCollector, CallScanner, Toolset
from vllama.units import rfc3339_utc

NDJSON = "application/x-ndjson"
JSON = "application/json; charset=utf-8"

MILLION = 1_000_000
BILLION = 1_000_000_000

_encode = msgspec.json.Encoder().encode


@lru_cache(maxsize=4)
def _second_text(second: int) -> bytes:
    """Write a Unix second; all streams of one moment share it."""
    return rfc3339_utc(second * 1_000_000_000)[:19].encode()


class _Stamp(Moment):
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


_stamp = _Stamp()


@lru_cache(maxsize=64)
def _line_head(model: str) -> bytes:
    """Write what every line begins with; all streams of a model share it."""
    return b'{"model":%b,"created_at":"' % _encode(model)


class OllamaReply(ABC):
    """A reply in the making. Steps of one event:

    1. An error raises; what was translated before it in the same read is sent first.
    2. The first choice's text and thinking are told apart, calls collected.
    3. Its content becomes a line at once (stream) or waits (whole).
    4. `finish_reason`, usage and timings are kept for the last object.
    """

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
        traits: Traits,
        prompt_tokens: int | None = None,
        max_tokens: int | None = None,
        think: bool | None = None,
        think_opened: bool = False,
        tools: Toolset | bool = False,
        top_logprobs: int = 0,
    ) -> None:
        """`think`: None the model cannot, True show its thinking, False split it off and hide it.

        `think_opened`: the prompt ended inside the tag. `prompt_tokens` as counted before, used
        when the engine does not say, as is `max_tokens` of an answer that ended for its length.
        `sent_ns` is when the request went to the engine.
        """
        self.content_type = NDJSON if stream else JSON
        self.ended = False
        self.first_token_ns: int | None = None
        self.counts: CountsReader | None = None
        self.may_cut = False
        self._model = model
        self._stream = stream
        self._started_ns, self._loaded_ns, self._sent_ns = started_ns, loaded_ns, sent_ns
        self._prompt_tokens = prompt_tokens
        self._max_tokens = max_tokens
        self._hide_thinking = think is False
        split = think is not None and not traits.splits_reasoning
        self._scanner = CallScanner(tools) if tools and not traits.parses_tools else None
        reads_calls = self._scanner is not None
        self._splitter = ThinkSplitter(opened=think_opened, calls=reads_calls) if split else None
        self._collector = CallCollector()
        self._plain = self._splitter is None and self._scanner is None
        self._trim = Trim()
        self._reader = SseReader()
        self._head = _line_head(model)
        self.usual = Usual(self._head, *self._around, moment=_stamp)
        self._learnable = False
        self._top_logprobs = top_logprobs
        self._answer = bytearray()  # UTF-8: a list of texts would be ten times as large
        self._opening = ""  # the first text of this read
        self._thoughts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._finish_reason: str | None = None
        self._usage: EngineUsage | None = None
        self._timings: Timings | None = None
        self._failure: VllamaError | None = None
        if not stream:
            self._keep_all()

    def _keep_all(self) -> None:
        """Keep the whole answer's text."""
        self.usual.kept = self._answer

    @property
    def text(self) -> str:
        """The answer so far, without its thinking; of a stream only if it was to be kept."""
        return self._answer.decode(errors="surrogatepass")

    @property
    def finish_reason(self) -> str | None:
        """Why the engine stopped, in its own word; None before that."""
        return self._finish_reason

    @property
    def usage(self) -> Usage:
        """Tokens so far: the engine's numbers, else those counted here."""
        usage, timings = self._usage or EngineUsage(), self._timings or Timings()
        prompt = usage.prompt_tokens
        if prompt is None:
            prompt = self._prompt_tokens
        if prompt is None and timings.prompt_n is not None:
            prompt = timings.prompt_n + (timings.cache_n or 0)
        completion = usage.completion_tokens
        if completion is None:
            completion = timings.predicted_n
        if completion is None and self._finish_reason == "length":
            completion = self._max_tokens
        estimated = completion is None
        if completion is None:
            completion = self.usual.tokens
        return Usage(prompt_tokens=prompt or 0, completion_tokens=completion, estimated=estimated)

    def feed(self, chunk: bytes, now_ns: int) -> bytes:
        """Take bytes of the engine's stream; return the lines they complete.

        Raises UpstreamError or EngineCrashed for an error in the stream.
        """
        usual = self.usual
        texts = usual.match(chunk)
        if texts is not None:
            usual.count(texts, now_ns)
            return usual.write(texts, now_ns) if self._stream else b""
        if self._failure is not None:
            raise self._failure
        lines: list[bytes] = []
        self._learnable = self._plain and not self._reader.pending
        self._opening = ""
        try:
            payloads = self._reader.feed(chunk)
            self._take(payloads, now_ns, lines)
        except VllamaError as error:
            if not lines:
                raise
            self._failure = error
            usual.forget()
        if self._reader.pending:
            usual.forget()
        elif self._learnable and self._opening:
            usual.learn(chunk, self._opening)
        return lines[0] if len(lines) == 1 else b"".join(lines)

    def finish(self, now_ns: int) -> bytes:
        """Return the last line, or the whole object.

        Raises EngineCrashed when the stream ended without a `finish_reason`.
        """
        if self._failure is not None:
            raise self._failure
        lines: list[bytes] = []
        self._take(self._reader.close(), now_ns, lines)
        if self._finish_reason is None:
            raise EngineCrashed(CUT_SHORT)
        calls = self._flush(now_ns, lines)
        if self._stream and calls:
            lines.append(self._line(now_ns, self._body("", "", calls), []))
        last = self._last(now_ns)
        if self._stream:
            lines.append(self._line(now_ns, self._body("", "", []), [], last))
            return b"".join(lines)
        body = self._body(self.text, "".join(self._thoughts), calls)
        return self._line(now_ns, body, self._logprobs, last).rstrip(b"\n")

    def fail(self, error: VllamaError) -> bytes:
        """Return the line that ends a stream with an error (§1.0)."""
        return ollama_error(error)[1] + b"\n"

    def _take(self, payloads: list[bytes], now_ns: int, lines: list[bytes]) -> None:
        for payload in payloads:
            if payload == DONE:
                self.ended = True
                self._learnable = False
                continue
            event = decode_event(payload)
            text = plain_text(event) if self._plain and not self._trim.after else None
            if text is not None:
                self._count(now_ns)
                self._keep(text)
                if self._stream:
                    lines.append(self.usual.write((_encode(text)[1:-1],), now_ns))
                continue
            self._learnable = False
            if event.choices:
                self._choice(event.choices[0], now_ns, lines)
            if event.usage is not None:
                self._usage = event.usage
            if event.timings is not None:
                self._timings = event.timings

    def _choice(self, choice: Choice, now_ns: int, lines: list[bytes]) -> None:
        delta = choice.delta
        thinking: str | None
        if delta is not None:
            text = delta.content
            thinking = delta.reasoning or delta.reasoning_content
            if delta.tool_calls:
                self._collector.add(delta.tool_calls)
                if not (text or thinking):
                    self._count(now_ns)
        else:
            text, thinking = choice.text, None
        if text or thinking:
            self._count(now_ns)
            thinking, text = self._trim.feed(thinking or "", text or "")
            if choice.logprobs is not None or not self._plain or thinking:
                self._add(text, thinking, choice, now_ns, lines)
            elif text:
                self._keep(text)
                if self._stream:
                    lines.append(self.usual.write((_encode(text)[1:-1],), now_ns))
        reason = choice.finish_reason
        if reason is not None:
            check_finish(reason)
            self._finish_reason = reason
            self.usual.last_ns = now_ns
            self.ended = True
            if self.counts is not None:
                self._usage = self.counts()

    def _keep(self, text: str) -> None:
        if not self._opening:
            self._opening = text
        if self.usual.kept is not None:
            self._answer += text.encode(errors="surrogatepass")

    def _count(self, now_ns: int) -> None:
        if self.first_token_ns is None:
            self.first_token_ns = now_ns
        self.usual.last_ns = now_ns
        self.usual.tokens += 1

    def _add(
        self, text: str, thinking: str, choice: Choice, now_ns: int, lines: list[bytes]
    ) -> None:
        """Split, scan and keep one chunk's text; the slower way."""
        if self._splitter is not None and text:
            more, text = self._splitter.feed(text)
            thinking += more
        if self._scanner is not None and text:
            text = self._scanner.feed(text)
        self._logprobs.extend(ollama_logprobs(choice.logprobs, self._top_logprobs))
        self._emit(text, thinking, now_ns, lines)

    def _emit(self, text: str, thinking: str, now_ns: int, lines: list[bytes]) -> None:
        if self._hide_thinking:
            thinking = ""
        if text:
            self._keep(text)
        if thinking:
            self._thoughts.append(thinking)
        if self._stream and (text or thinking):
            lines.append(self._line(now_ns, self._body(text, thinking, []), self._logprobs))
            self._logprobs = []

    def _flush(self, now_ns: int, lines: list[bytes]) -> list[ToolCall]:
        """Give what was held back; return the calls."""
        if self._splitter is not None:
            thinking, text = self._splitter.finish()
            if self._scanner is not None and text:
                text = self._scanner.feed(text)
            self._emit(text, thinking, now_ns, lines)
        calls, text = self._collector.finish()
        if self._scanner is not None:
            found, rest = self._scanner.finish()
            calls, text = calls + found, rest + text
        self._emit(text, "", now_ns, lines)
        return calls

    def _stamp(self, now_ns: int) -> bytes:
        """Write a time as RFC 3339; the seconds' text is kept, tokens come many a second."""
        return b"%b.%09dZ" % (_second_text(now_ns // BILLION), now_ns % BILLION)

    def _line(
        self,
        now_ns: int,
        body: dict[str, Any],
        logprobs: Sequence[dict[str, Any]],
        last: dict[str, Any] | None = None,
    ) -> bytes:
        value = {**body, "done": last is not None, **(last or {})}
        if logprobs:
            value["logprobs"] = list(logprobs)
        return b'%b%b",%b\n' % (self._head, self._stamp(now_ns), _encode(value)[1:])

    def _last(self, now_ns: int) -> dict[str, Any]:
        """Return the fields of the last object; no duration is 0, since clients divide (§3.3)."""
        usage, timings = self.usage, self._timings or Timings()
        first_ns = self.usual.last_ns if self.first_token_ns is None else self.first_token_ns
        prompt_ns = first_ns - self._sent_ns
        eval_ns = self.usual.last_ns - first_ns
        if not eval_ns:  # all tokens in one read: nobody knows when the first was made
            eval_ns = prompt_ns // 2
            prompt_ns -= eval_ns
        if timings.prompt_ms is not None and timings.predicted_ms is not None:
            prompt_ns = int(timings.prompt_ms * 1e6)
            eval_ns = int(timings.predicted_ms * 1e6)
        return {
            "done_reason": "length" if self._finish_reason == "length" else "stop",
            **self._extra(),
            "total_duration": max(1, now_ns - self._started_ns),
            "load_duration": max(1, self._loaded_ns - self._started_ns),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": max(1, prompt_ns),
            # an answer that ends at once has made the token that ends it
            "eval_count": usage.completion_tokens or int(self._finish_reason == "stop"),
            "eval_duration": max(1, eval_ns),
        }

    def _extra(self) -> dict[str, Any]:
        return {}

    @abstractmethod
    def _body(self, text: str, thinking: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        """Return what the dialect puts between `created_at` and `done`."""
