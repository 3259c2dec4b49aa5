"""The hub's JSON, as huggingface_hub's `ModelInfo` has it → our values. Pure.

Fields as the hub's `/api/models` routes give them (model-sources §2.2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vllama.models.types import Format, SourceFile, Variant
from vllama.models.variants import group_ggufs, safetensors_files

_PACKED = frozenset({"I8", "U8", "I32", "U32", "F8_E4M3", "F8_E5M2", "F4"})


def file_of(sibling: Any) -> SourceFile:
    """Make a file of a `siblings` entry; its etag is the SHA-256, or git's id of a small one."""
    return SourceFile(
        path=sibling.rfilename,
        size_bytes=sibling.size or 0,
        etag=sibling.lfs.sha256 if sibling.lfs else sibling.blob_id,
        sha256=sibling.lfs.sha256 if sibling.lfs else None,
    )


def license_of(info: Any) -> str | None:
    """Return the licence's name: the card's own for an `other`, else the tag `license:…`."""
    card = info.card_data or {}
    name = card.get("license_name") or card.get("license")
    tagged = (tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:"))
    name = name[0] if isinstance(name, list) and name else name
    return str(name) if name else next(tagged, None)


def bases_of(info: Any) -> tuple[str, ...]:
    """Return what a repository was made from: its tags, else its card."""
    prefix = "base_model:quantized:"
    tagged = tuple(t.removeprefix(prefix) for t in info.tags or () if t.startswith(prefix))
    base = (info.card_data or {}).get("base_model")
    return tagged or tuple(base if isinstance(base, list) else [base] if base else [])


def gguf_total(info: Any) -> int | None:
    """Return the number of parameters that the hub read from one of the GGUF files."""
    about = info.gguf if isinstance(info.gguf, dict) else {}
    total = about.get("total")
    return total if isinstance(total, int) and total > 0 else None


def parameters_of(weights: Any) -> int | None:
    """Return the number of parameters; None where several are packed into one number."""
    if weights is None or set(weights.parameters or {}) & _PACKED:
        return None
    return int(weights.total) if weights.total else None


def wait_s(headers: Mapping[str, str]) -> str | None:
    """Return how long to wait: `Retry-After`, or the t of `RateLimit: "api";r=0;t=55`."""
    limit = re.search(r"\bt=(\d+)", headers.get("ratelimit", ""))
    return headers.get("retry-after") or (limit.group(1) if limit else None)


def variants_of(files: tuple[SourceFile, ...]) -> tuple[Variant, ...]:
    """Sort a repository's files into the models that can be served from them."""
    by_path = {file.path: file for file in files}
    variants: list[Variant] = []
    for group in group_ggufs(by_path):
        paths = (*group.paths, group.projector) if group.projector else group.paths
        variants.append(
            Variant(
                format=Format.GGUF,
                quant=group.quant,
                files=tuple(by_path[path] for path in paths),
                label=group.label or "latest",
            )
        )
    whole = safetensors_files(by_path)
    if whole:
        variants.append(
            Variant(
                format=Format.SAFETENSORS, quant=None, files=tuple(by_path[path] for path in whole)
            )
        )
    return tuple(variants)
