"""Small changes of a request's body, for the `finish_body` of an adapter's traits. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def add_fields(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body with the fields that it does not set; lists are joined, the body's first."""
    return {
        **defaults,
        **body,
        **{
            name: [*body[name], *value]
            for name, value in defaults.items()
            if isinstance(value, list) and isinstance(body.get(name), list)
        },
    }


def keep_fields(body: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the body without the fields that the engine would refuse."""
    return {name: value for name, value in body.items() if name in names}


def clamp_field(body: dict[str, Any], name: str, low: float, high: float) -> None:
    """Move a number in the body, if it is there, into the range that the engine accepts."""
    if isinstance(value := body.get(name), int | float):
        body[name] = min(max(value, low), high)
