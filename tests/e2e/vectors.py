"""A model that makes vectors, with MiniLM's header and sizes, and numbers and words by chance.

Its vectors mean nothing, but have the length of MiniLM's, and `/api/show` says the same of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SPECIAL = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
NORMAL, CONTROL, UNUSED = 1, 3, 5
LAYERS, WIDTH, FEED_FORWARD, CONTEXT = 6, 384, 1536, 512
PREFIX = "▁"  # begins a word in llama.cpp's vocabularies


def write_vectors_gguf(path: Path, shown: Mapping[str, Any]) -> Path:
    """Write the model; `shown` is what `/api/show` says of MiniLM as `model_info`."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "bert")
    for key, value in shown.items():
        if key in ("general.architecture", "general.parameter_count"):
            continue
        match value:
            case None if key.startswith("general."):
                writer.add_array(key, ["en"])
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
    letters = [chr(code) for code in range(33, 127)]
    words = [PREFIX + letter for letter in letters] + letters
    size = 30522
    tokens = [SPECIAL.get(number, f"[unused{number}]") for number in range(size)]
    kinds = [CONTROL if number in SPECIAL else UNUSED for number in range(size)]
    tokens[1000 : 1000 + len(words)] = words
    kinds[1000 : 1000 + len(words)] = [NORMAL] * len(words)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    random = np.random.default_rng(0)

    def add(name: str, *shape: int, kind: Any = np.float32) -> None:
        numbers = random.standard_normal(shape, np.float32) * 0.05
        writer.add_tensor(name, numbers.astype(kind))

    def add_linear(name: str, out: int, width: int) -> None:
        add(f"{name}.weight", out, width, kind=np.float16)
        add(f"{name}.bias", out)

    add("token_embd.weight", size, WIDTH, kind=np.float16)
    add("position_embd.weight", CONTEXT, WIDTH)
    add("token_types.weight", 2, WIDTH)
    for part in ("weight", "bias"):
        add(f"token_embd_norm.{part}", WIDTH)
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add_linear(f"blk.{layer}.{name}", WIDTH, WIDTH)
        add_linear(f"blk.{layer}.ffn_up", FEED_FORWARD, WIDTH)
        add_linear(f"blk.{layer}.ffn_down", WIDTH, FEED_FORWARD)
        for name in ("attn_output_norm", "layer_output_norm"):
            for part in ("weight", "bias"):
                add(f"blk.{layer}.{name}.{part}", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
