"""Reader of any dialect's responses: texts, numbers and tokens, whole or streamed.

A reading has only what should be the same when the request is sent again: no ids, no times.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from vllama.chat.logprobs import convert_logprobs
from vllama.observe.captures.answer import Response, make_answer, split_numbers
from vllama.observe.captures.format import AnswerText, Capture, CapturedAnswer, ReadCapture

TEXT, THINKING, CALLS, ERROR, REST = "text", "thinking", "tool calls", "error", "answer"
OLLAMA = ("/api/chat", "/api/generate")
COMPLETIONS = ("/v1/chat/completions", "/v1/completions")


@dataclass(slots=True)
class Said:
    """One text of an answer, as it is put together."""

    text: str = ""
    is_cut: bool = False
    logprobs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Reading:
    """Content of a response.

    `texts` by what they are (`text`, `thinking`, `tool calls`, …; with a number where an answer has
    several choices), `numbers` likewise (vectors, scores). Counts of tokens are None if unknown;
    `is_estimated`: those generated are the pieces of text of a stream that tells no count.
    `first_s` and `last_s` are the times of the first and the last piece that has text; None for an
    answer that was not streamed. `generating_s` is how long the answer itself says that it took.
    """

    status: int
    texts: dict[str, Response] = field(default_factory=dict)
    numbers: dict[str, list[float]] = field(default_factory=dict)
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    is_estimated: bool = False
    first_s: float | None = None
    last_s: float | None = None
    generating_s: float | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Speed of the tokens after the first one; else the response's own figure."""
        if self.generated_tokens is None:
            return None
        if self.first_s is not None and self.last_s is not None and self.last_s > self.first_s:
            return (self.generated_tokens - 1) / (self.last_s - self.first_s)
        return self.generated_tokens / self.generating_s if self.generating_s else None


def read_answer(path: str, answer: CapturedAnswer) -> Reading:
    """Read an answer to a request for `path`."""
    reader = _Reader(path, answer.status)
    if answer.cut or not (answer.is_stream or "json" in answer.content_type):
        return reader.take_bytes(answer.content, answer.content_type)
    try:
        for at_s, value in _list_objects(answer):
            reader.take(value, at_s)
    except ValueError:
        return _Reader(path, answer.status).take_bytes(answer.content, answer.content_type)
    return reader.finish(is_stream=answer.is_stream)


def read_texts(capture: Capture) -> ReadCapture:
    """Return a capture with the texts of its answer."""
    reading = read_answer(capture.request.path, capture.answer)
    texts = [
        AnswerText(name=name, text=said.text.decode(errors="replace"), cut=said.cut)
        for name, said in reading.texts.items()
        if said.text
    ]
    return ReadCapture(**msgspec.structs.asdict(capture), texts=texts)


def _list_objects(answer: CapturedAnswer) -> Iterable[tuple[float, dict[str, Any]]]:
    """Yield the objects of an answer, each with the time of its last byte. Raises ValueError."""
    if not answer.is_stream:
        yield 0.0, _load(answer.content)
        return
    rest = b""
    for part, content in zip(answer.parts, answer.pieces, strict=True):
        *lines, rest = (rest + content).split(b"\n")
        for line in lines:
            if (found := _strip_event(line)) is not None:
                yield part.at_s, _load(found)
    if (found := _strip_event(rest)) is not None:
        yield answer.parts[-1].at_s, _load(found)


def _strip_event(line: bytes) -> bytes | None:
    """Return the JSON of a line, None if there is none in it."""
    content = line.strip().removeprefix(b"data:").strip()
    return content if content.startswith(b"{") else None  # `[DONE]` is no JSON


def _load(content: bytes) -> dict[str, Any]:
    value = json.loads(content)
    return value if isinstance(value, dict) else {"": value}


