"""Safetensors models: a folder with a config and weights, read without torch.

The config is `config.json`, or `params.json` in Mistral's own format (`mistral_format`).

A file is a little-endian u64 (length of the header), that many bytes of JSON
`{name: {dtype, shape, data_offsets}}`, then the data (github.com/huggingface/safetensors).
`metadata` is given the names that a GGUF of the same model would have, for `/api/show`.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from vllama.base.errors import BadModelFile
from vllama.models.headers.chat_templates import (
    check_template_length,
    find_known_template,
    read_template_capabilities,
)
from vllama.models.headers.sampling import IN_CONFIG, read_sampling
from vllama.models.limits import (
    MOST_FILE_BYTES,
    MOST_HEADS,
    MOST_LAYERS,
    MOST_NUMBER,
    MOST_WEIGHTS,
    decode_json,
    read_limited,
)
from vllama.models.lookup import rest_on
from vllama.models.names.mistral_format import (
    PARAMS,
    WEIGHTS_INDEX,
    has_mistral_tokenizer,
    takes_tools,
    translate_params,
)
from vllama.models.names.quant import read_scheme
from vllama.models.names.variants import CONFIG, INDEX, choose_weights, is_mistral_format
from vllama.models.types import Capability, ModelInfo

_MAX_HEADER = 32 * 1024 * 1024  # the largest real ones have some 2 MB
MAX_TOKENIZER_BYTES = 64 * 1024 * 1024
_MAX_DIMS = 16
_MAX_TENSORS = 131_072
_AGAIN = "download the model again"
_QUANT_NAMES = {"BF16": "BF16", "F16": "F16", "F32": "F32", "F8_E4M3": "FP8", "F8_E5M2": "FP8"}
FLOATS = {"F64": "d", "F32": "f", "F16": "e", "BF16": "f"}
"""Types of numbers that are read here, and `struct`'s codes for them."""
_GENERATES = ("CausalLM", "ConditionalGeneration", "LMHeadModel")
_PACKED = (".qweight", ".weight_packed")  # GPTQ/AWQ and compressed-tensors


_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_FILE_BYTES)]


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Listed(msgspec.Struct):
    content: str
    special: bool = False


class TensorEntry(msgspec.Struct):
    """A tensor's line in a header."""

    dtype: str
    shape: Annotated[list[_Count], msgspec.Meta(max_length=_MAX_DIMS)]
    data_offsets: tuple[_Count, _Count]


class _Tokenizer(msgspec.Struct):
    """`tokenizer.json`, as far as it is read."""

    added_tokens: list[_AddedToken] = msgspec.field(default_factory=list)


