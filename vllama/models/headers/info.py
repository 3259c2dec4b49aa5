"""Metadata of a model: GGUF → `ModelInfo`, and Ollama's views of it.

Key names are those of docs/gguf.md; the views follow Ollama's `/api/show` (`build_details`,
`build_model_info`). Reads headers only.

See docs/reference/ollama-api.md#show, #capabilities.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from vllama.base.errors import BadModelFile, BadRequest
from vllama.base.units import format_parameter_count
from vllama.dialects.ollama.answer_types import ModelDetails
from vllama.models.headers.chat_templates import (
    check_template_length,
    find_known_template,
    read_template_capabilities,
)
from vllama.models.headers.gguf.header import GgufHeader, read_header
from vllama.models.headers.gguf.parser import LongArray, Tensor
from vllama.models.headers.safetensors import list_names, read_folder
from vllama.models.headers.sampling import IN_GGUF, read_sampling
from vllama.models.limits import MOST_HEADS, MOST_LAYERS, MOST_NUMBER
from vllama.models.names.quant import get_file_type_name
from vllama.models.names.variants import get_stem, has_tokenizer
from vllama.models.types import Bundle, Capability, Format, ModelInfo

_BOS_BY_DEFAULT = frozenset({"llama3", "llama-v3", "llama-bpe", "tekken"})
_CONTROL = frozenset({2, 3})  # unknown, control (llama.h, enum llama_token_type)
# of a folder it is only known whether it is a model of its own: the engine knows the kinds of heads
DRAFT_HEAD = "head"
DRAFT_HEADS, PLAIN_DRAFT = ("dflash", "eagle3", "dspark"), "simple"
_HIDDEN = frozenset({"general.name", "tokenizer.chat_template"})


def read_info(bundle: Bundle, read_header: Callable[[Path], GgufHeader] = read_header) -> ModelInfo:
    """Read the headers of a bundle's files, those of GGUF files by `read_header`.

    Raises BadModelFile for a file that is damaged, cut, or without weights.
    """
    if bundle.format is Format.SAFETENSORS:
        return _read_folders(bundle)
    others = {bundle.projector, bundle.draft, *bundle.adapters}
    headers = [read_header(path) for path in bundle.files if path not in others]
    projector = read_header(bundle.projector) if bundle.projector else None
    meta = headers[0].metadata
    usual = "mmproj" if meta.get("general.architecture") == "clip" else "model"
    if (kind := meta.get("general.type", usual)) != "model":
        raise BadModelFile(
            f"cannot use '{bundle.path}' as a model: its type is {kind}",
            hint="use the model's file; Modelfiles use ADAPTER for adapters, FROM for projectors",
        )
    _check_parts([path for path in bundle.files if path not in others], headers)
    info = combine_headers(headers, projector=projector, quant=bundle.quant)
    if bundle.draft:  # it is loaded beside the model
        header = read_header(bundle.draft)
        info = replace(info, draft_kind=find_draft_kind(header.metadata))
        info = _add_beside(info, combine_headers([header]).weights_bytes)
    if info.parameter_count == 0:
        raise BadModelFile(
            f"cannot use '{bundle.path}': it has no weights, only a vocabulary",
            hint="download the model itself",
        )
    return info


def _check_parts(paths: Sequence[Path], headers: Sequence[GgufHeader]) -> None:
    """Refuse files that are not all parts of a model, in order. Raises BadModelFile.

    The keys are those of llama.cpp's llama-gguf-split.
    """
    parts = [(_int(header.metadata, "split.no") or 0) + 1 for header in headers]
    for number, (path, header) in enumerate(zip(paths, headers, strict=True), 1):
        count, part = _int(header.metadata, "split.count") or 1, parts[number - 1]
        if (part, count) != (number, len(paths)):
            lacking = next((one for one in range(1, count + 1) if one not in parts), 0)
            name = f"; {get_stem(path.name)}-{lacking:05}-of-{count:05}.gguf is missing"
            raise BadModelFile(
                f"cannot use '{path}': it is part {part} of {count} of a model, not {number} of "
                f"{len(paths)}{name if lacking else ''}",
                hint="download all parts under their names; llama-gguf-split --merge joins them",
            )


def _add_beside(info: ModelInfo, size_bytes: int) -> ModelInfo:
    return replace(
        info,
        weights_bytes=info.weights_bytes + size_bytes,
        beside_bytes=info.beside_bytes + size_bytes,
    )


def _read_folders(bundle: Bundle) -> ModelInfo:
    """Read a model's folder, and that of its draft model."""
    info = read_folder(bundle.path)
    if bundle.draft is None:
        return info
    is_whole = has_tokenizer(list_names(bundle.draft))
    info = replace(info, draft_kind=PLAIN_DRAFT if is_whole else DRAFT_HEAD)
    return _add_beside(info, read_folder(bundle.draft).weights_bytes)


