"""Looking inside a model: what a request collects of it, and how it is steered.

The `inspect` field is the same in all dialects. What it becomes for an engine, and how that engine
reports what it has collected, is the business of an `Inspector`, which the engine's traits name.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import msgspec

from vllama.base.errors import BadRequest, UpstreamError
from vllama.base.meaning import says
from vllama.chat.framing import DONE

MOST_LAYERS = 4096
MOST_VECTORS = 64
MOST_STRENGTH = 3.4e38
"""The largest number in float32, which engines compute with, is a little more."""
Dtype = Literal["float32", "float16", "bfloat16"]
ORDER = "layer, token, value"
# JSON's 3.0 is a whole number, too
_Layer = Annotated[float, says(minimum=0, maximum=MOST_LAYERS, multipleOf=1)]
Layers = Annotated[
    tuple[_Layer, ...],
    msgspec.Meta(min_length=1, max_length=MOST_LAYERS, description="layer numbers, from 0"),
]


class Collect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data to return with the response; `residual`: the residual stream after these layers."""

    residual: Layers


class Steer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A steering vector, added `strength` times after each of `layers`."""

    vector: Annotated[tuple[float, ...], says("values of the vector", minItems=1)]
    layers: Layers
    strength: Annotated[
        float, says("a factor"), msgspec.Meta(ge=-MOST_STRENGTH, le=MOST_STRENGTH)
    ] = 1.0


class Inspect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The field `inspect` of a request."""

    collect: Collect | None = None
    steer: Annotated[tuple[Steer, ...], msgspec.Meta(max_length=MOST_VECTORS)] = ()


def read_inspect(value: object) -> Inspect | None:
    """Return the field of a decoded body, None if it asks for nothing. Raises BadRequest."""
    if value is None:
        return None
    try:
        asked = msgspec.convert(value, Inspect)
    except msgspec.ValidationError as error:
        raise BadRequest(
            f"cannot read 'inspect': {error}",
            hint="send a vector as a list of numbers, not as a name: "
            '{"collect": {"residual": [10]}, "steer": [{"vector": [0.1, -0.2], "layers": [15], '
            '"strength": 0.3}]}',
        ) from None
    return asked if asked.collect or asked.steer else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """A checked `Steer`; `vector` is in float32, little-endian."""

    vector: bytes
    layers: tuple[int, ...]
    strength: float


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """The residual stream after the requested layers, for the tokens of prompt and response.

    The last token of a response is missing: it passes through no layer.
    """

    dtype: Annotated[Dtype, says("data type of the values")]
    shape: Annotated[Sequence[int], says("numbers of layers, tokens, and values")]
    order: Annotated[str, says("order of the values: `layer, token, value`")] = ORDER
    layers: Annotated[Sequence[int], says("layer numbers, from 0")]
    token_ids: Annotated[Sequence[int], says("token IDs")]
    tokens: Annotated[Sequence[str], says("token texts")]
    data: Annotated[str, says("base64-encoded values, little-endian")]


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """Data collected inside a model during a response."""

    residual: Annotated[Residual, says("residual stream")]


MaybeInspected = Annotated[Inspected | msgspec.UnsetType, says("collected activations and logits")]


class Inspector(Protocol):
    """Requests to one engine to collect and steer, and the parser of its reports."""

    def ask(self, layers: Sequence[int], steering: Sequence[Steering], /) -> Mapping[str, Any]:
        """Return the fields to add to a request; no `layers`: nothing is collected."""

    def read(self, answer: bytes, layers: Sequence[int], /) -> Residual:
        """Return the collected data of a whole response, without texts. Raises UpstreamError."""


def check_single(asked: Inspect | None, choices: int) -> None:
    """Raise BadRequest if something is to be collected of several choices."""
    if asked is not None and asked.collect is not None and choices > 1:
        raise BadRequest(
            f"cannot collect from {choices} choices", hint="send one prompt with n = 1"
        )


def check_layers(layers: Sequence[float], count: int, model: str) -> tuple[int, ...]:
    """Return layers in order, each once. Raises BadRequest for one that the model lacks."""
    for layer in layers:
        if not (0 <= layer < count and layer == int(layer)):
            raise BadRequest(f"cannot inspect layer {layer:g}: {model} has layers 0 to {count - 1}")
    return tuple(sorted(set(map(int, layers))))


def pack_vector(values: Sequence[float], width: int, model: str) -> bytes:
    """Return a vector in float32. Raises BadRequest for a wrong length or size of numbers."""
    if len(values) != width:
        raise BadRequest(
            f"cannot steer: the vector has {len(values)} values; {model} needs {width}"
        )
    try:
        packed = struct.pack(f"<{width}f", *values)
    except (OverflowError, struct.error):
        packed = b""
    if not packed or not all(map(math.isfinite, values)):
        raise BadRequest("cannot steer: the vector has values that float32 cannot hold")
    return packed


class WholeReader:
    """Keeps an answer that comes as one object, which becomes one event.

    Engines that trim what they have collected to the last piece of a stream collect all of it for
    a whole answer only.
    """

    pending = False  # of a stream's event

    def __init__(self, limit_bytes: float) -> None:
        self.body = bytearray()
        self._limit = limit_bytes

    def feed(self, chunk: bytes) -> list[bytes]:
        """Keep bytes; once the answer is whole, return it as an event, and the end.

        Raises UpstreamError for more than can have been asked for.
        """
        self.body += chunk
        if len(self.body) > self._limit:
            raise UpstreamError("the engine sent a longer response than requested")
        if not chunk.rstrip().endswith(b"}"):
            return []
        try:
            whole = msgspec.json.decode(self.body, type=dict[str, msgspec.Raw])
        except (ValueError, RecursionError):  # the end of an inner object
            return []
        kept = {name: whole[name] for name in _KEPT if name in whole}
        return [msgspec.json.encode(kept), DONE]

    def close(self) -> list[bytes]:
        """Return nothing: an answer that is not whole by now is none."""
        return []


_KEPT = ("choices", "id", "created", "model", "usage", "error")
