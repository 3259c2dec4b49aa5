"""LoRA adapters in GGUF files: whether an adapter fits a model.

Format (llama.cpp's `convert_lora_to_gguf.py`, `llama-adapter.cpp`): pairs of tensors, `NAME.lora_a`
and `NAME.lora_b`, whose product is added to the model's tensor `NAME`. llama.cpp's Python server
crashes (signal 11) on an adapter with wrong shapes, so the shapes are checked first.
"""

from __future__ import annotations

from pathlib import Path

from vllama.base.errors import BadModelFile, BadRequest
from vllama.models.headers.gguf.header import GgufHeader, read_header
from vllama.models.types import ModelInfo

CONVERT = "convert it to GGUF first: convert_lora_to_gguf.py"
_EMBEDDING = "token_embd.weight"  # its adapter is transposed


def is_adapter(header: GgufHeader) -> bool:
    """Return whether a GGUF file is an adapter."""
    return header.metadata.get("general.type") == "adapter"


def check_adapter(path: Path, info: ModelInfo) -> None:
    """Check that a file is an adapter for a model like `info`. Raises BadRequest. Blocking."""
    try:
        header = read_header(path)
    except BadModelFile as error:
        raise BadRequest(
            f"cannot use the adapter '{path}': {error.message}", hint=CONVERT
        ) from error
    meta = header.metadata
    if not is_adapter(header) or meta.get("adapter.type", "lora") != "lora":
        raise BadRequest(f"cannot use '{path}': it is not a LoRA adapter", hint=CONVERT)
    made_for = meta.get("general.architecture")
    if made_for != info.architecture:
        raise BadRequest(
            f"cannot use the adapter '{path}': it is for the architecture {made_for}, the model "
            f"has {info.architecture}"
        )
    if misfit := explain_misfit(header, info):
        raise BadRequest(
            f"cannot use the adapter '{path}': {misfit}",
            hint="use the model that it was trained on",
        )


def explain_misfit(header: GgufHeader, info: ModelInfo) -> str | None:
    """Return why an adapter's tensors do not fit the model's, None if they do."""
    model = {name: shape for name, _, shape in info.tensors}
    pairs: dict[str, dict[str, tuple[int, ...]]] = {}
    for tensor in header.tensors:
        name, _, part = tensor.name.rpartition(".")
        pairs.setdefault(name, {})[part] = tensor.shape
    if not pairs:
        return "it has no tensors"
    for name, pair in pairs.items():
        if set(pair) != {"lora_a", "lora_b"}:
            return f"its tensors for '{name}' are not a pair"
        if name not in model:
            return f"the model has no tensor '{name}'"
        a, b, own = pair["lora_a"], pair["lora_b"], model[name]
        if min(len(a), len(b), len(own)) < 2:
            return f"its tensors for '{name}' are not matrices"
        fits = (a[0], b[1]) == own[:2] if name != _EMBEDDING else (b[1], a[1]) == own[:2]
        if not fits:
            return f"its tensors for '{name}' have another shape"
    return None
