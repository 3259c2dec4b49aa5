"""The list of the models on this disk, as `vllama list --json` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllama.base.errors import VllamaError
from vllama.base.units import rfc3339_local

if TYPE_CHECKING:
    from vllama.models.library import Library
    from vllama.models.types import Bundle


def describe_models(library: Library) -> dict[str, Any]:
    """Return all models, the newest first, and those that are left out."""
    skipped = [
        {"name": one.name, "store": one.store, "path": str(one.path), "reason": one.reason}
        for one in library.list_skipped()
    ]
    found = sorted(library.list(), key=lambda bundle: -bundle.modified_s)
    return {"models": [_describe(library, one) for one in found], "skipped": skipped}


def _describe(library: Library, bundle: Bundle) -> dict[str, Any]:
    quant = bundle.quant or _quant(library, bundle)
    return {
        "name": bundle.name,
        "model": bundle.name,
        "digest": bundle.digest,
        "size": bundle.size_bytes,
        "modified_at": rfc3339_local(bundle.modified_s),
        "format": str(bundle.format),
        "quantization_level": quant,
        "details": {"format": str(bundle.format), "quantization_level": quant},
        "store": bundle.store,
        "path": str(bundle.path),
        "files": [str(path) for path in bundle.files],
        "hub_id": bundle.hub_id,
        "revision": bundle.revision,
        "asked_as": library.names.list_asked(bundle.name),
        "base": bundle.base,
    }


def _quant(library: Library, bundle: Bundle) -> str | None:
    """Return the quantization that the file itself states, if its name does not."""
    try:
        return library.info(bundle).quant
    except VllamaError:  # it is listed all the same
        return None
