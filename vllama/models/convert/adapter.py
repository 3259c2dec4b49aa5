"""LoRA adapters as PEFT writes them (`adapter_config.json`, safetensors) → GGUF.

The matrices stay, under the names of the base's tensors; some architectures order the rows of
queries and keys differently, and the base's header tells enough for that. As in Ollama
(convert/convert_llama_adapter.go) nothing has to be installed: `convert_lora_to_gguf.py` is not in
llama.cpp's converter on PyPI, and wants the base's `config.json`, which a GGUF comes without.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllama.base.errors import BadModelFile, BadRequest
from vllama.models.companions import CONVERT, check_adapter
from vllama.models.convert.work import move_to_blobs
from vllama.models.convert.workspace import check_free_space, open_workspace
from vllama.models.headers.lora import CONFIG, WEIGHTS
from vllama.models.headers.safetensors import read_header, read_tensor
from vllama.models.library import Library
from vllama.models.limits import decode_json, read_limited
from vllama.models.types import Bundle, Format, ModelInfo

INTERLEAVED = frozenset({"llama", "mistral3", "granite", "arcee", "smollm3", "minicpm", "olmo"})
"""Architectures with the halves of each head interleaved (conversion/llama.py: `permute`)."""
SAME = frozenset({
    "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "gemma", "gemma2", "gemma3",
    "gemma4", "phi3", "command-r", "cohere2", "starcoder2", "stablelm", "olmo2", "seed_oss",
    "exaone4", "ernie4_5", "hunyuan-dense", "gpt-oss", "apertus",
})  # fmt: skip
NAMES = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
    "qkv_proj": "attn_qkv", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
    "gate_up_proj": "ffn_up", "c_fc": "ffn_up", "c_proj": "ffn_down",
}  # fmt: skip
_TENSOR = re.compile(
    r"(?:base_model\.|model\.|language_model\.)*layers\.(\d{1,6})\.(?:self_attn|mlp)\.(\w+)"
    r"\.lora_([AB])\.(?:default\.)?weight"
)
_KINDS = {"F32": 0, "F16": 1, "BF16": 30}  # ggml's numbers
Tensors = Mapping[str, tuple[int, list[int], bytes]]
Files = Mapping[str, Path]


def bring_adapters(library: Library, base: Bundle, name: str, files: Files) -> tuple[Path, ...]:
    """Return the adapters among `files` (name → where it lies), stored as GGUF if they are PEFT's.

    For a base of safetensors their folder stays as it is: engines load it.

    Raises BadRequest, VllamaError. Blocking.
    """
    if files and not any(each == CONFIG or each.endswith(".safetensors") for each in files):
        return tuple(files.values())
    try:
        if missing := {CONFIG, WEIGHTS} - files.keys():
            raise BadModelFile(f"it has no {' and no '.join(sorted(missing))}")
        folders = {path.parent for part, path in files.items() if part == path.name}
        if base.format is Format.SAFETENSORS and len(folders) == 1:
            return tuple(folders)
        if base.format is not Format.GGUF:
            raise BadModelFile(f"'{base.name}' is not a GGUF file; use vllama create -q F16")
        config, info = decode_json(read_limited(files[CONFIG])), library.info(base)
        content = encode(info.architecture, config, read_tensors(files[WEIGHTS], info))
    except (ValueError, BadModelFile) as error:
        raise BadRequest(f"cannot convert the adapter '{name}': {error}", hint=CONVERT) from error
    with open_workspace(library.local.blobs.folder) as folder:
        check_free_space(folder, len(content), f"convert the adapter '{name}'")
        made = folder / "adapter"
        made.write_bytes(content)
        check_adapter(made, info, name)
        return (move_to_blobs(library.local, made),)


def read_tensors(weights: Path, info: ModelInfo) -> Tensors:
    """Return the tensors for a model like `info`: type, shape, numbers. Raises BadModelFile."""
    if info.architecture not in INTERLEAVED | SAME:
        raise BadModelFile(f"the architecture {info.architecture} is not supported")
    heads = {"attn_q": info.head_count or 1, "attn_k": max(info.cached_heads, default=1)}
    tensors = {}
    for name, entry in read_header(weights)[0].items():
        found = _TENSOR.fullmatch(name)
        if not found or found[2] not in NAMES or entry.dtype not in _KINDS or len(entry.shape) != 2:
            raise BadModelFile(f"its tensor '{name[:80]}' ({entry.dtype}) is not supported")
        data, own, part = read_tensor(weights, entry), NAMES[found[2]], found[3].lower()
        if part == "b" and own in heads and info.architecture in INTERLEAVED:
            data = interleave(data, entry.shape[0], max(heads[own], 1))
        place = f"blk.{int(found[1])}.{own}.weight.lora_{part}"
        tensors[place] = _KINDS[entry.dtype], entry.shape[::-1], data
    return tensors


def interleave(data: bytes, rows: int, heads: int) -> bytes:
    """Reorder rows: of each head, one of its first half and one of its second in turn."""
    size, half = len(data) // max(rows, 1), max(rows // heads // 2, 1)
    starts = range(0, rows, 2 * half)
    order = [start + row + part for start in starts for row in range(half) for part in (0, half)]
    return b"".join(data[row * size : (row + 1) * size] for row in order)


def encode(architecture: str, config: Any, tensors: Tensors) -> bytes:
    """Return a GGUF adapter (ggml/docs/gguf.md, version 3). Raises BadModelFile."""
    match config:
        case {"peft_type": "LORA", "lora_alpha": int() | float() as alpha, "r": int() as rank}:
            by_root = bool(config.get("use_rslora"))
        case _:
            raise BadModelFile("it is not a PEFT LoRA adapter")
    if not tensors or config.get("alpha_pattern") or (by_root and config.get("rank_pattern")):
        raise BadModelFile("it has no tensors, or scales them individually")

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    about = {
        "general.architecture": architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(about) + 1)
    head += b"".join(text(key) + struct.pack("<I", 8) + text(about[key]) for key in about)
    # llama.cpp divides by the rank, rank-stabilized LoRA by its root
    head += text("adapter.lora.alpha") + struct.pack("<If", 6, alpha * rank ** (by_root / 2))
    body = bytearray()
    for name, (kind, shape, data) in tensors.items():
        head += text(name) + struct.pack("<IQQIQ", 2, *shape, kind, len(body))
        body += data + bytes(-len(data) % 32)
    return head + bytes(-len(head) % 32) + body