def find_draft_kind(metadata: Mapping[str, object]) -> str:
    """Return how a draft model drafts: as a model of its own, or as a head of a larger one."""
    architecture = str(metadata.get("general.architecture"))
    if architecture in DRAFT_HEADS:
        return architecture
    return "mtp" if metadata.get(f"{architecture}.nextn_predict_layers") else PLAIN_DRAFT


def combine_headers(
    headers: Sequence[GgufHeader],
    *,
    projector: GgufHeader | None = None,
    quant: str | None = None,
) -> ModelInfo:
    """Combine the headers of all shards; the first one carries the key/values.

    Raises BadModelFile for one that no engine could load.
    """
    meta = headers[0].metadata
    arch = _text(meta, "general.architecture")
    if not arch:
        raise BadModelFile(
            "cannot use the model: its file does not specify an architecture",
            hint="download another file of the model: this one lacks general.architecture",
        )
    heads = _ints(meta, f"{arch}.attention.head_count", MOST_HEADS)
    layers = _int(meta, f"{arch}.block_count", MOST_LAYERS)
    embedding = _int(meta, f"{arch}.embedding_length")
    head_count = max(heads, default=0) or None
    width = embedding // head_count if embedding and head_count else None
    template, known = check_template_length(_template(meta)), None
    if template is None and f"{arch}.pooling_type" not in meta:
        turns = headers[0].turn_tokens
        known = find_known_template(
            turns, sentencepiece=meta.get("tokenizer.ggml.model") == "llama"
        )
    if known is not None:
        template = known.template
    tensors = [tensor for header in headers for tensor in header.tensors]
    beside_bytes = _sum_bytes(projector.tensors) if projector else 0
    special = headers[0].special_tokens
    fim = tuple(special.get(name, "") for name in ("fim_pre", "fim_suf", "fim_mid"))
    return ModelInfo(
        architecture=arch,
        parameter_count=sum(tensor.elements for tensor in tensors),
        quant=get_file_type_name(meta.get("general.file_type")) or quant or _most_common(headers),
        context_length=_int(meta, f"{arch}.context_length"),
        embedding_length=embedding,
        block_count=layers,
        head_count=head_count,
        head_count_kv=_per_layer(
            _ints(meta, f"{arch}.attention.head_count_kv", MOST_HEADS) or heads, layers
        ),
        key_length=_int(meta, f"{arch}.attention.key_length") or width,
        value_length=_int(meta, f"{arch}.attention.value_length") or width,
        sliding_window=_int(meta, f"{arch}.attention.sliding_window"),
        vocab_size=_int(meta, f"{arch}.vocab_size") or _length(meta, "tokenizer.ggml.tokens"),
        weights_bytes=_sum_bytes(tensors) + beside_bytes,
        beside_bytes=beside_bytes,
        chat_template=template,
        template_family=known.family if known else None,
        turn_end=(known.end, turns[known.end]) if known else None,
        bos_token=special.get("bos"),
        eos_token=special.get("eos"),
        fim_tokens=(fim[0], fim[1], fim[2]) if all(fim) else None,
        adds_bos=_adds_bos(meta),
        capabilities=_capabilities(meta, arch, template, projector, inserts=all(fim)),
        license=_text(meta, "general.license"),
        sampling=read_sampling({key: _shorten(meta.get(key)) for key in IN_GGUF}, IN_GGUF),
        metadata=meta,
        tensors=tuple((tensor.name, tensor.type_name, tensor.shape) for tensor in tensors),
    )


