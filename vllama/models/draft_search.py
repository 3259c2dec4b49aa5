"""Finds a draft model among the models on this disk: a small one of the same family.

What a draft model needs is the vocabulary of the model that it drafts for, so the vocabularies of
the files are compared, not names. Only GGUF files: of safetensors a draft model is named.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

from vllama.errors import VllamaError
from vllama.models.gguf.parser import LongArray
from vllama.models.types import Bundle, Capability, Format, ModelInfo

log = logging.getLogger(__name__)

LEAST_RATIO = 4
"""A draft model has at most this part of the other's weights: its guesses have to be cheap."""


def find_draft(
    bundle: Bundle,
    info: ModelInfo,
    others: Iterable[Bundle],
    read: Callable[[Bundle], ModelInfo],
) -> Bundle | None:
    """Return the smallest of `others` that can draft for `bundle`, None if none can. Blocking.

    `read` returns the metadata of a model. A model that has a draft model already gets no other.
    """
    if bundle.draft is not None or bundle.format is not Format.GGUF:
        return None
    if Capability.COMPLETION not in info.capabilities:
        return None
    for other in sorted(others, key=lambda one: one.size_bytes):
        if other.size_bytes * LEAST_RATIO > bundle.size_bytes:
            return None
        if other.format is not Format.GGUF or other.projector or other.adapters:
            continue
        try:
            its = read(other)
        except VllamaError as error:
            log.debug("%s cannot draft: %s", other.name, error.message)
            continue
        if Capability.COMPLETION in its.capabilities and has_same_tokens(info, its):
            return other
    return None


def suggest_draft(
    bundle: Bundle,
    info: ModelInfo,
    others: Iterable[Bundle],
    read: Callable[[Bundle], ModelInfo],
) -> list[str]:
    """Return what to say of a draft model that is here and not used; [] if there is none."""
    found = find_draft(bundle, info, others, read)
    if found is None:
        return []
    return [
        f"'{found.name}' has the same tokens and could draft for it: name it by DRAFT in a "
        'Modelfile, or set draft = "auto" in the table of the model'
    ]


def has_same_tokens(info: ModelInfo, other: ModelInfo) -> bool:
    """Tell whether two files have the same vocabulary, and the same special tokens in it."""
    names = ("model", "pre", "bos_token_id", "eos_token_id")
    keys = [f"tokenizer.ggml.{name}" for name in names]
    if any(info.metadata.get(key) != other.metadata.get(key) for key in keys):
        return False
    ours, theirs = (one.metadata.get("tokenizer.ggml.tokens") for one in (info, other))
    if not (isinstance(ours, LongArray) and isinstance(theirs, LongArray)):
        return ours is not None and ours == theirs  # short enough to be lists
    try:
        return ours.count == theirs.count and _hash_array(ours) == _hash_array(theirs)
    except OSError:
        return False


def _hash_array(array: LongArray) -> bytes | None:
    if array.path is None:
        return None
    return _hash_part(array.path, array.path.stat().st_mtime_ns, array.offset, array.end)


@lru_cache(maxsize=256)
def _hash_part(path: Path, modified_ns: int, start: int, end: int) -> bytes:
    """Return the hash of a part of a file, which is read again if the file was modified."""
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(end - start)).digest()
