"""OpenAI's older route, `POST /v1/completions`, as Ollama serves it (contract §1.9).

A prompt is a turn of a conversation there, put into the model's own template; text that the client
has finished itself goes through with `raw`. Without `max_tokens` nothing but the context is a
limit. More than Ollama: lists of prompts, `n`, `echo`, `logprobs`. `best_of` changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from vllama.chat.engine.events import Choice, Chunk, decode_chunk
from vllama.chat.engine.traits import Traits
from vllama.chat.framing import DONE, sse
from vllama.chat.go_json import kind
from vllama.chat.logprobs import completion_logprobs
from vllama.chat.reply import EVENT_STREAM, Tap
from vllama.dialects.errors import openai_error, openai_error_object
from vllama.dialects.ollama.embeddings import is_tokens
from vllama.dialects.openai.choices import MAX_CHOICES, parse_n
from vllama.dialects.openai.read import Passage
from vllama.dialects.openai.whole import FINGERPRINT
from vllama.errors import BadRequest, VllamaError
from vllama.parsers.thinking import ThinkSplitter

MAX_LOGPROBS = 20
_OURS = (
    "prompt", "suffix", "echo", "raw", "n", "best_of", "logprobs", "max_tokens",
    "max_completion_tokens", "stream", "stream_options", "model", "messages", "tools",
    "tool_choice", "functions", "top_logprobs",
)  # fmt: skip
_encode = msgspec.json.Encoder().encode


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asked for; `fields` is the rest of its body, for the engine.

    `logprobs`: how many alternatives, None: no log probabilities at all. `max_tokens` None: no
    limit. `raw`: the prompt is not put into the model's template.
    """

    model: object
    prompts: tuple[str, ...]
    fields: Mapping[str, Any]
    suffix: str = ""
    echo: bool = False
    raw: bool = False
    n: int = 1
    logprobs: int | None = None
    max_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def loads(self) -> bool:
        """Whether it only loads the model: Ollama's meaning of an empty prompt."""
        return self.prompts == ("",) and not self.suffix

    def chat(self, prompt: str) -> dict[str, Any]:
        """Return one prompt as a chat request in OpenAI's form."""
        body = self._common() | {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
        }
        if self.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": self.logprobs}
        return body

    def completion(self, prompt: str | Sequence[int]) -> dict[str, Any]:
        """Return one prompt, or its tokens, as a request for a completion of finished text."""
        body = self._common() | {"prompt": prompt}
        if self.logprobs is not None:
            body["logprobs"] = max(1, self.logprobs)  # engines read 0 as none
        return body

    def _common(self) -> dict[str, Any]:
        return {
            **self.fields,
            "model": self.model,
            "stream": self.stream,
            "max_tokens": self.max_tokens,
        }


def parse_completion(body: Mapping[str, Any]) -> CompletionRequest:
    """Parse a decoded body. Raises BadRequest."""
    data = {name: value for name, value in body.items() if value is not None}
    prompts, n = _prompts(data.get("prompt", "")), parse_n(data.get("n"))
    if len(prompts) * n > MAX_CHOICES:
        raise BadRequest(
            f"cannot make {len(prompts) * n} choices: {MAX_CHOICES} are the most",
            hint="send the prompts in several requests",
        )
    options = data.get("stream_options", {})
    if not isinstance(options, Mapping):
        _refuse("stream_options", "an object", options)
    limit = data.get("max_completion_tokens", data.get("max_tokens"))
    if limit is not None:
        limit = _integer("max_tokens", limit)
    return CompletionRequest(
        model=data.get("model"),
        prompts=prompts,
        fields={name: value for name, value in data.items() if name not in _OURS},
        suffix=_text(data, "suffix"),
        echo=_flag(data, "echo"),
        raw=_flag(data, "raw"),
        n=n,
        logprobs=_logprobs(data.get("logprobs")),
        max_tokens=None if limit is None or limit < 0 else limit,
        stream=_flag(data, "stream"),
        include_usage=options.get("include_usage") is True,
        ignored=("best_of",) if data.get("best_of", n) != n else (),
    )


def _prompts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return tuple(value)
    if is_tokens(value) or (isinstance(value, list) and value and all(map(is_tokens, value))):
        raise BadRequest(
            "cannot use 'prompt': token ids are not supported",
            hint="send the text; /api/detokenize turns tokens into it",
        )
    return _refuse("prompt", "a string or an array of strings", value)


def _logprobs(value: object) -> int | None:
    if value is None or value is False:
        return None
    count = 0 if value is True else _integer("logprobs", value)
    if not 0 <= count <= MAX_LOGPROBS:
        raise BadRequest(f"Invalid 'logprobs': expected 0 to {MAX_LOGPROBS}, but got {count}.")
    return count


