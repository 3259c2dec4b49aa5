"""The words that offer a conversion where nobody has made a GGUF. Pure."""

from __future__ import annotations

from vllama.models.types import Bundle, Format


def offer(name: str) -> str:
    """Return the imperative that makes a GGUF of `name`."""
    return f"make a GGUF of it: vllama convert {name}"


def offer_for(bundle: Bundle) -> str | None:
    """Return what can be done with a model whose safetensors nothing here serves."""
    if bundle.format is not Format.SAFETENSORS:
        return None
    return offer(bundle.hub_id or str(bundle.path))
