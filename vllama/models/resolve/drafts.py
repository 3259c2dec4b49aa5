"""Draft models: which files and folders can guess the tokens of a model.

What a draft model needs is the vocabulary of the model that it drafts for, so vocabularies are
compared, not names.
"""

from __future__ import annotations

import filecmp
from pathlib import Path

import msgspec

from vllama.base.errors import BadModelFile, BadRequest
from vllama.models.headers.gguf.header import GgufHeader, read_header
from vllama.models.headers.gguf.lora import is_adapter
from vllama.models.headers.info import PLAIN_DRAFT, find_draft_kind
from vllama.models.headers.safetensors import MAX_TOKENIZER_BYTES, list_names, read_folder
from vllama.models.limits import read_limited
from vllama.models.names.variants import has_tokenizer
from vllama.models.types import Bundle, Capability, Format, ModelInfo


class _Tokenizer(msgspec.Struct):
    """`tokenizer.json`, as far as it is compared."""

    model: dict[str, object] = msgspec.field(default_factory=dict)


_SMALLER = "use a smaller model of the same family"


def check_draft(path: Path, base: Bundle, info: ModelInfo) -> None:
    """Refuse a draft model that cannot guess for `base`: it must have its tokens. BadRequest."""
    reason, hint = _find_fault(path, base, info)
    if reason:
        raise BadRequest(f"cannot use '{path}' as a draft model: {reason}", hint=hint)


def _find_fault(path: Path, base: Bundle, info: ModelInfo) -> tuple[str, str | None]:
    """Return why a draft model cannot guess for `base`, and a hint; "" if it can. BadRequest."""
    if path.is_dir() is not (base.format is Format.SAFETENSORS):
        form = "a folder of safetensors" if base.format is Format.SAFETENSORS else "a GGUF file"
        reason = f"it has to be {form}, as '{base.name}' is"
        return reason, f"{_SMALLER} in the same format"
    is_copy = path.is_file() and filecmp.cmp(path, base.path, shallow=False)
    if is_copy or path.resolve() == base.path.resolve():
        return "it is the model itself", _SMALLER
    if path.is_dir():
        try:
            draft = read_folder(path)
        except BadModelFile as error:
            return error.message, error.hint
        # without a tokenizer it is a head of the model (EAGLE, MTP), whose tokens it has
        if not has_tokenizer(list_names(path)):
            return "", None
        writes = Capability.COMPLETION in draft.capabilities
        same = draft.vocab_size == info.vocab_size and _has_same_tokens(path, base.path)
    else:
        header = read_given_header(path.name, path)
        if find_draft_kind(header.metadata) != PLAIN_DRAFT:
            return "", None  # a head of the model, without tokens of its own
        kind = header.metadata.get("tokenizer.ggml.model")
        writes = not (is_projector(header) or is_adapter(header) or kind is None)
        same = kind == info.metadata.get("tokenizer.ggml.model")
    if not writes:
        return "it is no model that writes text", None
    if not same:
        return f"its tokens are not those of '{base.name}'", _SMALLER
    return "", None


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