def _integer(name: str, value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(name, "an integer", value)
    return value


def _flag(data: Mapping[str, Any], name: str) -> bool:
    value = data.get(name, False)
    return value if isinstance(value, bool) else _refuse(name, "a boolean", value)


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name, "")
    return value if isinstance(value, str) else _refuse(name, "a string", value)


def _refuse(name: str, wanted: str, value: object) -> NoReturn:
    raise BadRequest(
        f"Invalid type for '{name}': expected {wanted}, but got {kind(value)} instead."
    )


# -- the answer -------------------------------------------------------------------------------


class TextReply(Tap):
    """A completion for a client, made of an engine's chat or completion. Thinking is left out."""

    def __init__(
        self, passage: Passage, traits: Traits, *, echo: str = "", top: int = 0, **options: Any
    ) -> None:
        """`echo` comes before the answer. `top`: alternatives a token, of those the engine gave."""
        super().__init__(passage, traits, **options)
        if passage.stream:
            self.content_type = EVENT_STREAM
        self._splitter = ThinkSplitter(opened=self._opened, calls=False) if self._split else None
        self._echo = echo
        self._top = top
        self._size = 0  # characters so far, which offsets are counted in
        self._head: dict[str, Any] = {}
        self._texts: list[str] = []
        self._logprobs: dict[str, list[Any]] = {}

    def finish(self, now_ns: int) -> bytes:
        """Return the end of the stream, or the whole object. Raises EngineCrashed if cut."""
        out: list[bytes] = []
        self._take_rest(now_ns, out)
        if not self._passage.stream:
            text, reason = "".join(self._texts), self._finish_reason
            choice = choice_of(text, reason, self._logprobs or None)
            return _encode({**self._head, "choices": [choice], "usage": self._usage_object()})
        if self._passage.include_usage:
            closing = {**self._head, "choices": [], "usage": self._usage_object()}
            out.append(sse(_encode(closing)))
        out.append(sse(DONE))
        return b"".join(out)

    def fail(self, error: VllamaError) -> bytes:
        """Return an error event and the end, or an error's body."""
        if not self._passage.stream:
            return openai_error(error)[1]
        return sse(_encode(openai_error_object(error))) + sse(DONE)

    def _take(self, payloads: list[bytes], now_ns: int, out: list[bytes]) -> None:
        for payload in payloads:
            if payload == DONE:
                self.ended = True
                continue
            chunk = decode_chunk(payload)
            self._watch(chunk, now_ns)
            for choice in chunk.choices or ():
                if choice.index == 0:
                    self._choice(choice, chunk, now_ns, out)

    def _choice(self, choice: Choice, chunk: Chunk, now_ns: int, out: list[bytes]) -> None:
        text = (choice.text if choice.delta is None else choice.delta.content) or ""
        if self._splitter is not None:
            text = self._splitter.feed(text)[1]
            if choice.finish_reason is not None:
                text += self._splitter.finish()[1]
        before = ""
        if not self._head:
            self._head = head_of(self._passage.model, now_ns, chunk.id or "", chunk.created)
            before = self._echo
        start = self._size + len(before)
        logprobs = completion_logprobs(choice.logprobs, start, self._top)
        text = before + text
        self._size += len(text)
        self._texts.append(text)
        if not self._passage.stream:
            for name, values in (logprobs or {}).items():
                self._logprobs.setdefault(name, []).extend(values)
        elif text or logprobs or choice.finish_reason is not None:
            said = choice_of(text, choice.finish_reason, logprobs)
            out.append(sse(_encode({**self._head, "choices": [said]})))


def head_of(model: str, now_ns: int, identity: str, created_s: int | None = None) -> dict[str, Any]:
    """Return the fields that every object of one completion begins with."""
    made = identity.removeprefix("chatcmpl-").removeprefix("cmpl-") or f"{now_ns:x}"
    return {
        "id": f"cmpl-{made}",
        "object": "text_completion",
        "created": created_s or now_ns // 1_000_000_000,
        "model": model,
        "system_fingerprint": FINGERPRINT,
    }


def choice_of(text: str, reason: str | None, logprobs: object = None) -> dict[str, Any]:
    """Return one choice; chunks of the middle have no reason."""
    return {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": reason}


def answer_without_engine(
    asked: CompletionRequest, model: str, now_ns: int, identity: str
) -> bytes:
    """Answer what needs no token: an empty prompt (it loads), or a limit of none."""
    head = head_of(model, now_ns, identity)
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    choices = [
        choice_of(prompt if asked.echo else "", "load" if asked.loads else "length")
        | {"index": number}
        for number, prompt in enumerate(p for p in asked.prompts for _ in range(asked.n))
    ]
    if not asked.stream:
        return _encode({**head, "choices": choices, "usage": usage})
    events = [{**head, "choices": [choice]} for choice in choices]
    if asked.include_usage:
        events.append({**head, "choices": [], "usage": usage})
    return b"".join(sse(_encode(event)) for event in events) + sse(DONE)
