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
    """The body of a request."""

    encoding: Annotated[Encoding, says("`utf-8`, or `base64` for what is not text")]
    data: Annotated[str, says("the content, in `encoding`")]
    size_bytes: int
    cut: Annotated[bool, says("whether only the beginning was saved")] = False

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
    """Summary of a request for lists. `model` is the requested name, "" if none is known."""

    method: str
    path: str
    model: str = ""


class CapturedRequest(RequestHead, frozen=True, kw_only=True):
    """A request."""

    headers: Annotated[
        Mapping[str, str | None], says("the headers, with null for what may be a secret")
    ]
    body: Annotated[Body, says("the body")]


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a response for lists."""

    status: Annotated[int, says("the HTTP status; 0 if the client left before there was one")]
    content_type: Annotated[str, says("the type of the body")]
    size_bytes: int
    cut: Annotated[bool, says("whether only the beginning was saved")] = False


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A piece of an answer's body, and when it came: seconds after the request."""

    at_s: Annotated[float, says("seconds after the request")]
    data: Annotated[str, says("the piece, in the response's encoding")]


class CapturedAnswer(AnswerHead, frozen=True, kw_only=True):
    """An answer, with the pieces of its body."""

    encoding: Annotated[Encoding, says("`utf-8`, or `base64` for what is not text")]
    parts: Annotated[list[Piece], says("the pieces of the body, each with its time")]

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
    """The model that answered."""

    name: str
    digest: Annotated[str, says("the digest of its files")]
    format: Annotated[str, says("the format of its files")]
    quantization: Annotated[str | None, says("the quantization of its files")] = None


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The engine that answered, how it was started, and what it was sent beside the prompt."""

    name: str
    version: Annotated[str, says("the engine's version")]
    context_length: int
    parallel: Annotated[int | None, says("how many requests it works on at once")]
    threads: Annotated[int | None, says("how many threads it has")]
    gpu_layers: Annotated[int | None, says("how many layers are on the GPU")]
    kv_cache_type: Annotated[str | None, says("the type of the numbers in its cache")]
    flash_attention: Annotated[bool | None, says("whether it uses flash attention")]
    extra_args: Annotated[tuple[str, ...], says("arguments that the user added")] = ()
    sampling: Annotated[
        Mapping[str, Any], says("the last body it was sent, without messages, prompt and tools")
    ] = msgspec.field(default_factory=dict)


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of a request, from its receipt."""

    queued_s: Annotated[float, says("the wait for a slot, in seconds")] = 0.0
    load_s: Annotated[float, says("the part of the wait in which a model loaded")] = 0.0
    first_token_s: Annotated[float | None, says("from the request to the first token")] = None
    total_s: Annotated[float, says("from the request to the end of the response, in seconds")] = 0.0


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request."""

    prompt: Annotated[int, says("the tokens of the prompt")]
    generated: Annotated[int, says("the tokens of the response")]
    cached: Annotated[int | None, says("the tokens of the prompt that needed no work")] = None
    estimated: Annotated[bool, says("the response's were counted by pieces of text")] = False
    per_s: Annotated[float | None, says("generated tokens per second")] = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The error that an answer ended with."""

    message: Annotated[str, says("the error")]
    hint: str | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A capture without bodies."""

    format: Annotated[int, says("the version of this form")] = VERSION
    id: Annotated[str, says("the capture's id, unique in all captures")]
    request_id: Annotated[str, says("the client's id of the request, or the capture's")]
    received_at: Annotated[str, says("when the request had been received")]
    vllama: Annotated[str, says("the version of vllama")]
    client: str
    key: Annotated[str | None, says("the name of the API key")]
    request: Annotated[RequestHead, says("what was asked")]
    model: Annotated[Model | None, says("the model that answered")]
    engine: Annotated[Engine | None, says("the engine that answered")]
    settings: Annotated[
        Mapping[str, str], says("settings of the server that were given and may change responses")
    ]
    times: Annotated[Times, says("how long it took")]
    answer: Annotated[AnswerHead, says("the response")]
    outcome: Annotated[Outcome, says("how it ended")]
    error: Annotated[Failure | None, says("the error that the response ended with")]
    tokens: Annotated[Tokens | None, says("the counts of tokens")]


class Capture(Summary, frozen=True, kw_only=True):
    """A capture with its bodies."""

    request: Annotated[CapturedRequest, says("what was asked")]
    answer: Annotated[CapturedAnswer, says("the response")]


class AnswerText(msgspec.Struct, frozen=True, kw_only=True):
    """One text of an answer, put together from the pieces of a stream."""

    name: Annotated[
        str, says("`text`, `thinking`, `tool calls`, `error` or `answer`, with the choice's number")
    ]
    text: Annotated[str, says("the text")]
    cut: Annotated[bool, says("whether the limit of tokens ended it")]


class ReadCapture(Capture, frozen=True, kw_only=True):
    """A capture with its bodies, and with what the answer says."""

    texts: Annotated[list[AnswerText], says("what the response says")]


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
        raise _make_error(name, f"its form is {found.format}, and this vllama reads {VERSION}")
    return found


def _make_error(name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"cannot read the capture '{name}': {reason}",
        hint="a server with --capture writes such files: docs/reference/captures.md",
    )
