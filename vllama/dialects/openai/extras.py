"""Fields of `/v1` bodies that OpenAI's API, or Ollama's view of it, does not have.

They have the right type, or are refused in OpenAI's words.

Ollama's own are `options`, `num_ctx`, `keep_alive`, `think`, `truncate` and `shift`. Ollama ignores
them there, and its users ask for them. What OpenAI's own field says wins over an option. `inspect`
is vllama's (`chat.inspect`).

See docs/reference/api.md#ollamas-fields-on-v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from vllama.base.errors import BadRequest
from vllama.base.units import parse_keep_alive
from vllama.chat.bodies import name_type, say_wrong
from vllama.chat.inspect import Inspect, read_inspect
from vllama.chat.request import Think
from vllama.dialects.ollama.read import read_think

EFFORTS = {
    "minimal": "low", "low": "low", "medium": "medium", "high": "high",
    "xhigh": "max", "ultra": "max", "max": "max",
}  # fmt: skip
"""OpenAI's levels of effort, and Ollama's word for each; `none` is no level."""
# the two that are 1.0 when absent, so that an option must stand in their place
_FORCED = ("temperature", "top_p")
_NAMES = frozenset((
    "options", "num_ctx", "keep_alive", "think", "truncate", "shift", "inspect",
))  # fmt: skip


def read_integer(name: str, value: object) -> int:
    """Return an integer; `3.0` is one, as in JSON Schema. Raises BadRequest."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        refuse_type(name, "an integer", value)
    return value


def read_boolean(name: str, value: object) -> bool:
    """Return a boolean. Raises BadRequest."""
    return value if isinstance(value, bool) else refuse_type(name, "a boolean", value)


def refuse_type(name: str, wanted: str, value: object) -> NoReturn:
    """Raise BadRequest for a value of the wrong type."""
    raise BadRequest(say_wrong(name, f"expected {wanted}, got {name_type(value)}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a `/v1` body said in Ollama's words.

    `keep_alive` in seconds, `math.inf` for ever, None not given; `truncate` None: not said.
    """

    options: Mapping[str, object] = field(default_factory=dict)
    keep_alive: float | None = None
    think: Think = None
    truncate: bool | None = None
    shift: bool = True
    inspect: Inspect | None = None


NOTHING = Extras()


def take_extras(body: Mapping[str, Any]) -> tuple[dict[str, Any], Extras]:
    """Return the body without these fields, and what they said. Raises BadRequest."""
    rest = dict(body)
    if _NAMES.isdisjoint(body):
        return rest, NOTHING
    options = rest.pop("options", None)
    if options is None:
        options = {}
    if not isinstance(options, dict):
        refuse_type("options", "an object", options)
    num_ctx = rest.pop("num_ctx", None)
    if num_ctx is not None:
        options = {"num_ctx": num_ctx} | options
    try:
        keep_alive = parse_keep_alive(rest.pop("keep_alive", None))
    except ValueError as error:
        raise BadRequest(say_wrong("keep_alive", str(error))) from None
    think = read_think(rest.pop("think", None))
    truncate, shift = _flag(rest, "truncate"), _flag(rest, "shift")
    for name in _FORCED:
        if rest.get(name) is None and options.get(name) is not None:
            rest[name] = options[name]
    return rest, Extras(
        options=options,
        keep_alive=keep_alive,
        think=think,
        truncate=truncate,
        shift=shift is not False,
        inspect=read_inspect(rest.pop("inspect", None)),
    )


def read_effort(body: Mapping[str, Any]) -> object:
    """Return the effort that a body asks for; `reasoning` wins over `reasoning_effort`."""
    reasoning = body.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    return body.get("reasoning_effort") if effort is None else effort


def parse_effort(value: object) -> Think:
    """Map OpenAI's reasoning effort to `think`. Raises BadRequest."""
    if value is None or value == "":
        return None
    if value == "none":
        return False
    level = EFFORTS.get(value) if isinstance(value, str) else None
    if level is None:
        raise BadRequest(
            f'invalid reasoning value: "{str(value)[:80]}" (must be "minimal", "low", "medium", '
            '"high", "xhigh", "ultra", "max", or "none")'
        )
    return level


def add_effort(body: dict[str, Any], think: Think) -> dict[str, Any]:
    """Say `think` as OpenAI's effort, unless the body has one; `true` is every model's default."""
    if think is None or think is True or read_effort(body) is not None:
        return body
    return body | {"reasoning_effort": think or "none"}


def _flag(rest: dict[str, Any], name: str) -> bool | None:
    value = rest.pop(name, None)
    return None if value is None else read_boolean(name, value)
