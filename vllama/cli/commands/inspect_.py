"""`vllama inspect`: what a model computes for a prompt, layer by layer."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import mul
from pathlib import Path
from typing import Annotated, Any

from vllama.base.errors import ConfigError
from vllama.chat.inspect import MOST_LAYERS
from vllama.cli.context import connect
from vllama.cli.options import AsJson, argument, model_argument, option
from vllama.cli.output import say, say_aside, show_json, show_table

EXAMPLES = """\
\b
Examples:
  vllama inspect smollm2:135m "The capital of France is"
  vllama inspect smollm2:135m "The capital of France is" --layers 0-29 -o acts.safetensors
  vllama inspect smollm2:135m "How are you?" --chat --tokens 20 --steer calm@15=0.3

The server needs --inspect, and an engine that can; see docs/guide/inspect.md.
"""
SHOWN = 8
"""Layers that the table has a column for."""
BARS = "▁▂▃▄▅▆▇█"
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def inspect_(
    model: Annotated[str, model_argument("Name as in list.")],
    prompt: Annotated[str, argument("PROMPT", "The text, which goes to the model as it is.")],
    layers: Annotated[str, option("--layers LIST", "Layers, such as 0-29 or 3,7. [all]")] = "",
    output: Annotated[
        Path | None, option("--output FILE -o", "Write what was collected (safetensors).")
    ] = None,
    steer: Annotated[
        list[str] | None, option("--steer VECTOR", "Steer: NAME@LAYERS, or NAME@LAYERS=STRENGTH.")
    ] = None,
    tokens: Annotated[int, option("--tokens N", "Tokens of the answer.")] = 1,
    chat: Annotated[bool, option("--chat", "Put the prompt into the model's template.")] = False,
    as_json: AsJson = False,
) -> None:
    """Collect what a model computes for a prompt, layer by layer."""
    from vllama.cli.chat.session import Session
    from vllama.models.names.ref import ModelRef

    if not prompt:
        raise ConfigError("cannot inspect an empty prompt")
    with connect() as client:
        shown = client.post("/api/show", {"model": model})
        told = {name.split(".", 1)[-1]: x for name, x in shown["model_info"].items()}
        if not (count := told.get("block_count")):
            raise ConfigError(f"cannot inspect {model}: its files do not tell its layers")
        wanted = {
            "collect": {"residual": read_layers(layers or f"0-{count - 1}")},
            "steer": [read_steering(each) for each in steer or ()],
        }
        text: dict[str, Any] = {"prompt": prompt, "raw": True}
        if chat:
            text = {"messages": [{"role": "user", "content": prompt}]}
        Session(client=client, model=model).load()  # which shows how far it is
        options = {"num_predict": tokens, "temperature": 0}
        asked = {"model": model, "stream": False, "options": options, "inspect": wanted, **text}
        answer = client.post("/api/chat" if chat else "/api/generate", asked)
        loaded = client.get("/api/ps")["models"]
    residual = answer["inspect"]["residual"]
    said = answer["message"]["content"] if chat else answer["response"]
    name = ModelRef.parse(model).display.lower()  # the answer has it as it was typed
    row: dict[str, Any] = next((x for x in loaded if x["name"].lower() == name), {})
    if output is not None:
        about = {
            "model": answer["model"],
            "digest": row.get("digest", ""),
            "engine": row.get("engine", ""),
            "engine_version": row.get("engine_version") or "",
            "template": shown.get("template", "") if chat else "",
            "prompt": prompt,
            "answer": said,
            **{name: json.dumps(residual[name]) for name in ("layers", "tokens", "token_ids")},
            "order": residual["order"],
        }
        write_file(output, residual, about)
    norms, cosines = measure(residual)
    if as_json:
        names = ("layers", "tokens", "token_ids", "shape", "dtype")
        told = {name: residual[name] for name in names}
        show_json({**told, "norms": norms, "cosines": cosines, "answer": said})
        return
    show_rows(residual, norms, cosines)
    say()
    say_aside("cosine: between each layer and the next, from 0 (▁) to 1 (█)")
    if output is not None:
        say_aside(f"{' x '.join(map(str, residual['shape']))} numbers are in {output}")
    if tokens > 1:
        say(said)


def read_layers(text: str) -> list[int]:
    """Read `0-29`, `3,7` and mixtures. Raises ConfigError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        are_numbers = first.isdecimal() and last.isdecimal()
        if not (are_numbers and 0 <= int(last) - int(first) < MOST_LAYERS):
            raise ConfigError(f"cannot read the layers '{text}'", hint="such as 0-29 or 3,7")
        found += range(int(first), int(last) + 1)
    return found


def read_steering(text: str) -> dict[str, object]:
    """Read `NAME@LAYERS` and `NAME@LAYERS=STRENGTH`. Raises ConfigError."""
    name, at, rest = text.partition("@")
    layers, equals, strength = rest.partition("=")
    try:
        number = float(strength) if equals else 1.0
    except ValueError:
        number = math.nan
    if not (name and at and math.isfinite(number)):
        raise ConfigError(f"cannot read '--steer {text}'", hint="such as calm@15=0.3")
    return {"vector": name, "layers": read_layers(layers), "strength": number}


def write_file(path: Path, residual: Mapping[str, Any], about: Mapping[str, str]) -> None:
    """Write what was collected as the tensor `residual`. Raises ConfigError."""
    from vllama.models.headers.safetensors import write_tensor

    data = base64.b64decode(residual["data"])
    whole = write_tensor("residual", DTYPES[residual["dtype"]], residual["shape"], data, about)
    try:
        path.write_bytes(whole)
    except OSError as error:
        raise ConfigError(f"cannot write '{path}': {error.strerror or error}") from None


def measure(residual: Mapping[str, Any]) -> tuple[list[list[float]], list[list[float]]]:
    """Return the norms of each token by layer, and the cosines between neighbouring layers."""
    from vllama.models.headers.safetensors import read_floats

    numbers = read_floats(DTYPES[residual["dtype"]], base64.b64decode(residual["data"]))
    layers, tokens, width = residual["shape"]
    norms: list[list[float]] = []
    cosines: list[list[float]] = []
    for token in range(tokens):
        starts = [(layer * tokens + token) * width for layer in range(layers)]
        rows = [numbers[start : start + width] for start in starts]
        norms.append([math.hypot(*row) for row in rows])
        products = [sum(map(mul, a, b)) for a, b in pairwise(rows)]
        lengths = map(mul, norms[-1], norms[-1][1:])
        cosines.append([x / (y or 1.0) for x, y in zip(products, lengths, strict=True)])
    return norms, cosines


def show_rows(
    residual: Mapping[str, Any],
    norms: Sequence[Sequence[float]],
    cosines: Sequence[Sequence[float]],
) -> None:
    """Print a row for each token: its norm after some of the layers, and a bar for each cosine."""
    layers = residual["layers"]
    step = max(1, math.ceil((len(layers) - 1) / (SHOWN - 1)))
    places = sorted({*range(0, len(layers), step), len(layers) - 1})
    heads = [f"NORM {layers[place]}" if not place else str(layers[place]) for place in places]
    rows = [
        (
            json.dumps(piece, ensure_ascii=False)[1:-1],
            *(f"{norm[place]:.4g}" for place in places),
            "".join(BARS[round(max(0.0, min(1.0, x)) * 7)] for x in cosine),
        )
        for piece, norm, cosine in zip(residual["tokens"], norms, cosines, strict=True)
    ]
    show_table(("TOKEN", *heads, "COSINE"), rows)
