"""GGUF files that only Ollama's own, patched loader reads. Pure.

Ollama's library holds models that its engine converted: other names of architectures, and the
image or sound encoder inside the model's own file. Stock llama.cpp refuses them ("unknown model
architecture", "wrong number of tensors"). Known from Ollama's llama/compat (contract §7.3); what
is not told here shows when the engine loads the file.
"""

from __future__ import annotations

from vllama.models.types import ModelInfo

# architecture in Ollama's files → what the same model is called in stock files
RENAMED = {
    "gptoss": "gpt-oss",
    "qwen25vl": "qwen2vl",
    "mllama": "mllama, which llama.cpp does not know at all",
    "olmo3": "olmo2",
    "deepseekocr": "deepseek2-ocr",
    "glmocr": "glm4",
    "glm4moelite": "deepseek2",
    "nemotron_h_omni": "nemotron_h",
}
ENCODERS = ("v.", "mm.", "a.", "s.")
"""What the names of an encoder's tensors begin with; in stock files they are in the mmproj."""
OWN_ENCODERS = frozenset({"clip"})


def only_for_ollama(info: ModelInfo) -> str | None:
    """Return why stock llama.cpp cannot load a file like `info`; None if nothing is known."""
    if name := RENAMED.get(info.architecture):
        return (
            f"the file was made for Ollama's own engine: its architecture is "
            f"'{info.architecture}', not {name}"
        )
    inside = next((tensor for tensor, _, _ in info.tensors if tensor.startswith(ENCODERS)), None)
    if inside is not None and info.architecture not in OWN_ENCODERS:
        return (
            "the file was made for Ollama's own engine: the encoder of images or sound is inside "
            f"it ('{inside}'), not in an mmproj file beside it"
        )
    return None
