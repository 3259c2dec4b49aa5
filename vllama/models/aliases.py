"""Short library names of Ollama's and the hub repositories that hold the same model as GGUF.

A handful; Ollama's own registry is not asked.
"""

from __future__ import annotations

from vllama.models.ref import Kind, ModelRef

# name without the tag's quantisation → repository; creators' own GGUFs
ALIASES: dict[str, str] = {
    "smollm2:135m": "hf.co/HuggingFaceTB/SmolLM2-135M-Instruct-GGUF",
    "smollm2:360m": "hf.co/HuggingFaceTB/SmolLM2-360M-Instruct-GGUF",
    "smollm2:1.7b": "hf.co/HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
    "qwen2.5:0.5b": "hf.co/Qwen/Qwen2.5-0.5B-Instruct-GGUF",
    "qwen3:0.6b": "hf.co/Qwen/Qwen3-0.6B-GGUF",
}


def hub_alias(ref: ModelRef) -> ModelRef | None:
    """Return the hub reference that a library name stands for, or None."""
    if ref.kind is not Kind.LIBRARY:
        return None
    return next((ModelRef.parse(hub) for name, hub in ALIASES.items() if ref.means(name)), None)
