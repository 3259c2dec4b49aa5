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


def refuse_type(name: str, wanted: str, value: object) -> NoReturn:
    """Raise BadRequest for a value of the wrong type."""
    raise BadRequest(say_wrong(name, f"expected {wanted}, got {name_type(value)}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Options of a `/v1` body in Ollama's words.

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
    """Return the body without these fields, whose types are right, and what they said.

    Raises BadRequest.
    """
    rest = dict(body)
    if _NAMES.isdisjoint(body):
        return rest, NOTHING
    given = {name: rest.pop(name, None) for name in _NAMES}
    options = given["options"] or {}
    if given["num_ctx"] is not None:
        options = {"num_ctx": given["num_ctx"]} | options
    for name in _FORCED:
        if rest.get(name) is None and isinstance(options.get(name), int | float):
            rest[name] = options[name]  # what is no number is refused with all options
    return rest, Extras(
        options=options,
        keep_alive=parse_keep_alive(given["keep_alive"]),
        think=read_think(given["think"]),
        truncate=given["truncate"],
        shift=given["shift"] is not False,
        inspect=read_inspect(given["inspect"]),
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
