"""Vectors: what engines answer, and the arithmetic that is left to vllama.

llama.cpp's Python server gives one vector per token. Pure Python: a few hundred tokens of a few
hundred numbers take milliseconds, numpy's import more.

See docs/reference/ollama-api.md#embed, #openai-embeddings-and-models;
docs/reference/engines.md#llama-cpp-python-embeddings.
"""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add, itemgetter
from typing import Any, TypeAlias

import msgspec

from vllama.base.errors import BadRequest, ModelNotFound, UpstreamError
from vllama.chat.engine.claims import read_usage
from vllama.chat.engine.traits import Traits, VectorStyle
from vllama.dialects.ollama.request_types import EmbedBody, LegacyEmbedBody

MAX_VECTOR_BYTES = 512 * 1024  # of JSON; models have 16,384 numbers at most

ENCODINGS = ["float", "base64"]
"""How `/v1/embeddings` may write a vector."""

Vector: TypeAlias = list[float]
Input: TypeAlias = str | list[int]
"""What one vector is made of: a text, or the tokens of one."""


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for vectors. `dimensions` 0: all; `encoding` is float or base64.

    `legacy`: it came to the older route, `/api/embeddings`.
    """

    model: str
    inputs: tuple[Input, ...] = ()
    truncate: bool = True
    dimensions: int = 0
    encoding: str = "float"
    keep_alive: float | None = None
    options: Mapping[str, object] = {}
    legacy: bool = False


def parse_embeddings(data: Mapping[str, Any]) -> EmbedRequest:
    """Parse the decoded body of `POST /v1/embeddings`. "" is an input as any other.

    Tokens, which Ollama refuses, are taken as OpenAI takes them. Raises BadRequest, and
    ModelNotFound without a model, which Ollama misses before it looks at the kind of input.
    """
    dimensions = max(0, int(data.get("dimensions") or 0))
    encoding = data.get("encoding_format") or "float"
    if (known := encoding.lower()) not in ENCODINGS:
        raise BadRequest(
            f"Invalid value for 'encoding_format' = {encoding[:80]}. Supported values: {ENCODINGS}."
        )
    model, given = data.get("model"), data.get("input")
    if given is None or given == []:
        raise BadRequest("invalid input")
    if not model:
        raise ModelNotFound("", message="model '' not found")
    return EmbedRequest(model=model, inputs=_inputs(given), dimensions=dimensions, encoding=known)


def _inputs(given: object) -> tuple[Input, ...]:
    """Read a text, texts, tokens, or lists of tokens."""
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, list):
        raise BadRequest("invalid input type")
    if all(isinstance(item, str) for item in given):
        return tuple(given)
    if is_tokens(given):
        return ([int(token) for token in given],)
    if all(is_tokens(item) for item in given):
        return tuple([int(token) for token in item] for item in given)
    raise BadRequest("invalid input type")


def is_tokens(value: object) -> bool:
    """Tell whether a value is a list of tokens, at least one; `3.0` is one, as in JSON Schema."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            not isinstance(item, bool)
            and (isinstance(item, int) or (isinstance(item, float) and item.is_integer()))
            for item in value
        )
    )


def read_embed(body: EmbedBody) -> EmbedRequest:
    """Read `POST /api/embed`. Raises BadRequest for an input that is neither a text nor texts.

    A context of nothing is the default, but for who asks to cut an input to it.
    """
    match given := body.input:
        case None | "":
            inputs: tuple[str, ...] = ()
        case str():
            inputs = (given,)
        case list() if all(isinstance(item, str) for item in given):
            inputs = tuple(given)
        case _:
            raise BadRequest("invalid input type")
    if inputs and body.truncate and body.options.get("num_ctx", -1) == 0:
        raise BadRequest("input after truncation exceeds maximum context length")
    return EmbedRequest(
        model=body.model,
        inputs=inputs,
        truncate=body.truncate is not False,
        dimensions=max(0, body.dimensions),
        keep_alive=body.keep_alive,
        options=body.options,
    )


def read_legacy_embed(body: LegacyEmbedBody) -> EmbedRequest:
    """Read `POST /api/embeddings`; this older route never cuts."""
    return EmbedRequest(
        model=body.model,
        inputs=(body.prompt,) if body.prompt else (),
        truncate=False,
        keep_alive=body.keep_alive,
        options=body.options,
        legacy=True,
    )


class _Item(msgspec.Struct):
    embedding: msgspec.Raw
    index: int | None = None


