"""Makes tiny models with safetensors; run by the converter's own Python, which has transformers.

    python make_models.py FOLDER

`shards` is a Llama with random weights and a tokenizer of its own (sentencepiece, 400 tokens),
large enough for K-quants, in several files with an index; `sees` is a SmolVLM. `lora` is an
adapter for `shards`, and `merged` what peft makes of both (`merge_and_unload`).
"""

import io
import sys
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer(folder: Path, tokens: int) -> None:
    """Write a tokenizer.model that was trained on numbers and words."""
    words = ["the", "capital", "of", "France", "is", "Paris", "hello", "world", "user", "assistant"]
    lines = [" ".join(words[(i * j) % 10] + str(i * j) for j in range(1, 12)) for i in range(400)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=tokens,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", '
        '"unk_token": "<unk>", "add_bos_token": true}'
    )


def text(folder: Path) -> None:
    """Write a Llama in parts."""
    torch.manual_seed(0)
    tokens = 400
    config = LlamaConfig(
        vocab_size=tokens,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="200KB")
    tokenizer(folder, tokens)


def tuned(base: Path, adapter: Path, merged: Path) -> None:
    """Write an adapter as peft does, and its base with W + alpha / r * B A in the place of W."""
    torch.manual_seed(1)
    model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    tensors = {}
    for name, weight in model.named_parameters():
        if name.endswith("_proj.weight"):
            a, b = torch.randn(4, weight.shape[1]) * 0.2, torch.randn(weight.shape[0], 4) * 0.2
            prefix = "base_model.model." + name.removesuffix("weight")
            tensors |= {f"{prefix}lora_A.weight": a, f"{prefix}lora_B.weight": b}
            weight.data += 8 / 4 * (b @ a)
    adapter.mkdir()
    save_file(tensors, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8}')
    model.save_pretrained(merged)
    tokenizer(merged, 400)


def sees(folder: Path) -> None:
    """Write a SmolVLM: a Llama with eyes."""
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    torch.manual_seed(0)
    tokens = 400
    config = SmolVLMConfig(
        text_config={
            "model_type": "llama",
            "architectures": ["VLlama3ForCausalLM"],
            "vocab_size": tokens,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 512,
        },
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 64,
            "patch_size": 16,
        },
        image_token_id=tokens - 1,
        scale_factor=2,
    )
    model = SmolVLMForConditionalGeneration(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer(folder, tokens)
    (folder / "preprocessor_config.json").write_text(
        '{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], '
        '"size": {"longest_edge": 64}, "do_image_splitting": false}'
    )


if __name__ == "__main__":
    top = Path(sys.argv[1])
    text(top / "shards")
    sees(top / "sees")
    tuned(top / "shards", top / "lora", top / "merged")
