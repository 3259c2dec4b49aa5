"""`vllama inspect`: collect the residual stream of a model for a prompt."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from vllama.base.errors import BadModelFile, ConfigError
from vllama.chat.inspect import MOST_LAYERS
from vllama.cli.context import connect
from vllama.cli.options import AsJson, argument, model_argument, option
from vllama.cli.output import say, show_json

EXAMPLES = """\
\b
Examples:
  vllama inspect smollm2:135m "The capital of France is"
  vllama inspect smollm2:135m "The capital of France is" --layers 0-29 -o acts.safetensors
  vllama inspect smollm2:135m "How are you?" --chat --tokens 20 --steer calm.safetensors@15=0.3

The server needs --inspect and an engine that supports it; see docs/guide/inspect.md.
"""
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def inspect_(
    model: Annotated[str, model_argument("Name of the model.")],
    prompt: Annotated[str, argument("PROMPT", "Prompt, passed to the model unchanged.")],
    layers: Annotated[str, option("--layers LIST", "Layers, such as 0-29 or 3,7. [all]")] = "",
    output: Annotated[Path | None, option("--output FILE -o", "Output file (safetensors).")] = None,
    steer: Annotated[
        list[str] | None,
        option("--steer VECTOR", "Steering vector: FILE@LAYERS or FILE@LAYERS=STRENGTH."),
    ] = None,
    tokens: Annotated[int, option("--tokens N", "Number of tokens to generate.")] = 1,
    chat: Annotated[
        bool, option("--chat", "Apply the model's chat template to the prompt.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Collect the residual stream of a prompt."""
    from vllama.cli.chat.session import Session
    from vllama.models.names.ref import ModelRef

    if not prompt:
        raise ConfigError("cannot inspect an empty prompt")
    with connect() as client:
        shown = client.post("/api/show", {"model": model})
        told = {name.split(".", 1)[-1]: x for name, x in shown["model_info"].items()}
        if not (count := told.get("block_count")):
            raise ConfigError(f"cannot inspect {model}: its files do not list its layers")
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
    if as_json:
        names = ("layers", "tokens", "token_ids", "shape", "dtype")
        show_json({name: residual[name] for name in names} | {"answer": said})
        return
    where = f", saved to {output}" if output is not None else ""
    say(f"{' x '.join(map(str, residual['shape']))} {residual['dtype']}{where}")
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
            raise ConfigError(f"cannot read the layers '{text}'", hint="for example 0-29 or 3,7")
        found += range(int(first), int(last) + 1)
    return found


def read_steering(text: str) -> dict[str, object]:
    """Read `FILE@LAYERS` and `FILE@LAYERS=STRENGTH`, and the file. Raises ConfigError."""
    file, at, rest = text.rpartition("@")
    layers, equals, strength = rest.partition("=")
    try:
        number = float(strength) if equals else 1.0
    except ValueError:
        number = math.nan
    if not (file and at and math.isfinite(number)):
        raise ConfigError(
            f"cannot read '--steer {text}'", hint="use the form calm.safetensors@15=0.3"
        )
    wanted = read_layers(layers)
    return {"vector": read_vector(Path(file)), "layers": wanted, "strength": number}


def read_vector(path: Path) -> Sequence[float]:
    """Return the numbers of a safetensors file with one row. Raises ConfigError."""
    from vllama.models.headers.safetensors import FLOATS, read_floats, read_header, read_tensor

    numbers: Sequence[float] = ()
    try:
        first, *others = read_header(path)[0].values()
        is_row = max(first.shape, default=0) == math.prod(first.shape)
        if is_row and not others and first.dtype in FLOATS:
            numbers = read_floats(first.dtype, read_tensor(path, first))
    except OSError as error:
        raise ConfigError(
            f"cannot read '{path}': {error.strerror or error}",
            hint="specify a safetensors file: --steer calm.safetensors@15=0.3",
        ) from None
    except (BadModelFile, ValueError):
        pass  # no safetensors file, or one without a tensor
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ConfigError(
            f"cannot steer with '{path}': not a vector",
            hint=f"store one row of {', '.join(FLOATS)} in a safetensors file",
        )
    return numbers


def write_file(path: Path, residual: Mapping[str, Any], about: Mapping[str, str]) -> None:
    """Write the collected data as the tensor `residual`. Raises ConfigError."""
    from vllama.models.headers.safetensors import write_tensor

    data = base64.b64decode(residual["data"])
    whole = write_tensor("residual", DTYPES[residual["dtype"]], residual["shape"], data, about)
    try:
        path.write_bytes(whole)
    except OSError as error:
        raise ConfigError(f"cannot write '{path}': {error.strerror or error}") from None