class _Answer(msgspec.Struct):
    data: list[_Item]
    usage: msgspec.Raw = msgspec.Raw()


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_flat = msgspec.json.Decoder(list[float]).decode
_decode_rows = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


def decode_embeddings(body: bytes, traits: Traits) -> tuple[list[Vector], int]:
    """Read an engine's `/v1/embeddings` answer: one vector an input, and the prompt's tokens.

    Vectors of single tokens are pooled. Raises UpstreamError.
    """
    try:
        answer = _decode_answer(body)
        places = [
            place if item.index is None else item.index for place, item in enumerate(answer.data)
        ]
        rows = sorted(zip(places, answer.data, strict=True), key=itemgetter(0))
        vectors = [_vector(bytes(item.embedding), traits) for _, item in rows]
    except (ValueError, RecursionError) as error:
        raise UpstreamError("cannot read the embeddings of the engine") from error
    return vectors, read_usage(answer.usage, "token usage of embeddings").get("prompt_tokens") or 0


def pool(per_token_vectors: Iterable[Sequence[float]]) -> Vector:
    """Return the mean of the tokens' vectors, L2-normalized; [] for none."""
    sums: Sequence[float] = []
    count = 0
    for vector in per_token_vectors:
        if count and len(vector) != len(sums):
            raise ValueError("embeddings differ in length")
        sums = [*map(add, sums, vector)] if count else vector
        count += 1
    return normalize([total / count for total in sums])


def normalize(vector: Sequence[float]) -> Vector:
    """Return `vector` with length 1; one of zeros stays as it is."""
    length = math.hypot(*vector)
    if length == 0 or not math.isfinite(length):
        return list(vector)
    return [value / length for value in vector]


def truncate_dimensions(vector: Sequence[float], dimensions: int) -> Vector:
    """Keep the first `dimensions` numbers and normalize again; 0 keeps all."""
    if dimensions <= 0 or dimensions >= len(vector):
        return list(vector)
    return normalize(vector[:dimensions])


def write_float32s(vector: Sequence[float]) -> str:
    """Return a JSON array of float32 numbers; nine digits always give the same ones again.

    Ollama's `/api/embed` and `/v1/embeddings` have numbers of that size. Raises UpstreamError if
    one is not finite: JSON has no word for it.
    """
    return f"[{','.join([f'{number:.9g}' for number in _single(vector)])}]"


def write_float64s(vector: Sequence[float]) -> str:
    """Return the same numbers with the digits of a double, as the older `/api/embeddings` has them.

    Raises what `write_float32s` raises.
    """
    return msgspec.json.encode(_single(vector)).decode()


def _single(vector: Sequence[float]) -> list[float]:
    numbers = array("f", vector).tolist()
    if not math.isfinite(sum(numbers)):
        raise UpstreamError("the engine returned an embedding with a NaN or infinite value")
    return numbers


def finish_vector(
    vector: Sequence[float],
    *,
    dimensions: int = 0,
    form: Callable[[Sequence[float]], str] = write_float32s,
) -> msgspec.Raw:
    """Return an engine's vector as the JSON that a client gets: normalized, cut to `dimensions`.

    `form` writes it: `write_float32s`, `write_float64s` or `write_base64`. Raises UpstreamError.
    """
    return msgspec.Raw(form(truncate_dimensions(normalize(vector), dimensions)).encode())


def _vector(raw: bytes, traits: Traits) -> Vector:
    start = raw.lstrip()[:1]
    if start == b'"' and len(raw) <= MAX_VECTOR_BYTES:
        return _from_base64(_decode_text(raw))
    if traits.vector_style is VectorStyle.PER_TOKEN or raw.lstrip()[1:].lstrip()[:1] == b"[":
        try:
            # one by one: a thread that decodes many at once holds the interpreter's lock
            return pool(_decode_numbers(bytes(row)) for row in _decode_rows(raw))
        except msgspec.ValidationError:
            pass  # a model with a pooling of its own, on an engine that seldom has one
    return _decode_numbers(raw)


def _decode_numbers(raw: bytes) -> Vector:
    if len(raw) > MAX_VECTOR_BYTES:
        raise ValueError("too long")
    return _decode_flat(raw)


def write_base64(vector: Sequence[float]) -> str:
    """Return a JSON string: the numbers as float32, little-endian, in base64."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return f'"{base64.b64encode(numbers.tobytes()).decode()}"'


def _from_base64(text: str) -> Vector:
    numbers = array("f")
    numbers.frombytes(base64.b64decode(text, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
