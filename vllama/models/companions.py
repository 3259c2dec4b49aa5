"""Files that go with a model, and whether they fit it: LoRA adapters, draft models, projectors.

An adapter in a GGUF file (llama.cpp's `convert_lora_to_gguf.py`, `llama-adapter.cpp`) has pairs of
tensors, `NAME.lora_a` and `NAME.lora_b`, whose product is added to the model's tensor `NAME`.
llama.cpp's Python server crashes (signal 11) on an adapter with wrong shapes, so the shapes are
checked first.

What a draft model needs is the vocabulary of the model that it drafts for, so vocabularies are
compared, not names.
"""

from __future__ import annotations

import filecmp
from pathlib import Path

import msgspec

from vllama.base.errors import BadModelFile, BadRequest
from vllama.models.headers.gguf.header import GgufHeader, read_header
from vllama.models.headers.info import PLAIN_DRAFT, find_draft_kind
from vllama.models.headers.lora import read_rank
from vllama.models.headers.safetensors import MAX_TOKENIZER_BYTES, list_names, read_folder
from vllama.models.limits import read_limited
from vllama.models.names.variants import has_tokenizer
from vllama.models.types import Bundle, Capability, Format, ModelInfo

CONVERT = "run llama.cpp's convert_lora_to_gguf.py, then vllama create with ADAPTER result.gguf"
_EMBEDDING = "token_embd.weight"  # its adapter is transposed
_SMALLER = "use a smaller model of the same family"


class _Tokenizer(msgspec.Struct):
    """`tokenizer.json`, as far as it is compared."""

    model: dict[str, object] = msgspec.field(default_factory=dict)


def is_adapter(header: GgufHeader) -> bool:
    """Return whether a GGUF file is an adapter."""
    return header.metadata.get("general.type") == "adapter"


def check_adapter(path: Path, info: ModelInfo, name: str = "") -> None:
    """Check that a file is an adapter for a model like `info`. Raises BadRequest. Blocking."""
    name = name or str(path)
    try:
        if path.is_dir():  # of a base that is a folder, too: its engine checks the shapes
            read_rank(path)
            return
        header = read_header(path)
    except BadModelFile as error:
        hint = CONVERT if path.exists() else "the ADAPTER must be a file or folder on this machine"
        raise BadRequest(f"cannot use the adapter '{name}': {error.message}", hint=hint) from error
    meta = header.metadata
    if not is_adapter(header) or meta.get("adapter.type", "lora") != "lora":
        raise BadRequest(f"cannot use '{name}': it is not a LoRA adapter", hint=CONVERT)
    made_for = meta.get("general.architecture")
    if made_for != info.architecture:
        raise BadRequest(
            f"cannot use the adapter '{name}': it requires the architecture {made_for}, but the "
            f"model has {info.architecture}"
        )
    if misfit := explain_misfit(header, info):
        raise BadRequest(
            f"cannot use the adapter '{name}': {misfit}",
            hint="use the adapter's base model",
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
            return f"its tensors for '{name}' have a different shape"
    return None


def check_draft(path: Path, base: Bundle, info: ModelInfo) -> None:
    """Refuse a draft model that cannot guess for `base`: it must have its tokens. BadRequest."""
    reason, hint = _find_fault(path, base, info)
    if reason:
        raise BadRequest(f"cannot use '{path}' as a draft model: {reason}", hint=hint)


def _find_fault(path: Path, base: Bundle, info: ModelInfo) -> tuple[str, str | None]:
    """Return why a draft model cannot guess for `base`, and a hint; "" if it can. BadRequest."""
    if path.is_dir() is not (base.format is Format.SAFETENSORS):
        form = "a folder of safetensors" if base.format is Format.SAFETENSORS else "a GGUF file"
        reason = f"it must be {form}, like '{base.name}'"
        return reason, f"{_SMALLER} in the same format"
    is_copy = path.is_file() and filecmp.cmp(path, base.path, shallow=False)
    if is_copy or path.resolve() == base.path.resolve():
        return "it is the same model", _SMALLER
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
        return "it is not a text generation model", None
    if not same:
        return f"its tokens differ from those of '{base.name}'", _SMALLER
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
        raise BadRequest(f"cannot use '{name}': {error.message}", hint="use a GGUF file") from error


def is_projector(header: GgufHeader) -> bool:
    """Tell whether a file is a projector (mmproj)."""
    meta = header.metadata
    return meta.get("general.type") == "mmproj" or meta.get("general.architecture") == "clip"
