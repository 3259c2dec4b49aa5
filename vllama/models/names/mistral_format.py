"""Mistral's own format: `params.json`, `consolidated*.safetensors` and the tokenizer of
mistral-common (`tekken.json`, or `tokenizer.model.v3` and its like).

Mistral publishes some models in this format only. There is no chat template: the tokenizer makes
the prompts, tool calls included. vLLM reads the format (`--config-format mistral`). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

PARAMS = "params.json"
WEIGHTS_INDEX = "consolidated.safetensors.index.json"
TOKENIZER_PATTERNS = ("tekken.json", "tokenizer.model.v*")
DEFAULT_CONTEXT = 128_000
"""The context that vLLM assumes where `params.json` has none (`MistralConfigParser`, 0.32)."""

_WHOLE = "consolidated.safetensors"
_WEIGHTS = re.compile(r"consolidated(-\d+-of-\d+)?\.safetensors")
_TOKENIZER = re.compile(r"tekken\.json|tokenizer\.model\.v(?P<version>\d+)\w*")
_OTHER_TOKENIZERS = frozenset({"tokenizer.json", "tokenizer.model", "vocab.json"})
# names of the same settings in `config.json`; all others that are read have equal names
_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "hidden_dim": "intermediate_size",
}


def choose_consolidated_weights(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the weights in Mistral's format: one file, or its shards where there is an index."""
    present = set(paths)
    found = sorted(path for path in present if _WEIGHTS.fullmatch(path))
    if _WHOLE in found and len(found) > 1:
        return tuple(p for p in found if p != _WHOLE) if WEIGHTS_INDEX in present else (_WHOLE,)
    return tuple(found)


def has_mistral_tokenizer(names: Iterable[str]) -> bool:
    """Tell whether a folder's only tokenizer is Mistral's own."""
    present = set(names)
    return not present & _OTHER_TOKENIZERS and any(map(_TOKENIZER.fullmatch, present))


def takes_tools(names: Iterable[str]) -> bool:
    """Tell whether the tokenizer can show tools to a model: all can, except the first version."""
    found = filter(None, map(_TOKENIZER.fullmatch, names))
    return any(match["version"] is None or int(match["version"]) > 1 for match in found)


def translate_params(params: Mapping[str, object]) -> dict[str, object]:
    """Return the contents of a `params.json` under the names of transformers' `config.json`."""
    config = {_NAMES.get(name, name): value for name, value in params.items()}
    multimodal = params.get("multimodal")
    parts = multimodal if isinstance(multimodal, dict) else {}
    config["model_type"] = "mixtral" if params.get("moe") else "mistral"
    if params.get("vision_encoder") or "vision_encoder_args" in parts:
        config["vision_config"] = {}
    if "whisper_model_args" in parts:
        config["audio_config"] = {}
    length = params.get("max_position_embeddings") or params.get("max_seq_len")
    config["max_position_embeddings"] = length or DEFAULT_CONTEXT
    scheme = config.pop("quantization", None)
    if isinstance(scheme, dict) and "quantization_config" not in config:
        method = str(scheme.get("qformat_weight") or "quantized").partition("_")[0]
        config["quantization_config"] = {"quant_method": method}
    return config
