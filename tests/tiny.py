"""Makes a tiny llama GGUF (about 250 KB) that loads and chats in llama.cpp.

Needs the development packages gguf and numpy.

See docs/reference/hub.md#a-test-model-from-nothing.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

_MADE: dict[tuple[object, ...], bytes] = {}


def make_weights(*shape: int, about: Mapping[str, str] | None = None) -> bytes:
    """Make the content of a safetensors file with one tensor, in BF16."""
    size = 2 * math.prod(shape)
    header: dict[str, object] = {
        "w": {"dtype": "BF16", "shape": list(shape), "data_offsets": [0, size]}
    }
    if about:
        header["__metadata__"] = about
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(size)


def write_tiny_gguf(
    path: Path,
    *,
    n_embd: int = 64,
    n_layer: int = 2,
    n_head: int = 2,
    n_kv: int = 1,
    n_ff: int = 128,
    n_ctx: int = 256,
    name: str = "tiny",
    template: str | None = TEMPLATE,
    seed: int = 0,
    extra: Callable[[Any], None] | None = None,
    tokens: Sequence[str] = (),
) -> Path:
    """Write the model to `path`; `extra` may add key/values to the `gguf.GGUFWriter`.

    `tokens` are control tokens that it has besides. Without `extra`, equal models are made once.
    """
    shape = (n_embd, n_layer, n_head, n_kv, n_ff, n_ctx, name, template, seed, tuple(tokens))
    if extra is None and (made := _MADE.get(shape)) is not None:
        path.write_bytes(made)
        return path
    import gguf
    import numpy as np

    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    special = list(tokens)
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    tokens += ["▁"] + [chr(c) for c in range(32, 127)]
    words = len(tokens) - 259
    tokens += special
    writer.add_name(name)
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // n_head)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(1)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    scores = [0.0] * 259 + [-float(i) for i in range(words)] + [0.0] * len(special)
    writer.add_token_scores(scores)
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * words + [3] * len(special))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if template is not None:
        writer.add_chat_template(template)
    if extra is not None:
        extra(writer)

    def weights(*shape: int) -> Any:
        return (random.standard_normal(shape) * 0.05).astype(np.float16)

    ones = np.ones(n_embd, np.float32)
    kv = n_embd // n_head * n_kv
    writer.add_tensor("token_embd.weight", weights(len(tokens), n_embd))
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", weights(len(tokens), n_embd))
    shapes = {
        "attn_q": (n_embd, n_embd),
        "attn_k": (kv, n_embd),
        "attn_v": (kv, n_embd),
        "attn_output": (n_embd, n_embd),
        "ffn_gate": (n_ff, n_embd),
        "ffn_up": (n_ff, n_embd),
        "ffn_down": (n_embd, n_ff),
    }
    for layer in range(n_layer):
        for part, shape in shapes.items():
            writer.add_tensor(f"blk.{layer}.{part}.weight", weights(*shape))
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", ones)
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if extra is None:
        _MADE[shape] = path.read_bytes()
    return path


def write_tiny_lora(
    path: Path,
    *,
    n_embd: int = 64,
    tensor: str = "blk.0.attn_q.weight",
    arch: str = "llama",
    scale: float = 0.5,
    parts: Sequence[str] = ("lora_a", "lora_b"),
    kind: str = "lora",
) -> Path:
    """Write a LoRA adapter of rank 4 for a square tensor of a model with `n_embd`."""
    import gguf
    import numpy as np

    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", 8.0)
    shapes = {"lora_a": (4, n_embd), "lora_b": (n_embd, 4)}
    for part in parts:
        weights = (random.standard_normal(shapes[part]) * scale).astype(np.float32)
        writer.add_tensor(f"{tensor}.{part}", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