class _Reader:
    """Puts the objects of one answer together."""

    def __init__(self, path: str, status: int) -> None:
        self._path = path
        self._reading = Reading(status=status)
        self._said: dict[str, Said] = {}
        self._calls: dict[tuple[str, int], dict[str, str]] = {}
        self._grew = False  # whether the last object had a part of the answer
        self._pieces = 0  # objects that had

    def take(self, value: dict[str, Any], at_s: float) -> None:
        """Take one object that came at `at_s`."""
        self._grew = False
        error = value.get("error")
        if error:
            message = error.get("message", error) if isinstance(error, Mapping) else error
            self._say(ERROR, str(message))
        elif self._path in OLLAMA:
            self._take_ollama(value)
        elif self._path in COMPLETIONS:
            self._take_openai(value)
        elif self._path == "/v1/responses":
            self._take_responses(value)
        elif self._path == "/v1/messages":
            self._take_anthropic(value)
        else:
            self._take_other(value)
        if self._grew:
            self._pieces += 1
            reading = self._reading
            reading.first_s = at_s if reading.first_s is None else reading.first_s
            reading.last_s = at_s

    def finish(self, *, is_stream: bool) -> Reading:
        """Return the reading."""
        reading = self._reading
        for (suffix, _), call in self._calls.items():
            self._say(CALLS + suffix, f"{call['name']}({_sort(call['arguments'])})\n")
        for name, said in self._said.items():
            reading.texts[name] = make_answer(said.text, cut=said.is_cut, entries=said.logprobs)
        if not is_stream:
            reading.first_s = reading.last_s = None
        elif reading.generated_tokens is None and TEXT in reading.texts:
            reading.generated_tokens, reading.is_estimated = self._pieces, True
        return reading

    def take_bytes(self, content: bytes, content_type: str) -> Reading:
        """Read an answer that is not JSON: a text, or bytes by their digest."""
        if content_type.startswith("text/"):
            text = content.decode(errors="replace")
        else:
            text = f"{len(content)} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}"
        self._say(REST, text)
        return self.finish(is_stream=False)

    def _say(self, name: str, text: object) -> Said:
        said = self._said.setdefault(name, Said())
        if isinstance(text, str) and text:
            said.text += text
            self._grew = True
        return said

    def _count(self, prompt: object, generated: object) -> None:
        reading = self._reading
        reading.prompt_tokens = prompt if isinstance(prompt, int) else reading.prompt_tokens
        if isinstance(generated, int):
            reading.generated_tokens = generated

    def _add_call(self, suffix: str, index: int, name: object, arguments: object) -> None:
        """Add to a tool call; arguments come whole, as an object, or piece by piece, as text."""
        self._grew = True
        call = self._calls.setdefault((suffix, index), {"name": "", "arguments": ""})
        call["name"] += name if isinstance(name, str) else ""
        if isinstance(arguments, Mapping):
            call["arguments"] = json.dumps(arguments)
        elif isinstance(arguments, str):
            call["arguments"] += arguments

    # -- dialects -----------------------------------------------------------------------------

    def _take_ollama(self, value: dict[str, Any]) -> None:
        message = value.get("message")
        if not isinstance(message, Mapping):
            message = {"content": value.get("response"), **value}
        said = self._say(TEXT, message.get("content"))
        said.logprobs += value.get("logprobs") or ()
        if message.get("thinking"):
            self._say(THINKING, message["thinking"])
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            index = len(self._calls)
            self._add_call("", index, function.get("name"), function.get("arguments"))
        if value.get("done"):
            said.is_cut = value.get("done_reason") == "length"
            self._count(value.get("prompt_eval_count"), value.get("eval_count"))
            if isinstance(duration_ns := value.get("eval_duration"), int):
                self._reading.generating_s = duration_ns / 1e9

    def _take_openai(self, value: dict[str, Any]) -> None:
        for choice in value.get("choices") or ():
            suffix = f" {choice['index'] + 1}" if choice.get("index") else ""
            message = choice.get("delta") or choice.get("message") or choice
            said = self._say(TEXT + suffix, message.get("content") or message.get("text"))
            said.logprobs += convert_logprobs(choice.get("logprobs"))
            if thinking := message.get("reasoning") or message.get("reasoning_content"):
                self._say(THINKING + suffix, thinking)
            for place, call in enumerate(message.get("tool_calls") or ()):
                function, index = call.get("function") or {}, call.get("index", place)
                self._add_call(suffix, index, function.get("name"), function.get("arguments"))
            if choice.get("finish_reason"):
                said.is_cut = choice["finish_reason"] == "length"
        if usage := value.get("usage"):
            self._count(usage.get("prompt_tokens"), usage.get("completion_tokens"))

    def _take_responses(self, value: dict[str, Any]) -> None:
        """Take a response, or an event: deltas only tell when text came, the end has all of it."""
        self._grew = str(value.get("type", "")).endswith(".delta")
        response = value["response"] if isinstance(value.get("response"), Mapping) else value
        if isinstance(error := response.get("error"), Mapping):
            self._say(ERROR, str(error.get("message", error)))
        if response.get("status") == "in_progress" or not isinstance(response.get("output"), list):
            return
        for item in response["output"]:
            kind = item.get("type")
            if kind == "function_call":
                self._add_call("", len(self._calls), item.get("name"), item.get("arguments"))
            for part in item.get("summary") or item.get("content") or ():
                said = self._say(THINKING if kind == "reasoning" else TEXT, part.get("text"))
                said.logprobs += convert_logprobs({"content": part.get("logprobs") or []})
                said.is_cut = bool(response.get("incomplete_details"))
        if usage := response.get("usage"):
            self._count(usage.get("input_tokens"), usage.get("output_tokens"))

    def _take_anthropic(self, value: dict[str, Any]) -> None:
        message = value.get("message") or value
        blocks = enumerate(message.get("content") or ())
        if isinstance(value.get("content_block"), Mapping):
            blocks = enumerate([value["content_block"]], value.get("index", 0))
        for index, block in blocks:
            if block.get("type") == "tool_use":
                given = block.get("input")
                self._add_call("", index, block.get("name"), given if given else "")
            self._take_block(block)
        delta = value.get("delta") or {}
        if delta.get("type") == "input_json_delta":
            self._add_call("", value.get("index", 0), "", delta.get("partial_json"))
        self._take_block(delta)
        reason = delta.get("stop_reason") or message.get("stop_reason")
        if reason:
            self._say(TEXT, "").is_cut = reason == "max_tokens"
        if usage := value.get("usage") or message.get("usage"):
            self._count(usage.get("input_tokens"), usage.get("output_tokens"))

    def _take_block(self, block: Mapping[str, Any]) -> None:
        if block.get("text"):
            self._say(TEXT, block["text"])
        if block.get("thinking"):
            self._say(THINKING, block["thinking"])

    def _take_other(self, value: dict[str, Any]) -> None:
        """Take what is no text of a model: numbers by their places, the rest as sorted JSON."""
        usage = value.get("usage")
        if isinstance(usage, Mapping):
            self._count(usage.get("prompt_tokens"), usage.get("completion_tokens"))
        rest = split_numbers(value, "", self._reading.numbers)
        self._say(REST, json.dumps(rest, sort_keys=True, ensure_ascii=False))


def _sort(arguments: str) -> str:
    """Return the arguments of a call with their names in order; as they are if they are no JSON."""
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True, ensure_ascii=False)
    except ValueError:
        return arguments