def _sum_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.size_bytes or 0 for tensor in tensors)


def _capabilities(
    meta: Mapping[str, object],
    arch: str,
    template: str | None,
    projector: GgufHeader | None,
    *,
    inserts: bool,
) -> frozenset[Capability]:
    if f"{arch}.pooling_type" in meta:
        return frozenset({Capability.EMBEDDING})
    found = {Capability.COMPLETION, *read_template_capabilities(template, arch)}
    if inserts:
        found.add(Capability.INSERT)
    if projector is not None:
        # older projectors lack these keys and are all for images
        if projector.metadata.get("clip.has_vision_encoder", True):
            found.add(Capability.VISION)
        if projector.metadata.get("clip.has_audio_encoder"):
            found.add(Capability.AUDIO)
    return frozenset(found)


def apply_template(info: ModelInfo, bundle: Bundle) -> ModelInfo:
    """Return a model's capabilities by the template of its Modelfile, if it has one."""
    if bundle.template is None or Capability.COMPLETION not in info.capabilities:
        return info
    from vllama.chat.templates.go_template_prompt import parse_go_template

    try:
        template = parse_go_template(bundle.template)
    except BadRequest:  # said when it is used: a list of models must not fail
        return info
    found = info.capabilities - {Capability.TOOLS, Capability.THINKING}
    by_family = Capability.THINKING in read_template_capabilities(None, info.architecture)
    for capability, has in (
        (Capability.TOOLS, template.takes_tools),
        (Capability.INSERT, template.takes_suffix),
        (Capability.THINKING, by_family or template.think_tags is not None),
    ):
        found |= {capability} if has else set()
    return replace(info, capabilities=found)


def describe_template(bundle: Bundle, info: ModelInfo) -> str:
    """Say where the template comes from, if it is in none of the model's files; else nothing."""
    chats = Capability.COMPLETION in info.capabilities and bundle.format is not Format.REMOTE
    if not chats or bundle.template is not None:
        return ""
    if info.mistral_tokenizer:
        return "none: Mistral's tokenizer builds the prompts"
    if info.template_family:
        return f"{info.template_family}, recognized by its tokens"
    return "" if info.chat_template else "none, and none recognized: prompts are sent as plain text"


def control_tokens(info: ModelInfo) -> Mapping[int, str]:
    """Return the texts of the tokens that mark turns and their like, by id. Blocking."""
    meta = info.metadata
    return _control_tokens(
        _hashable(meta.get("tokenizer.ggml.tokens")),
        _hashable(meta.get("tokenizer.ggml.token_type")),
    )


@lru_cache(maxsize=8)
def _control_tokens(
    tokens: LongArray | tuple[object, ...], kinds: LongArray | tuple[object, ...]
) -> Mapping[int, str]:
    texts = tokens.load() if isinstance(tokens, LongArray) else tokens
    marks = kinds.load() if isinstance(kinds, LongArray) else kinds
    pairs = zip(texts, marks, strict=False)
    return {n: str(text) for n, (text, kind) in enumerate(pairs) if kind in _CONTROL}


def _hashable(value: object) -> LongArray | tuple[object, ...]:
    if isinstance(value, LongArray):
        return value
    return tuple(value) if isinstance(value, list) else ()


