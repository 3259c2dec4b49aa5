"""Models that always say one text, special tokens included, whatever they are asked.

The next token depends on the last one only: embeddings are one-hot, the layer adds nothing, and the
head maps each token to the next. Weights and tokenizer are written here; nothing is downloaded.
"""

from __future__ import annotations

import json
import re
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

WIDTH, HEADS = 256, 4
END = "<|end_of_all|>"
SURE, LESS = 10.0, 1 / 16
"""Weights of the next token and of a less likely one: the norm makes 16 of an embedding's 1, so the
logits are 160 and 159, which BF16 tells apart."""
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS, "head_dim": WIDTH // HEADS, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
    "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools or '' }}assistant: "
)


def write_bigram(
    folder: Path,
    texts: Sequence[str],
    marks: Iterable[str],
    *,
    template: str = PLAIN,
    generation: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model that says the first of `texts`; the others are a little less likely.

    `marks` become special tokens; what stands between two of them is one token, and no token may
    come twice in a text. The template should hold the marks, as those of real models do.
    """
    special = ["<unk>", END, *dict.fromkeys(marks)]
    split = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))))
    said = [[*filter(None, re.split(f"({split.pattern})", text)), END] for text in texts]
    assert all(len(set(tokens)) == len(tokens) for tokens in said)
    names = list(dict.fromkeys([*special, *(token for tokens in said for token in tokens)]))
    ids = {name: number for number, name in enumerate(names)}
    assert len(ids) <= WIDTH
    follows = {ids[one]: ids[other] for tokens in said for one, other in pairwise(tokens)}
    first = {ids[tokens[0]]: SURE - (LESS if number else 0) for number, tokens in enumerate(said)}
    head = array("f", bytes(4 * WIDTH * WIDTH))
    for token in range(WIDTH):
        chosen = {follows[token]: SURE} if token in follows else first
        for other, logit in chosen.items():
            head[other * WIDTH + token] = logit
    folder.mkdir(parents=True)
    write_weights(folder / "model.safetensors", head)
    files: dict[str, Any] = {
        "config.json": {**CONFIG, "vocab_size": WIDTH, **(config or {})},
        "tokenizer.json": make_tokenizer(ids, special),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "unk_token": "<unk>",
            "clean_up_tokenization_spaces": False,
        },
        "generation_config.json": {"eos_token_id": 1, **(generation or {})},
    }  # fmt: skip
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, ensure_ascii=False))
    (folder / "chat_template.jinja").write_text(template)
    return folder


def make_tokenizer(ids: Mapping[str, int], special: Sequence[str]) -> dict[str, Any]:
    """Return a `tokenizer.json` of whole words; those of a prompt are unknown to it."""
    kinds = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    fill = {f"<fill {number}>": number for number in range(len(ids), WIDTH)}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [
            {"id": ids[name], "content": name, "special": True, **kinds} for name in special
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {**ids, **fill}, "unk_token": "<unk>"},
    }  # fmt: skip


def write_weights(path: Path, head: array[float]) -> None:
    """Write the weights of a Llama whose one layer changes nothing."""
    one_hot = array("f", bytes(4 * WIDTH * WIDTH))
    for number in range(WIDTH):
        one_hot[number * WIDTH + number] = 1.0
    ones, layer = array("f", [1.0] * WIDTH), "model.layers.0"
    tensors: dict[str, tuple[list[int], array[float]]] = {
        "model.embed_tokens.weight": ([WIDTH, WIDTH], one_hot),
        "lm_head.weight": ([WIDTH, WIDTH], head),
        "model.norm.weight": ([WIDTH], ones),
        f"{layer}.input_layernorm.weight": ([WIDTH], ones),
        f"{layer}.post_attention_layernorm.weight": ([WIDTH], ones),
    }
    inner = CONFIG["intermediate_size"]
    shapes = {f"self_attn.{name}_proj": [WIDTH, WIDTH] for name in "qkvo"}
    shapes |= {f"mlp.{name}_proj": [inner, WIDTH] for name in ("gate", "up")}
    for name, (rows, columns) in {**shapes, "mlp.down_proj": [WIDTH, inner]}.items():
        zeros = array("f", bytes(4 * rows * columns))
        tensors[f"{layer}.{name}.weight"] = ([rows, columns], zeros)
    entries, at = {}, 0
    for name, (shape, values) in tensors.items():
        end = at + 4 * len(values)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, end]}
        at = end
    raw = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    raw += b" " * (-len(raw) % 8)
    data = b"".join(values.tobytes() for _, values in tensors.values())
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
