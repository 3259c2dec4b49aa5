"""The form of a capture: one request with its answer, as a JSON object in a file of its own.

docs/reference/captures.md describes it for other programs.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from vllama.base.errors import ConfigError
from vllama.base.log_context import Outcome
from vllama.base.meaning import says

VERSION = 1
"""Of the form; it changes only if programs that read the old one would misread the new one."""

Encoding = Literal["utf-8", "base64"]


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A request body."""

    encoding: Annotated[Encoding, says("`utf-8`, or `base64` for binary content")]
    data: Annotated[str, says("content, in `encoding`")]
    size_bytes: int
    cut: Annotated[bool, says("true if only the beginning was saved")] = False

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
    """A summary of a request. `model` is the requested name, "" if unknown."""

    method: str
    path: str
    model: str = ""


class CapturedRequest(RequestHead, frozen=True, kw_only=True):
    """A request."""

    headers: Annotated[Mapping[str, str | None], says("headers; possible secrets are null")]
    body: Annotated[Body, says("request body")]


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of a response."""

    status: Annotated[int, says("HTTP status; 0 if the client disconnected before the response")]
    content_type: Annotated[str, says("content type of the body")]
    size_bytes: int
    cut: Annotated[bool, says("true if only the beginning was saved")] = False


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a response body, with its time."""

    at_s: Annotated[float, says("seconds after the request")]
    data: Annotated[str, says("content, in the response's encoding")]


class CapturedAnswer(AnswerHead, frozen=True, kw_only=True):
    """A response, with the pieces of its body."""

    encoding: Annotated[Encoding, says("`utf-8`, or `base64` for binary content")]
    parts: Annotated[list[Piece], says("pieces of the body, with their times")]

    @property
    def is_stream(self) -> bool:
        """True if it came as a stream of events or lines."""
        return self.content_type.startswith(("text/event-stream", "application/x-ndjson"))

    @property
    def pieces(self) -> list[bytes]:
        """The bytes of each part."""
        return [decode(part.data, self.encoding) for part in self.parts]

    @property
    def content(self) -> bytes:
        """The bytes that were kept."""
        return b"".join(self.pieces)


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The model that served the request."""

    name: str
    digest: Annotated[str, says("digest of the model files")]
    format: Annotated[str, says("file format")]
    quantization: Annotated[str | None, says("quantization")] = None


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The engine that served the request, its settings and its request."""

    name: str
    version: Annotated[str, says("engine version")]
    context_length: int
    parallel: Annotated[int | None, says("number of slots")]
    threads: Annotated[int | None, says("number of threads")]
    gpu_layers: Annotated[int | None, says("number of layers on the GPU")]
    kv_cache_type: Annotated[str | None, says("data type of the KV cache")]
    flash_attention: Annotated[bool | None, says("true if flash attention is on")]
    extra_args: Annotated[tuple[str, ...], says("additional arguments")] = ()
    sampling: Annotated[
        Mapping[str, Any], says("last body sent to it, without messages, prompt and tools")
    ] = msgspec.field(default_factory=dict)


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """The durations of a request, from its arrival."""

    queued_s: Annotated[float, says("time in the queue, in seconds")] = 0.0
    load_s: Annotated[float, says("part of that time in which a model loaded")] = 0.0
    first_token_s: Annotated[float | None, says("time to first token")] = None
    total_s: Annotated[float, says("total time, in seconds")] = 0.0


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """The token counts of a request."""

    prompt: Annotated[int, says("prompt tokens")]
    generated: Annotated[int, says("generated tokens")]
    cached: Annotated[int | None, says("prompt tokens read from the cache")] = None
    estimated: Annotated[bool, says("true if response tokens were estimated")] = False
    per_s: Annotated[float | None, says("generated tokens per second")] = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The error at the end of a response."""

    message: Annotated[str, says("the error")]
    hint: str | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A capture without bodies."""

    format: Annotated[int, says("capture format version")] = VERSION
    id: Annotated[str, says("capture ID, unique in all captures")]
    request_id: Annotated[str, says("the client's request ID, or the capture's")]
    received_at: Annotated[str, says("time of the request's arrival")]
    vllama: Annotated[str, says("version of vllama")]
    client: str
    key: Annotated[str | None, says("name of the API key")]
    request: Annotated[RequestHead, says("request summary")]
    model: Annotated[Model | None, says("model that served the request")]
    engine: Annotated[Engine | None, says("engine that served the request")]
    settings: Annotated[Mapping[str, str], says("server settings that may affect responses")]
    times: Annotated[Times, says("durations")]
    answer: Annotated[AnswerHead, says("response summary")]
    outcome: Annotated[Outcome, says("outcome of the request")]
    error: Annotated[Failure | None, says("error at the end of the response")]
    tokens: Annotated[Tokens | None, says("token counts")]


class Capture(Summary, frozen=True, kw_only=True):
    """A capture with its bodies."""

    request: Annotated[CapturedRequest, says("the request")]
    answer: Annotated[CapturedAnswer, says("the response")]


class AnswerText(msgspec.Struct, frozen=True, kw_only=True):
    """One text of a response, joined from the pieces of a stream."""

    name: Annotated[
        str, says("`text`, `thinking`, `tool calls`, `error` or `answer`, with the choice number")
    ]
    text: Annotated[str, says("the text")]
    cut: Annotated[bool, says("true if it ended at the token limit")]


class ReadCapture(Capture, frozen=True, kw_only=True):
    """A capture with its bodies and the texts of the response."""

    texts: Annotated[list[AnswerText], says("texts of the response")]


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
    except (ValueError, RecursionError) as error:
        raise _make_error(name, str(error)) from None
    if found.format != VERSION:
        raise _make_error(name, f"format version {found.format}; this vllama reads {VERSION}")
    return found


def _make_error(name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"cannot read the capture '{name}': {reason}",
        hint="servers with --capture write such files: docs/reference/captures.md",
    )
