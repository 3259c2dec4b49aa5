"""Requests that look inside a model: checked, sent with the engine's fields, and read again."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from vllama.base import executors
from vllama.base.errors import BadRequest
from vllama.base.units import format_bytes_decimal
from vllama.chat.engine.traits import Traits
from vllama.chat.inspect import (
    Inspect,
    Inspected,
    Inspector,
    Steering,
    WholeReader,
    check_layers,
    pack_vector,
)
from vllama.chat.request import Call
from vllama.chat.tally import Tally
from vllama.models.lookup import Entry
from vllama.net.upstream.pool import Upstream
from vllama.routes.prompts.tokenizer import name_tokens

NUMBER_BYTES = 4  # of float32; others take half of it
BESIDE_BYTES = 1 << 20
"""Of an answer, beside what was collected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Collection of one request after `layers` of `width` numbers, none if it only steers."""

    inspector: Inspector
    traits: Traits
    layers: tuple[int, ...]
    width: int
    steering: tuple[Steering, ...]
    most_bytes: int

    def limit_answer(self, prompt_tokens: int, asked: int | None, window: int) -> int | None:
        """Return the most tokens of the answer, so that no more is collected than may be.

        Raises BadRequest if the prompt, or an answer of `asked` tokens, is too long for that.
        """
        if asked is not None:
            asked = min(asked, max(1, window - prompt_tokens))  # the context ends it there
        token_bytes = len(self.layers) * self.width * NUMBER_BYTES
        most = self.most_bytes // token_bytes - prompt_tokens + 1  # the last has been in no layer
        if most < max(1, asked or 0):
            tokens = prompt_tokens + max(0, (asked or 1) - 1)
            raise BadRequest(
                f"cannot collect {len(self.layers)} layers of {tokens} tokens: that takes up to "
                f"{format_bytes_decimal(tokens * token_bytes)}, and inspect_limit is "
                f"{format_bytes_decimal(self.most_bytes)}",
                hint="request fewer layers" + (f", or {most} tokens" if most > 0 else ""),
            )
        if asked == 0:
            raise BadRequest(
                "cannot collect activations without a response",
                hint="generate one token (num_predict, max_tokens) to collect the prompt's own",
            )
        return most if asked is None and most < window - prompt_tokens else asked

    def add_to(self, call: Call) -> Call:
        """Return the request to the engine with the fields that ask for it."""
        fields = {**call.fields, **self.inspector.ask(self.layers, self.steering)}
        if not fields["stream"]:
            fields.pop("stream_options", None)
        return msgspec.structs.replace(call, fields=fields)

    def make_reader(self) -> WholeReader | None:
        """Return the reader of the response, None if nothing is collected."""
        return WholeReader(2 * self.most_bytes + BESIDE_BYTES) if self.layers else None

    async def collect(self, reader: WholeReader, tally: Tally, upstream: Upstream) -> None:
        """Read the engine's collected data into the response. Raises VllamaError."""
        answer = bytes(reader.body)
        residual = await executors.codec.run(self.inspector.read, answer, self.layers)
        tokens = await name_tokens(upstream, self.traits, residual.token_ids)
        whole = msgspec.structs.replace(residual, tokens=tokens)
        tally.collected = {"inspect": Inspected(residual=whole)}


def prepare_inspection(asked: Inspect, entry: Entry, traits: Traits) -> Inspection:
    """Check a request's `inspect` field.

    Raises BadRequest if its engine cannot, and for layers and vectors that do not fit the model.
    """
    rules, info, name = entry.inspect_rules, entry.info, entry.bundle.name
    layers, width = info.block_count, info.embedding_length
    if traits.inspector is None or rules is None:
        engines = " or ".join(rules.engines) if rules else ""
        raise BadRequest(
            f"cannot inspect {name}: its engine does not support it, or was started without it",
            hint=f"{engines} support it: start the server with --inspect" if engines else None,
        )
    if not (layers and width):
        raise BadRequest(f"cannot inspect {name}: its files do not specify the number of layers")
    wanted = asked.collect.residual if asked.collect else ()
    steering = [
        Steering(
            vector=pack_vector(steer.vector, width, name),
            layers=check_layers(steer.layers, layers, name),
            strength=steer.strength,
        )
        for steer in asked.steer
    ]
    return Inspection(
        inspector=traits.inspector,
        traits=traits,
        layers=check_layers(wanted, layers, name),
        width=width,
        steering=tuple(steering),
        most_bytes=rules.most_bytes,
    )
