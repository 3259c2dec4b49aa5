"""Safetensors models: a folder with `config.json` and weights, read without torch.

A file is a little-endian u64 (length of the header), that many bytes of JSON
`{name: {dtype, shape, data_offsets}}`, then the data (github.com/huggingface/safetensors).
`metadata` is given the names that a GGUF of the same model would have, for `/api/show`.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from vllama.errors import BadModelFile
from vllama.models.capabilities import template_capabilities
from vllama.models.known_templates import recognised
from vllama.models.types import Capability, ModelInfo

_MAX_HEADER = 100_000_000  # the reference implementation's limit
_AGAIN = "fetch the model again"
_QUANT_NAMES = {"BF16": "BF16", "F16": "F16", "F32": "F32", "F8_E4M3": "FP8", "F8_E5M2": "FP8"}
_GENERATES = ("CausalLM", "ConditionalGeneration", "LMHeadModel")
_PACKED = (".qweight", ".weight_packed")  # GPTQ/AWQ and compressed-tensors


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _Tokenizer(msgspec.Struct):
    """`tokenizer.json`, as far as it is read."""

    added_tokens: list[_AddedToken] = msgspec.field(default_factory=list)


def read_folder(folder: Path) -> ModelInfo:
    """Read a model folder's config and weight headers; raise BadModelFile."""
    config = _json(folder / "config.json")
    text = config.get("text_config")
    inner = {**config, **text} if isinstance(text, dict) else config
    architectures = config.get("architectures")
    first = str(architectures[0]) if isinstance(architectures, list) and architectures else None
    arch = str(config.get("model_type") or first or "unknown")
    bits = _bits(config)
    parameters, weights_bytes, dtypes = _weights(folder, bits)
    heads = _int(inner, "num_attention_heads")
    layers = _int(inner, "num_hidden_layers")
    hidden = _int(inner, "hidden_size")
    kv = _int(inner, "num_key_value_heads") or heads
    width = _int(inner, "head_dim") or (hidden // heads if hidden and heads else None)
    tokenizer = _json(folder / "tokenizer_config.json", missing_is_fine=True)
    template = _template(folder, tokenizer)
    tokens = _added_tokens(folder) if template is None else {}
    known = recognised(tokens, sentencepiece=(folder / "tokenizer.model").is_file())
    capabilities = _capabilities(folder, config, first, arch, known.template if known else template)
    if Capability.COMPLETION not in capabilities:
        known = None
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
        capabilities=capabilities,
        metadata=_named(arch, context, hidden, layers, heads, kv, inner),
    )


def read_weights_header(path: Path) -> dict[str, object]:
    """Read one file's header and check that its data is all there; raise BadModelFile."""
    return _read_header(path)[0]


