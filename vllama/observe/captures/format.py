"""The form of a capture: one request with its answer, as a JSON object in a file of its own.

docs/reference/captures.md describes it for other programs.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from vllama.base.errors import ConfigError
from vllama.base.outcome import Outcome

VERSION = 1
"""Of the form; it changes only if programs that read the old one would misread the new one."""

Encoding = Literal["utf-8", "base64"]


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request; `cut`: it had `size_bytes`, and only its beginning was kept."""

    encoding: Encoding
    data: str
    size_bytes: int
    cut: bool = False

    @classmethod
    def of(cls, content: bytes, size_bytes: int | None = None) -> Body:
        """Keep a body, or the beginning of one that has `size_bytes`."""
        encoding, (data,) = encode_parts([content])
        whole_bytes = len(content) if size_bytes is None else size_bytes
        is_cut = whole_bytes > len(content)
        return cls(encoding=encoding, data=data, size_bytes=whole_bytes, cut=is_cut)

    @property
    def content(self) -> bytes:
        """The bytes that were kept."""
        return decode(self.data, self.encoding)


class RequestHead(msgspec.Struct, frozen=True, kw_only=True):
    """What lists show of a request. `model` is the name that it asked for, "" if none is known."""

    method: str
    path: str
    model: str = ""


class CapturedRequest(RequestHead, frozen=True, kw_only=True):
    """A request. `headers` has null instead of each value that may be a secret."""

    headers: Mapping[str, str | None]
    body: Body


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """What lists show of an answer; `status` 0: the client left before there was one."""

    status: int
    content_type: str
    size_bytes: int
    cut: bool = False


class CapturedAnswer(AnswerHead, frozen=True, kw_only=True):
    """An answer. `parts` are the pieces of its body, each with its time in s after the request."""

    encoding: Encoding
    parts: list[tuple[float, str]]

    @property
    def is_stream(self) -> bool:
        """Whether it came as a stream of events or lines."""
        return self.content_type.startswith(("text/event-stream", "application/x-ndjson"))

    @property
    def pieces(self) -> list[bytes]:
        """The bytes of each part."""
        return [decode(data, self.encoding) for _, data in self.parts]

    @property
    def content(self) -> bytes:
        """The bytes that were kept."""
        return b"".join(self.pieces)


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The model that answered."""

    name: str
    digest: str
    format: str
    quantization: str | None = None


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The engine that answered, how it was started, and what it was sent beside the prompt.

    `sampling` is the body of the last call to the engine, without messages, prompt and tools.
    """

    name: str
    version: str
    context_length: int
    parallel: int | None
    threads: int | None
    gpu_layers: int | None
    kv_cache_type: str | None
    flash_attention: bool | None
    extra_args: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `queued_s` is the wait for a slot, `load_s` the part of it in which a model loaded.

    `first_token_s` and `total_s` are counted from when the request had been received.
    """

    queued_s: float = 0.0
    load_s: float = 0.0
    first_token_s: float | None = None
    total_s: float = 0.0


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request; `estimated`: those generated were counted by pieces of text."""

    prompt: int
    generated: int
    cached: int | None = None
    estimated: bool = False
    per_s: float | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The error that an answer ended with."""

    message: str
    hint: str | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A capture without bodies.

    `id` is unique in all captures; `request_id` is the client's own id, or the same. `key` is what
    may be shown of the client's key. `settings` are those of the server that were given and may
    change answers.
    """

    format: int = VERSION
    id: str
    request_id: str
    received_at: str
    vllama: str
    client: str
    key: str | None
    request: RequestHead
    model: Model | None
    engine: Engine | None
    settings: Mapping[str, str]
    times: Times
    answer: AnswerHead
    outcome: Outcome
    error: Failure | None
    tokens: Tokens | None


class Capture(Summary, frozen=True, kw_only=True):
    """A capture with its bodies."""

    request: CapturedRequest
    answer: CapturedAnswer


class AnswerText(msgspec.Struct, frozen=True, kw_only=True):
    """One text of an answer, put together from the pieces of a stream.

    `name` is `text`, `thinking`, `tool calls`, `error` or `answer`, with a number where an answer
    has several choices. `cut`: the limit of tokens ended it.
    """

    name: str
    text: str
    cut: bool


class ReadCapture(Capture, frozen=True, kw_only=True):
    """A capture with its bodies, and with what the answer says."""

    texts: list[AnswerText]


T = TypeVar("T", bound=Summary)


def encode_parts(parts: list[bytes]) -> tuple[Encoding, list[str]]:
    """Return parts as text if all of them are UTF-8, else as base64."""
    try:
        return "utf-8", [part.decode() for part in parts]
    except UnicodeDecodeError:
        return "base64", [base64.b64encode(part).decode() for part in parts]


def decode(data: str, encoding: Encoding) -> bytes:
    """Return the bytes that `encode_parts` has written."""
    return data.encode() if encoding == "utf-8" else base64.b64decode(data, validate=True)


def encode_capture(capture: Capture) -> bytes:
    """Return the content of a capture's file."""
    return msgspec.json.format(msgspec.json.encode(capture), indent=1) + b"\n"


def read_capture(content: bytes, name: str) -> Capture:
    """Read a capture of the file `name`. Raises ConfigError."""
    capture = _read(content, name, Capture)
    try:
        capture.request.body.content, capture.answer.content  # noqa: B018 - both are decoded
    except binascii.Error as error:
        raise _make_error(name, str(error)) from None
    return capture


def read_summary(content: bytes, name: str) -> Summary:
    """Read a capture of the file `name`, without its bodies. Raises ConfigError."""
    return _read(content, name, Summary)


def _read(content: bytes, name: str, kind: type[T]) -> T:
    try:
        found = msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _make_error(name, str(error)) from None
    if found.format != VERSION:
        raise _make_error(name, f"its form is {found.format}, and this vllama reads {VERSION}")
    return found


def _make_error(name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"cannot read the capture '{name}': {reason}",
        hint="a server with --capture writes such files: docs/reference/captures.md",
    )
