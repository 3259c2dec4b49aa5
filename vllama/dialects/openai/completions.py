"""OpenAI's older route, `POST /v1/completions`, as Ollama serves it or as the engine does.

With Ollama a prompt is a turn of a conversation, put into the model's own template; text that the
client has finished itself goes through with `raw`. Without `max_tokens` nothing but the context is
a limit. More than Ollama: lists of prompts, `n`, `echo`, `logprobs`. `best_of` changes nothing.

An engine that has OpenAI's route in full answers itself, unless `raw` is false (decision 39).

See docs/reference/ollama-api.md#openai-completions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from vllama.base.errors import BadRequest, VllamaError
from vllama.chat.engine.events import Chunk, ChunkChoice, Event
from vllama.chat.engine.field_limits import fit_field
from vllama.chat.event_template import EventTemplate
from vllama.chat.framing import DONE, frame_event
from vllama.chat.inspect import WholeReader
from vllama.chat.logprobs import convert_completion_logprobs
from vllama.chat.request import ChatRequest
from vllama.chat.tally import Tally
from vllama.chat.writer import EVENT_STREAM, JSON, ReplyOptions
from vllama.dialects.errors import make_openai_error
from vllama.dialects.openai.choices import NthChoice
from vllama.dialects.openai.extras import NOTHING, Extras, refuse_type
from vllama.dialects.openai.read import read_chat
from vllama.dialects.openai.write import FINGERPRINT

_OURS = (
    "prompt", "suffix", "echo", "raw", "n", "best_of", "logprobs", "max_tokens",
    "max_completion_tokens", "stream", "stream_options", "model", "messages", "tools",
    "tool_choice", "functions", "top_logprobs",
)  # fmt: skip


MAX_TEXTS = 2048
"""OpenAI's own limit of a list of inputs."""


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for a completion; `fields` is the rest of its body, for the engine.

    `logprobs`: how many alternatives, None: no log probabilities at all. `max_tokens` None: no
    limit. `raw`: the prompt is not put into the model's template; None: as the engine has it.
    """

    model: str
    prompts: tuple[str | Sequence[int], ...]
    fields: Mapping[str, Any]
    suffix: str = ""
    echo: bool = False
    raw: bool | None = None
    n: int = 1
    logprobs: int | None = None
    max_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False
    ignored: tuple[str, ...] = ()
    sent: object = ""  # the prompt or prompts as they came

    @property
    def loads(self) -> bool:
        """True if it only loads the model: Ollama's meaning of an empty prompt."""
        return self.prompts == ("",) and not self.suffix

    def read_prompt(
        self,
        prompt: str | Sequence[int],
        extras: Extras = NOTHING,
        *,
        truncate: bool | None,
        raw: bool | None = None,
    ) -> ChatRequest:
        """Return the request for one prompt, `raw` unless the client says. Raises BadRequest."""
        text = prompt if isinstance(prompt, str) else ""
        tokens = tuple(prompt) if isinstance(prompt, list) else ()
        fields = {
            **self.fields,
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "stream": self.stream,
            "stream_options": {"include_usage": self.include_usage},
            "max_tokens": self.max_tokens,
            "logprobs": self.logprobs is not None,
            "top_logprobs": self.logprobs,
        }
        chat = read_chat(fields, extras, truncate=truncate)
        raw = bool(raw if self.raw is None else self.raw)
        if not (raw or self.suffix):
            return chat
        return msgspec.structs.replace(
            chat, messages=(), prompt=text, context=tokens, suffix=self.suffix, raw=raw
        )


def parse_completion(body: Mapping[str, Any]) -> CompletionRequest:
    """Parse a decoded body. Raises BadRequest."""
    data = {name: value for name, value in body.items() if value is not None}
    given, n = data.get("prompt", ""), int(data.get("n", 1))
    prompts = (given,) if isinstance(given, str) or isinstance(given[0], int) else tuple(given)
    if len(prompts) * n > MAX_TEXTS:
        raise BadRequest(
            f"cannot generate {len(prompts) * n} choices: the limit is {MAX_TEXTS}",
            hint="split the prompts across several requests",
        )
    logprobs = fit_field("logprobs", data.get("logprobs"))
    stop = data.get("stop")
    for number, item in enumerate(stop if isinstance(stop, list) else ()):
        if not isinstance(item, str):
            refuse_type(f"stop[{number}]", "a string", item)
    limit = data.get("max_completion_tokens", data.get("max_tokens"))
    return CompletionRequest(
        model=data.get("model", ""),
        prompts=prompts,
        fields={name: value for name, value in data.items() if name not in _OURS},
        suffix=data.get("suffix", ""),
        echo=data.get("echo") is True,
        raw=data.get("raw"),
        n=n,
        logprobs=None if logprobs is None else int(logprobs),
        max_tokens=None if limit is None or limit < 0 else int(limit),
        stream=data.get("stream", False),
        include_usage=data.get("stream_options", {}).get("include_usage") is True,
        ignored=("best_of",) if data.get("best_of", n) != n else (),
        sent=given,
    )


_encode = msgspec.json.Encoder().encode


