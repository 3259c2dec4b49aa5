"""Fields of Ollama's own that the `/v1` routes take as well.

Ollama ignores them there, and its users ask for them: `options`, `num_ctx`, `keep_alive`, `think`,
`truncate` and `shift`. What OpenAI's own field says wins over an option.

See docs/reference/api.md#ollamas-fields-on-v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllama.base.errors import BadRequest
from vllama.base.units import parse_keep_alive
from vllama.chat.request import Think
from vllama.dialects.openai_values import read_boolean, refuse_type

_LEVELS = ("low", "medium", "high", "max")
_EFFORTS = {
    "minimal": "low", "low": "low", "medium": "medium", "high": "high",
    "max": "max", "xhigh": "max", "ultra": "max",
}  # fmt: skip
# the two that are 1.0 when absent, so that an option must stand in their place
_FORCED = ("temperature", "top_p")
_NAMES = frozenset(("options", "num_ctx", "keep_alive", "think", "truncate", "shift"))


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
        raise BadRequest(str(error)) from None
    think = rest.pop("think", None)
    if not (think is None or isinstance(think, bool) or think in _LEVELS):
        raise BadRequest(
            f"invalid think value: '{str(think)[:80]}' "
            '(must be "high", "medium", "low", "max", true, or false)'
        )
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
    level = _EFFORTS.get(value) if isinstance(value, str) else None
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
