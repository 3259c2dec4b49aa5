"""What a field means, beside its type; no part of `errors` or `units`, since only types use it."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Meta

Schema: TypeAlias = dict[str, Any]
"""A JSON Schema (2020-12), or a part of one."""


def says(text: str) -> Meta:
    """Return what `/openapi.json` says of a field: `size: Annotated[int, says("its bytes")]`."""
    return Meta(description=text)
