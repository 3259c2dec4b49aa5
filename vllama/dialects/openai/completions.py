"""OpenAI's older route, `POST /v1/completions`, as Ollama serves it.

A prompt is a turn of a conversation there, put into the model's own template; text that the client
has finished itself goes through with `raw`. Without `max_tokens` nothing but the context is a
limit. More than Ollama: lists of prompts, `n`, `echo`, `logprobs`. `best_of` changes nothing.

See docs/reference/ollama-api.md#openai-completions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from vllama.base.errors import BadRequest
from vllama.chat.go_json import kind
from vllama.chat.request import ChatRequest
from vllama.dialects.openai.choices import MAX_CHOICES, parse_n
from vllama.dialects.openai.extras import NOTHING, Extras
from vllama.dialects.openai.messages import GO_TYPES
from vllama.dialects.openai.read import read_chat
from vllama.dialects.openai_values import read_boolean, read_integer, refuse_type

MAX_LOGPROBS = 20
_OURS = (
    "prompt", "suffix", "echo", "raw", "n", "best_of", "logprobs", "max_tokens",
    "max_completion_tokens", "stream", "stream_options", "model", "messages", "tools",
    "tool_choice", "functions", "top_logprobs",
)  # fmt: skip


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

    def read_prompt(self, prompt: str, extras: Extras = NOTHING, *, truncate: bool) -> ChatRequest:
        """Return the request for one prompt. Raises BadRequest."""
        fields = {
            **self.fields,
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": self.stream,
            "stream_options": {"include_usage": self.include_usage},
            "max_tokens": self.max_tokens,
            "logprobs": self.logprobs is not None,
            "top_logprobs": self.logprobs,
        }
        chat = read_chat(fields, extras, truncate=truncate)
        if not (self.raw or self.suffix):
            return chat
        return msgspec.structs.replace(
            chat, messages=(), prompt=prompt, suffix=self.suffix, raw=self.raw
        )


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
        refuse_type("stream_options", "an object", options)
    stop = data.get("stop")
    odd = [item for item in stop if not isinstance(item, str)] if isinstance(stop, list) else []
    if odd:
        raise BadRequest(f"invalid type for 'stop' field: {GO_TYPES[kind(odd[0])]}")
    limit = data.get("max_completion_tokens", data.get("max_tokens"))
    if limit is not None:
        limit = read_integer("max_tokens", limit)
    return CompletionRequest(
        model=data.get("model"),
        prompts=prompts,
        fields={name: value for name, value in data.items() if name not in _OURS},
        suffix=_text(data, "suffix"),
        echo=data.get("echo") is True,
        raw=read_boolean("raw", data.get("raw", False)),
        n=n,
        logprobs=_logprobs(data.get("logprobs")),
        max_tokens=None if limit is None or limit < 0 else limit,
        stream=read_boolean("stream", data.get("stream", False)),
        include_usage=options.get("include_usage") is True,
        ignored=("best_of",) if data.get("best_of", n) != n else (),
    )


def make_list_error() -> BadRequest:
    """Say of a list of prompts what Ollama says of all of them."""
    go_type = "Go struct field CompletionRequest.prompt of type string"
    return BadRequest(f"json: cannot unmarshal array into {go_type}")


def _prompts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise make_list_error()


def _logprobs(value: object) -> int | None:
    if value is None or value is False:
        return None
    count = 0 if value is True else read_integer("logprobs", value)
    if not 0 <= count <= MAX_LOGPROBS:
        raise BadRequest(f"Invalid 'logprobs': expected 0 to {MAX_LOGPROBS}, but got {count}.")
    return count


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name, "")
    return value if isinstance(value, str) else refuse_type(name, "a string", value)
