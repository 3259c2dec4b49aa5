"""Names of models in Ollama's cloud: refused as an Ollama does that has its cloud switched off.

Pure.

See docs/reference/ollama-api.md#routes, #names.
"""

from __future__ import annotations

from vllama.errors import VllamaError
from vllama.models.ref import HUB_HOST, Kind, ModelRef


class CloudDisabled(VllamaError):
    """Something was asked for that only ollama.com has."""

    status = 403

    def __init__(self, what: str = "remote model is unavailable") -> None:
        super().__init__(f"ollama cloud is disabled: {what}")


def is_cloud(ref: ModelRef) -> bool:
    """Tell whether a name means a model in the cloud: `…:cloud`, `…:…-cloud`."""
    if ref.kind is Kind.PATH or ref.host == HUB_HOST:
        return False
    tag = ref.tag.lower()
    return tag == "cloud" or tag.endswith("-cloud")
