"""The sampling that a model's own files name, under the names of Ollama's options. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

# of generation_config.json: those that vLLM takes (config/model.py, `get_diff_sampling_param`)
IN_CONFIG = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
    "repetition_penalty": "repeat_penalty", "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}  # fmt: skip
# of a GGUF's header (llama.cpp's src/llama-model.cpp, `llama_model_meta_key_str`)
IN_GGUF = {
    f"general.sampling.{theirs}": ours
    for theirs, ours in (
        ("temp", "temperature"), ("top_p", "top_p"), ("top_k", "top_k"), ("min_p", "min_p"),
        ("penalty_last_n", "repeat_last_n"), ("penalty_repeat", "repeat_penalty"),
    )
}  # fmt: skip


def read_sampling(values: Mapping[str, object], names: Mapping[str, str]) -> dict[str, float]:
    """Return the parameters among `values`, whose names are `names`; what is no number is none."""
    return {
        ours: value
        for theirs, ours in names.items()
        if isinstance(value := values.get(theirs), int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    }