def _read_header(path: Path) -> tuple[dict[str, object], dict[str, object]]:
    """Return the entries of the tensors, and the file's own metadata."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise _bad(path, "it is no safetensors file, or is cut inside its header")
        raw = file.read(length)
    try:
        header = json.loads(raw)
        entries = {k: v for k, v in header.items() if k != "__metadata__"}
        about = header.get("__metadata__")
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise _bad(path, "its header is damaged") from error
    if size < 8 + length + end:
        missing = 8 + length + end - size
        raise _bad(
            path,
            f"it is cut: {missing} bytes of tensor data are missing "
            f"(file has {size}, header announces {8 + length + end})",
        )
    return entries, about if isinstance(about, dict) else {}


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the weight files of a folder: those of the index, else all `*.safetensors`."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = _json(index).get("weight_map")
        names = set(weight_map.values()) if isinstance(weight_map, dict) else set()
        return tuple(folder / str(name) for name in sorted(names, key=str))
    files = sorted(folder.glob("*.safetensors"))
    return tuple(path for path in files if not path.name.startswith("consolidated"))


def is_mlx(folder: Path) -> bool:
    """Tell whether a model folder was made for Apple's MLX, whose tensors others cannot read.

    mlx-lm writes `{"format": "mlx"}` into its files' headers, and `quantization` into the config.
    """
    try:
        config = _json(folder / "config.json")
        quantization = config.get("quantization")
        if isinstance(quantization, dict) and "group_size" in quantization:
            return True
        first = next(iter(weight_files(folder)), None)
        return first is not None and _read_header(first)[1].get("format") == "mlx"
    except (OSError, BadModelFile):
        return False


def _weights(folder: Path, bits: int | None) -> tuple[int, int, Counter[str]]:
    parameters = weights_bytes = 0
    dtypes: Counter[str] = Counter()
    files = weight_files(folder)
    if not files:
        raise _bad(folder, "there are no *.safetensors files in it")
    for path in files:
        try:
            entries = read_weights_header(path)
        except OSError as error:
            raise _bad(path, error.strerror or str(error)) from error
        for name, entry in entries.items():
            assert isinstance(entry, dict)  # `read_weights_header` indexed it
            count = 1
            for length in entry.get("shape") or ():
                count *= int(length)
            dtype = str(entry.get("dtype"))
            weights_bytes += int(entry["data_offsets"][1]) - int(entry["data_offsets"][0])
            packed = bits is not None and dtype == "I32" and name.endswith(_PACKED)
            count *= 32 // bits if packed and bits else 1
            parameters += count
            dtypes[dtype] += count
    return parameters, weights_bytes, dtypes


def _quant(config: Mapping[str, object], dtypes: Counter[str]) -> str:
    scheme = config.get("quantization_config") or config.get("quantization")
    if isinstance(scheme, dict) and "group_size" in scheme and "quant_method" not in scheme:
        return f"MLX{scheme.get('bits') or ''}"
    if isinstance(scheme, dict):
        return str(scheme.get("quant_method") or "quantized").upper()
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
    found = {Capability.COMPLETION, *template_capabilities(template, arch)}
    if "vision_config" in config:
        found.add(Capability.VISION)
    if "audio_config" in config:
        found.add(Capability.AUDIO)
    return frozenset(found)


def _template(folder: Path, tokenizer: Mapping[str, object]) -> str | None:
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8", errors="replace")
    template = tokenizer.get("chat_template")
    if isinstance(template, list):  # [{"name": "default", "template": "…"}, …]
        named = {str(t.get("name")): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default") or next(iter(named.values()), None)
    return template if isinstance(template, str) else None


def _added_tokens(folder: Path) -> dict[str, int]:
    """Return what is no piece of text in the vocabulary, with its number."""
    try:
        found = msgspec.json.decode((folder / "tokenizer.json").read_bytes(), type=_Tokenizer)
    except (OSError, msgspec.MsgspecError):  # an engine will say what is wrong with it
        return {}
    return {token.content: token.id for token in found.added_tokens}


def _token(tokenizer: Mapping[str, object], key: str) -> str | None:
    token = tokenizer.get(key)
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _named(
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
        # latent attention (DeepSeek): what the cache holds instead of heads
        f"{arch}.attention.kv_lora_rank": _int(inner, "kv_lora_rank"),
    }
    if isinstance(values[f"{arch}.attention.kv_lora_rank"], int):
        values[f"{arch}.rope.dimension_count"] = _int(inner, "qk_rope_head_dim")
    return {key: value for key, value in values.items() if value is not None}


def _int(config: Mapping[str, object], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _json(path: Path, missing_is_fine: bool = False) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        if missing_is_fine:
            return {}
        raise _bad(path.parent, f"there is no {path.name} in it") from None
    except (OSError, ValueError) as error:
        raise _bad(path, f"it is not readable JSON ({error})") from error
    if not isinstance(value, dict):
        raise _bad(path, "it is not a JSON object")
    return value


def _bad(path: Path, reason: str) -> BadModelFile:
    return BadModelFile(f"cannot use '{path}': {reason}", hint=_AGAIN)