def read_folder(folder: Path) -> ModelInfo:
    """Read a model folder's config and weight headers; raise BadModelFile."""
    names = list_names(folder)
    is_mistral = is_mistral_format(names)
    config = translate_params(_json(folder / PARAMS)) if is_mistral else _json(folder / CONFIG)
    makes_prompts = has_mistral_tokenizer(names)
    text = config.get("text_config")
    inner = {**config, **text} if isinstance(text, dict) else config
    architectures = config.get("architectures")
    first = str(architectures[0]) if isinstance(architectures, list) and architectures else None
    arch = str(config.get("model_type") or first or "unknown")
    bits = _bits(config)
    parameters, weights_bytes, dtypes = _weights(folder, bits)
    heads = _int(inner, "num_attention_heads", MOST_HEADS)
    layers = _int(inner, "num_hidden_layers", MOST_LAYERS)
    hidden = _int(inner, "hidden_size")
    kv = _int(inner, "num_key_value_heads", MOST_HEADS) or heads
    width = _int(inner, "head_dim") or (hidden // heads if hidden and heads else None)
    tokenizer = _json(folder / "tokenizer_config.json", missing_is_fine=True)
    template = None if makes_prompts else check_template_length(_template(folder, tokenizer))
    added = _read_added_tokens(folder) if template is None else []
    tokens = {token.content: token.id for token in added}
    known = find_known_template(tokens, sentencepiece=(folder / "tokenizer.model").is_file())
    capabilities = _capabilities(folder, config, first, arch, known.template if known else template)
    if Capability.COMPLETION not in capabilities:
        known = None
    elif makes_prompts and takes_tools(names):
        capabilities |= {Capability.TOOLS}
    context = _int(inner, "max_position_embeddings")
    return ModelInfo(
        architecture=arch,
        parameter_count=parameters,
        quant=_quant(config, dtypes),
        context_length=context,
        embedding_length=hidden,
        block_count=layers,
        head_count=heads,
        head_count_kv=(kv,) * (layers or 1) if kv else None,
        key_length=width,
        value_length=width,
        sliding_window=_int(inner, "sliding_window"),
        vocab_size=_int(inner, "vocab_size"),
        weights_bytes=weights_bytes,
        chat_template=known.template if known else template,
        template_family=known.family if known else None,
        turn_end=(known.end, tokens[known.end]) if known else None,
        bos_token=_token(tokenizer, "bos_token"),
        eos_token=_token(tokenizer, "eos_token"),
        adds_bos=tokenizer.get("add_bos_token") is True,
        sampling=_sampling(folder),
        special_tokens=_special_tokens(folder, tokenizer),
        mistral_weights=is_mistral,
        mistral_tokenizer=makes_prompts,
        capabilities=capabilities,
        metadata=_name_fields(arch, context, hidden, layers, heads, kv, inner),
    )


def read_header(path: Path) -> tuple[dict[str, TensorEntry], dict[str, object]]:
    """Return the entries of a file's tensors, and its own metadata; offsets count from its data.

    Raises OSError, and BadModelFile if its data is not all there.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise _bad(path, "it is not a safetensors file, or its header is truncated")
        raw = file.read(length)
    if raw.count(b"{") > _MAX_TENSORS:
        raise _bad(path, f"its header has more than {_MAX_TENSORS} tensors")
    try:
        parts = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        about = msgspec.json.decode(parts.pop("__metadata__", b"{}"))
        entries = {
            name: msgspec.json.decode(part, type=TensorEntry) for name, part in parts.items()
        }
    except (ValueError, RecursionError) as error:
        raise _bad(path, "its header is damaged") from error
    wrong = next((n for n, entry in entries.items() if not _is_possible(entry)), None)
    if wrong is not None:
        raise _bad(path, f"its header is damaged: invalid tensor {wrong[:80]!r}")
    end = max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if size < 8 + length + end:
        missing = 8 + length + end - size
        raise _bad(
            path,
            f"it is truncated: {missing} bytes of tensor data are missing "
            f"(file has {size}, header declares {8 + length + end})",
        )
    return entries, about if isinstance(about, dict) else {}


def read_tensor(path: Path, entry: TensorEntry) -> bytes:
    """Return the numbers of a tensor, little-endian. Raises OSError."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        file.seek(8 + length + entry.data_offsets[0])
        return file.read(entry.data_offsets[1] - entry.data_offsets[0])


def read_floats(dtype: str, data: bytes) -> Sequence[float]:
    """Return numbers of one of the types in `FLOATS`; what is left of a half one is ignored."""
    if dtype == "BF16":  # the upper half of a float32
        data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
    code = FLOATS[dtype]
    count = len(data) // struct.calcsize(code)
    return struct.unpack_from(f"<{count}{code}", data)


def write_tensor(
    name: str, dtype: str, shape: Sequence[int], data: bytes, about: Mapping[str, str]
) -> bytes:
    """Return a file with one tensor, and metadata of its own."""
    entry = {"dtype": dtype, "shape": list(shape), "data_offsets": [0, len(data)]}
    header = msgspec.json.encode({"__metadata__": dict(about), name: entry})
    header += b" " * (-len(header) % 8)  # so that the numbers are aligned
    return struct.pack("<Q", len(header)) + header + data


def _is_possible(entry: TensorEntry) -> bool:
    begin, end = entry.data_offsets
    return begin <= end and math.prod(entry.shape) <= MOST_WEIGHTS


def list_weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the weight files of a folder: those of the index, else `variants.choose_weights`."""
    names = list_names(folder)
    index = folder / (WEIGHTS_INDEX if is_mistral_format(names) else INDEX)
    if index.is_file():
        return tuple(folder / name for name in sorted(_read_index(index)))
    return tuple(folder / name for name in choose_weights(names))


def list_names(folder: Path) -> tuple[str, ...]:
    """Return the names of everything in a folder; none if it is removed meanwhile."""
    try:
        return tuple(path.name for path in folder.iterdir())
    except OSError:
        return ()


def is_model_folder(folder: Path) -> bool:
    """Tell whether a folder has a config and the weights that belong to it."""
    rest_on(folder / CONFIG)
    has_config = (folder / CONFIG).is_file() or is_mistral_format(list_names(folder))
    return has_config and bool(list_weight_files(folder))


def _read_index(index: Path) -> set[str]:
    """Return the files that an index names; none where it is damaged or leads out of its folder.

    What is listed must not depend on it: one bad index would hide all models.
    """
    try:
        weight_map = _json(index).get("weight_map")
    except BadModelFile:
        return set()
    names = list(weight_map.values()) if isinstance(weight_map, dict) else []
    plain = {name for name in names if isinstance(name, str) and "/" not in name}
    return plain if len(plain) == len({str(name) for name in names}) else set()


def is_mlx(folder: Path) -> bool:
    """Tell whether a model folder was made for Apple's MLX, whose tensors others cannot read.

    mlx-lm writes `{"format": "mlx"}` into its files' headers, and `quantization` into the config.
    """
    try:
        config = _json(folder / CONFIG)
        quantization = config.get("quantization")
        if isinstance(quantization, dict) and "group_size" in quantization:
            return True
        first = next(iter(list_weight_files(folder)), None)
        return first is not None and read_header(first)[1].get("format") == "mlx"
    except (OSError, BadModelFile):
        return False


def _weights(folder: Path, bits: int | None) -> tuple[int, int, Counter[str]]:
    parameters = weights_bytes = 0
    dtypes: Counter[str] = Counter()
    files = list_weight_files(folder)
    if not files:
        raise _bad(folder, "it has no *.safetensors files")
    for path in files:
        try:
            entries, _ = read_header(path)
        except OSError as error:
            raise _bad(path, error.strerror or str(error)) from error
        for name, entry in entries.items():
            count = math.prod(entry.shape)
            weights_bytes += entry.data_offsets[1] - entry.data_offsets[0]
            packed = bits is not None and entry.dtype == "I32" and name.endswith(_PACKED)
            count *= 32 // bits if packed and bits else 1
            parameters += count
            dtypes[entry.dtype] += count
    return parameters, weights_bytes, dtypes


def _quant(config: Mapping[str, object], dtypes: Counter[str]) -> str:
    if scheme := read_scheme(config):
        return scheme
    common = dtypes.most_common(1)[0][0] if dtypes else "unknown"
    return _QUANT_NAMES.get(common, common)


def _bits(config: Mapping[str, object]) -> int | None:
    scheme = config.get("quantization_config")
    bits = scheme.get("bits") if isinstance(scheme, dict) else None
    return bits if bits in (2, 4, 8) else 4 if isinstance(scheme, dict) else None


def _capabilities(
    folder: Path,
    config: Mapping[str, object],
    first: str | None,
    arch: str,
    template: str | None,
) -> frozenset[Capability]:
    generates = first is None or first.endswith(_GENERATES)
    if (folder / "modules.json").is_file() or not generates:  # sentence-transformers' marker
        return frozenset({Capability.EMBEDDING})
    found = {Capability.COMPLETION, *read_template_capabilities(template, arch)}
    if "vision_config" in config:
        found.add(Capability.VISION)
    if "audio_config" in config:
        found.add(Capability.AUDIO)
    return frozenset(found)


def _template(folder: Path, tokenizer: Mapping[str, object]) -> str | None:
    own = folder / "chat_template.jinja"
    if own.is_file():
        try:
            return read_limited(own).decode(errors="replace")
        except (OSError, ValueError) as error:
            raise _bad(own, str(error)) from error
    template = tokenizer.get("chat_template")
    if isinstance(template, list):  # [{"name": "default", "template": "…"}, …]
        named = {str(t.get("name")): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default") or next(iter(named.values()), None)
    return template if isinstance(template, str) else None


def _read_added_tokens(folder: Path) -> list[_AddedToken]:
    """Return the tokens of the vocabulary that are no text."""
    try:
        content = read_limited(folder / "tokenizer.json", MAX_TOKENIZER_BYTES)
        found = msgspec.json.decode(content, type=_Tokenizer)
    except (OSError, ValueError, RecursionError):  # an engine will say what is wrong with it
        return []
    return found.added_tokens


def _special_tokens(folder: Path, tokenizer: Mapping[str, object]) -> tuple[str, ...]:
    """Return the special tokens, of the large `tokenizer.json` only if the config has no list."""
    listed = tokenizer.get("added_tokens_decoder")
    try:
        rows = msgspec.convert(listed, dict[str, _Listed]).values()
    except msgspec.ValidationError:
        return tuple(token.content for token in _read_added_tokens(folder) if token.special)
    return tuple(token.content for token in rows if token.special)


def _sampling(folder: Path) -> dict[str, float]:
    """Return the sampling of `generation_config.json`; an engine will say what is wrong with it."""
    try:
        return read_sampling(_json(folder / "generation_config.json"), IN_CONFIG)
    except BadModelFile:
        return {}


def _token(tokenizer: Mapping[str, object], key: str) -> str | None:
    token = tokenizer.get(key)
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _name_fields(
    arch: str,
    context: int | None,
    hidden: int | None,
    layers: int | None,
    heads: int | None,
    kv: int | None,
    inner: Mapping[str, object],
) -> dict[str, object]:
    values: dict[str, object] = {
        "general.architecture": arch,
        f"{arch}.context_length": context,
        f"{arch}.embedding_length": hidden,
        f"{arch}.block_count": layers,
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv,
        f"{arch}.feed_forward_length": _int(inner, "intermediate_size"),
        f"{arch}.vocab_size": _int(inner, "vocab_size"),
        # heads for the tokens after the next one (multi-token prediction)
        f"{arch}.nextn_predict_layers": _int(inner, "num_nextn_predict_layers")
        or _int(inner, "mtp_num_hidden_layers"),
        # latent attention (DeepSeek): what the cache holds instead of heads
        f"{arch}.attention.kv_lora_rank": _int(inner, "kv_lora_rank"),
    }
    if isinstance(values[f"{arch}.attention.kv_lora_rank"], int):
        values[f"{arch}.rope.dimension_count"] = _int(inner, "qk_rope_head_dim")
    return {key: value for key, value in values.items() if value is not None}


def _int(config: Mapping[str, object], key: str, most: int = MOST_NUMBER) -> int | None:
    """Return a number, None for one that says nothing. Raises BadModelFile for an absurd one."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return None
    if value > most:
        raise BadModelFile(f"cannot use the model: its '{key}' exceeds {most}", hint=_AGAIN)
    return value


def _json(path: Path, missing_is_fine: bool = False) -> dict[str, object]:
    rest_on(path)
    try:
        value = decode_json(read_limited(path))
    except FileNotFoundError:
        if missing_is_fine:
            return {}
        raise _bad(path.parent, f"{path.name} is missing") from None
    except (OSError, ValueError) as error:
        raise _bad(path, f"it is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise _bad(path, "it is not a JSON object")
    return value


def _bad(path: Path, reason: str) -> BadModelFile:
    return BadModelFile(f"cannot use '{path}': {reason}", hint=_AGAIN)