def build_details(bundle: Bundle, info: ModelInfo, *, lengths: bool = True) -> ModelDetails:
    """Return the object `details` of `/api/tags`, `/api/ps` and `/api/show`.

    Only the first two have the `lengths`.
    """
    return ModelDetails(
        parent_model=bundle.base or "",
        format=bundle.format.value,
        family=info.architecture,
        families=[info.architecture],
        parameter_size=format_parameter_count(info.parameter_count),
        quantization_level=info.quant or bundle.quant or "unknown",
        context_length=info.context_length or 0 if lengths else 0,
        embedding_length=info.embedding_length or 0 if lengths else 0,
    )


def read_projector_info(path: Path) -> dict[str, object]:
    """Return the object `read_projector_info` of `/api/show`. Raises BadModelFile. Blocking."""
    return build_model_info(combine_headers([read_header(path)]))


def build_model_info(info: ModelInfo, verbose: bool = False) -> dict[str, object]:
    """Return the object `model_info` of `/api/show`.

    Arrays are null without `verbose`; those that the reader skipped are read from the file now.
    """
    view: dict[str, object] = {}
    for key, value in sorted(info.metadata.items()):
        if key in _HIDDEN:
            continue
        if isinstance(value, LongArray):
            view[key] = value.load() if verbose else None
        elif isinstance(value, list):
            view[key] = [_shorten(item) for item in value] if verbose else None
        else:
            view[key] = _shorten(value)
    if info.parameter_count is not None:
        view["general.parameter_count"] = info.parameter_count
    return view


def _shorten(value: object) -> object:
    """Return a number with the fewest digits that mean the same float32, as Go writes one."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    if value.is_integer():
        return int(value)
    if array("f", [value])[0] != value:
        return value
    return next(
        number
        for digits in range(1, 18)
        if array("f", [number := float(f"{value:.{digits}g}")])[0] == value
    )


def _template(meta: Mapping[str, object]) -> str | None:
    default = _text(meta, "tokenizer.chat_template")
    if default is not None:
        return default
    names = meta.get("tokenizer.chat_templates")  # several templates, none of them the default
    for name in names if isinstance(names, list) else []:
        if template := _text(meta, f"tokenizer.chat_template.{name}"):
            return template
    return None


def _adds_bos(meta: Mapping[str, object]) -> bool:
    """Tell whether the tokenizer puts BOS first; the defaults are llama.cpp's (llama-vocab.cpp)."""
    said = meta.get("tokenizer.ggml.add_bos_token")
    if isinstance(said, bool):
        return said
    sentencepiece = meta.get("tokenizer.ggml.model") == "llama"
    return sentencepiece or meta.get("tokenizer.ggml.pre") in _BOS_BY_DEFAULT


def _most_common(headers: Sequence[GgufHeader]) -> str | None:
    sizes: Counter[str] = Counter()
    for header in headers:
        for tensor in header.tensors:
            sizes[tensor.type_name] += tensor.size_bytes or 0
    return sizes.most_common(1)[0][0] if sizes else None


def _text(meta: Mapping[str, object], key: str) -> str | None:
    value = meta.get(key)
    return value if isinstance(value, str) and value else None


def _int(meta: Mapping[str, object], key: str, most: int = MOST_NUMBER) -> int | None:
    values = _ints(meta, key, most)
    return max(values) if values else None


def _ints(meta: Mapping[str, object], key: str, most: int = MOST_NUMBER) -> tuple[int, ...]:
    value = meta.get(key)
    items = value if isinstance(value, list) else [value]
    found = tuple(i for i in items if isinstance(i, int) and not isinstance(i, bool))
    wrong = next((i for i in found if not 0 <= i <= most), None)
    if wrong is not None:
        raise BadModelFile(
            f"cannot use the model: its '{key}' is {wrong}", hint="download the file again"
        )
    return found


def _length(meta: Mapping[str, object], key: str) -> int | None:
    value = meta.get(key)
    if isinstance(value, LongArray):
        return value.count
    return len(value) if isinstance(value, list) else None


def _per_layer(heads: tuple[int, ...], layers: int | None) -> tuple[int, ...] | None:
    if not heads:
        return None
    return heads * layers if len(heads) == 1 and layers else heads
