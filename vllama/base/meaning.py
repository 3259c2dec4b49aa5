"""What a field means, beside its type; no part of `errors` or `units`, since only types use it."""

from __future__ import annotations

from msgspec import Meta


def says(text: str) -> Meta:
    """Return what `/openapi.json` says of a field: `size: Annotated[int, says("its bytes")]`."""
    return Meta(description=text)
