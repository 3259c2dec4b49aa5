"""A model whose answers are the same on every machine: it counts, whatever it is asked.

What a trained model says next can hang on the last bit of a sum, which differs between processors,
between numbers of threads, and between a prompt that is read whole and one whose beginning the
engine still has. This model has no such sums: its embeddings are orthogonal vectors of +1 and -1,
its layers add nothing to them, and the output vector of a word is the embedding of the word before
it. The next word has a logit of 64 and all others have exactly 0, so that no usual temperature
makes another one likely. At the temperature `WILD` all are about equally likely, and a seed still
repeats them.

The tokenizer and the template are SmolLM2's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

WIDTH = 256
HEAD = 64
LAYERS = 2
CONTEXT = 8192
LOGIT = 64.0
WILD = 100.0
NUMBERS = [
    *(" one", " two", " three", " four", " five"),
    *(" six", " seven", " eight", " nine", " ten"),
]
SMILE = [bytes([byte]) for byte in "😀".encode()]
"""One character of four tokens."""


def write_counting_gguf(
    source: Path,
    path: Path,
    words: Sequence[str | bytes] = NUMBERS,
    *,
    ends: bool = False,
    template: str | None = None,
    tool_template: str | None = None,
    pre_tokenizer: str | None = None,
) -> Path:
    """Write a model that has the tokenizer of SmolLM2's GGUF at `source`; return `path`.

    It says the first of `words` (each is one token) after any text, and after each of them the
    next: round and round, or once if `ends`.
    """
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(path.stem)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(WIDTH // HEAD)
    writer.add_head_count_kv(WIDTH // HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(100_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    changed = {"tokenizer.chat_template": template, "tokenizer.ggml.pre": pre_tokenizer}
    for field in reader.fields.values():
        if field.name.startswith("tokenizer."):
            value = changed.get(field.name) or field.contents()
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, value, field.types[0], inner)

    if tool_template is not None:
        writer.add_string("tokenizer.chat_template.tool_use", tool_template)

    said = [tokens.index(_spelt(word)) for word in words]
    vectors = _orthogonal(WIDTH)
    embeddings = np.tile(vectors[0], (len(tokens), 1))
    embeddings[said] = vectors[1 : 1 + len(said)]
    output = np.zeros_like(embeddings)
    output[said[0]] = vectors[0]
    output[said[1:]] = embeddings[said[:-1]]
    output[tokens.index("<|im_end|>") if ends else said[0]] += embeddings[said[-1]]
    writer.add_tensor("token_embd.weight", embeddings)
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.full(WIDTH, LOGIT / WIDTH, np.float32))
    square, wide = np.zeros((WIDTH, WIDTH), np.float16), np.zeros((2 * WIDTH, WIDTH), np.float16)
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(WIDTH, np.float32))
        for name in ("attn_q", "attn_k", "attn_output"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", square)
        # not zero: what an adapter adds to `attn_output` is a multiple of this
        writer.add_tensor(f"blk.{layer}.attn_v.weight", np.eye(WIDTH, dtype=np.float16))
        for name in ("ffn_gate", "ffn_up"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", wide)
        writer.add_tensor(f"blk.{layer}.ffn_down.weight", np.ascontiguousarray(wide.T))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _orthogonal(size: int):
    """Return so many vectors of +1 and -1 at right angles (Sylvester's), for a power of two."""
    import numpy as np

    made = np.ones((1, 1), np.float16)
    while len(made) < size:
        made = np.block([[made, made], [made, -made]])
    return made


def _spelt(word: str | bytes) -> str:
    """Return a token as a vocabulary of GPT-2's kind has it: bytes that do not print are moved."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    data = word.encode() if isinstance(word, str) else word
    return "".join(chr(b) if b in plain else chr(256 + moved.index(b)) for b in data)