class TextWriter:
    """A completion for a client, made of an engine's chat or completion. Thinking is left out."""

    def __init__(
        self, options: ReplyOptions, *, echo: str = "", top: int = 0, part: NthChoice | None = None
    ) -> None:
        """`echo` comes before the answer. `top`: alternatives a token, of those the engine gave."""
        self.content_type = EVENT_STREAM if options.stream else JSON
        self.streams = options.stream
        self.template = EventTemplate(tries=0)  # offsets are counted: every event is looked at
        self._options = options
        self._part = part
        self._echo = echo
        self._top = top
        self._size = 0  # characters so far, which offsets are counted in
        self._head: dict[str, Any] = {}
        self._texts: list[str] = []
        self._logprobs: dict[str, list[Any]] = {}
        self._finish_reason: str | None = None
        self._begun = False

    def write(self, event: Event, tally: Tally, now_ns: int) -> bytes:
        """Return one event, or keep it for the end."""
        choices = event.chunk.choices or ()
        out = [self._choice(one, event.chunk, now_ns) for one in choices if one.index == 0]
        return b"".join(out)

    def finish(self, tally: Tally, now_ns: int) -> bytes:
        """Return the end of the stream, or the whole object."""
        usage, part = tally.usage_object, self._part
        if not self.streams:
            choice = make_choice("".join(self._texts), self._finish_reason, self._logprobs or None)
            return _encode({**self._head, "choices": [choice], "usage": usage, **tally.collected})
        if part is not None:
            usage = part.add(tally.usage)
            if not part.is_last:
                return b""
        out = b""
        if tally.collected:
            out = frame_event(_encode({**self._head, "choices": [], **tally.collected}))
        if self._options.include_usage:
            out += frame_event(_encode({**self._head, "choices": [], "usage": usage}))
        return out + frame_event(DONE)

    def fail(self, error: VllamaError) -> bytes:
        """Return an error event and the end, or an error's body."""
        if not self.streams:
            return _encode(make_openai_error(error))
        return frame_event(_encode(make_openai_error(error))) + frame_event(DONE)

    def _choice(self, choice: ChunkChoice, chunk: Chunk, now_ns: int) -> bytes:
        text = (choice.text if choice.delta is None else choice.delta.said) or ""
        before = ""
        if not self._head:
            if self._part is not None:
                self._part.identify(chunk)
            self._head = make_head(self._options.model, now_ns, chunk.id or "", chunk.created)
            before = self._echo
        logprobs = convert_completion_logprobs(choice.logprobs, self._size + len(before), self._top)
        text = before + text
        self._size += len(text)
        self._finish_reason = choice.finish_reason or self._finish_reason
        if not self.streams:
            self._texts.append(text)
            for name, values in (logprobs or {}).items():
                self._logprobs.setdefault(name, []).extend(values)
            return b""
        if not (text or logprobs or choice.finish_reason is not None):
            return b""
        index = 0 if self._part is None else self._part.index
        said = [make_choice(text, choice.finish_reason, logprobs) | {"index": index}]
        if not self._begun and not text and choice.finish_reason == "length":
            said.insert(0, make_choice("", None) | {"index": index})  # of tokens without text
        self._begun = True
        return b"".join(frame_event(_encode({**self._head, "choices": [one]})) for one in said)


class EngineTextWriter(TextWriter):
    """A completion as its engine has it, with whatever fields, but for the model's name.

    `whole` keeps the body of a response that does not stream.
    """

    def __init__(self, options: ReplyOptions, whole: WholeReader | None) -> None:
        super().__init__(options)
        self._whole = whole

    def write(self, event: Event, tally: Tally, now_ns: int) -> bytes:
        """Return one event; that of the usage only where the client asked for it."""
        if self._whole or not (event.chunk.choices or self._options.include_usage):
            return b""
        return frame_event(self._rename(event.payload))

    def finish(self, tally: Tally, now_ns: int) -> bytes:
        """Return the end of the stream, or the whole object."""
        return frame_event(DONE) if self._whole is None else self._rename(self._whole.body)

    def _rename(self, data: bytes | bytearray) -> bytes:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        return _encode(fields | {"model": self._options.model})


def make_head(
    model: str, now_ns: int, identity: str, created_s: int | None = None
) -> dict[str, Any]:
    """Return the fields that every object of one completion begins with."""
    made = identity.removeprefix("chatcmpl-").removeprefix("cmpl-") or f"{now_ns:x}"
    return {
        "id": f"cmpl-{made}",
        "object": "text_completion",
        "created": created_s or now_ns // 1_000_000_000,
        "model": model,
        "system_fingerprint": FINGERPRINT,
    }


def make_choice(text: str, reason: str | None, logprobs: object = None) -> dict[str, Any]:
    """Return one choice; chunks of the middle have no reason."""
    said = {} if logprobs is None else {"logprobs": logprobs}
    return {"text": text, "index": 0, **said, "finish_reason": reason}


def answer_without_engine(
    asked: CompletionRequest, model: str, now_ns: int, identity: str
) -> bytes:
    """Answer what needs no token: an empty prompt (it loads), or a limit of none."""
    head = make_head(model, now_ns, identity)
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    choices = [
        make_choice(str(prompt) if asked.echo else "", "load" if asked.loads else "length")
        | {"index": number}
        for number, prompt in enumerate(p for p in asked.prompts for _ in range(asked.n))
    ]
    if not asked.stream:
        return _encode({**head, "choices": choices, "usage": usage})
    events = [{**head, "choices": [choice]} for choice in choices]
    if asked.include_usage:
        events.append({**head, "choices": [], "usage": usage})
    return b"".join(frame_event(_encode(event)) for event in events) + frame_event(DONE)
