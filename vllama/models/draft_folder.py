"""Draft models among safetensors: which folders can guess the tokens of a model."""

from __future__ import annotations

from pathlib import Path

import msgspec

from vllama.errors import BadModelFile, BadRequest
from vllama.models.limits import read_limited
from vllama.models.safetensors import MAX_TOKENIZER_BYTES, list_names, read_folder
from vllama.models.types import Bundle, Capability, ModelInfo
from vllama.models.variants import has_tokenizer


class _Tokenizer(msgspec.Struct):
    """`tokenizer.json`, as far as it is compared."""

    model: dict[str, object] = msgspec.field(default_factory=dict)


def check_draft_folder(path: Path, base: Bundle, info: ModelInfo) -> None:
    """Refuse a folder that cannot guess for `base`: it must have its tokens. Raises BadRequest.

    A folder without a tokenizer is a head of the model (EAGLE, MTP), whose tokens it has.
    """
    try:
        draft = read_folder(path)
    except BadModelFile as error:
        raise BadRequest(
            f"cannot use '{path}' as a draft model: {error.message}", hint=error.hint
        ) from error
    if not has_tokenizer(list_names(path)):
        return
    if Capability.COMPLETION not in draft.capabilities:
        raise BadRequest(f"cannot use '{path}' as a draft model: it is no model that writes text")
    if draft.vocab_size != info.vocab_size or not _has_same_tokens(path, base.path):
        raise BadRequest(
            f"cannot use '{path}' as a draft model: its tokens are not those of '{base.name}'",
            hint="use a smaller model of the same family",
        )


def _has_same_tokens(folder: Path, other: Path) -> bool:
    """Compare the vocabularies; True where one of them is in no `tokenizer.json`."""
    known = [_read_vocabulary(place / "tokenizer.json") for place in (folder, other)]
    return None in known or known[0] == known[1]


def _read_vocabulary(path: Path) -> object:
    try:
        content = read_limited(path, MAX_TOKENIZER_BYTES)
        return msgspec.json.decode(content, type=_Tokenizer).model.get("vocab")
    except (OSError, ValueError, RecursionError):
        return None
