"""Draft models: which files and folders can guess the tokens of a model."""

from __future__ import annotations

import filecmp
from pathlib import Path

import msgspec

from vllama.errors import BadModelFile, BadRequest
from vllama.models.gguf.header import GgufHeader, read_header
from vllama.models.gguf.lora import is_adapter
from vllama.models.info import PLAIN_DRAFT, find_draft_kind
from vllama.models.limits import read_limited
from vllama.models.safetensors import MAX_TOKENIZER_BYTES, list_names, read_folder
from vllama.models.types import Bundle, Capability, Format, ModelInfo
from vllama.models.variants import has_tokenizer


class _Tokenizer(msgspec.Struct):
    """`tokenizer.json`, as far as it is compared."""

    model: dict[str, object] = msgspec.field(default_factory=dict)


def check_draft(path: Path, base: Bundle, info: ModelInfo) -> None:
    """Refuse a draft model that cannot guess for `base`: it must have its tokens. BadRequest."""
    if path.is_dir() is not (base.format is Format.SAFETENSORS):
        form = "a folder of safetensors" if base.format is Format.SAFETENSORS else "a GGUF file"
        raise BadRequest(
            f"cannot use '{path}' as a draft model: it has to be {form}, as '{base.name}' is",
            hint="use a smaller model of the same family in the same format",
        )
    is_copy = path.is_file() and filecmp.cmp(path, base.path, shallow=False)
    if is_copy or path.resolve() == base.path.resolve():
        raise BadRequest(
            f"cannot use '{path}' as a draft model: it is the model itself",
            hint="use a smaller model of the same family",
        )
    if path.is_dir():
        check_draft_folder(path, base, info)
        return
    header = read_given_header(path.name, path)
    if find_draft_kind(header.metadata) != PLAIN_DRAFT:
        return  # a head of the model, without tokens of its own
    kind = header.metadata.get("tokenizer.ggml.model")
    if is_projector(header) or is_adapter(header) or kind is None:
        raise BadRequest(f"cannot use '{path}' as a draft model: it is no model that writes text")
    if kind != info.metadata.get("tokenizer.ggml.model"):
        raise BadRequest(
            f"cannot use '{path}' as a draft model: its tokens are not those of '{base.name}'",
            hint="use a smaller model of the same family",
        )


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


def read_given_header(name: str, path: Path) -> GgufHeader:
    """Read the header of a GGUF file that a user named. Raises BadRequest."""
    try:
        return read_header(path)
    except BadModelFile as error:
        raise BadRequest(
            f"cannot use '{name}': {error.message}", hint="only GGUF files can be used so"
        ) from error


def is_projector(header: GgufHeader) -> bool:
    """Tell whether a file is a projector (mmproj)."""
    meta = header.metadata
    return meta.get("general.type") == "mmproj" or meta.get("general.architecture") == "clip"
