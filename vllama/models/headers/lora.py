"""LoRA adapters as PEFT writes them: a folder with `adapter_config.json` and safetensors."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from vllama.base.errors import BadModelFile
from vllama.models.limits import decode_json, read_limited

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 512
"""The largest that an engine takes."""


@lru_cache(maxsize=1024)
def read_rank(folder: Path) -> int:
    """Return the rank of an adapter, the largest of its matrices'. Raises BadModelFile."""
    try:
        config = decode_json(read_limited(folder / CONFIG))
        ranks = [config["r"], *config.get("rank_pattern", {}).values()]
        if config["peft_type"] != "LORA" or not all(type(r) is int and r > 0 for r in ranks):
            raise ValueError("it is not a PEFT LoRA adapter")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadModelFile(f"cannot read '{folder / CONFIG}': {error}") from error
    if not (folder / WEIGHTS).is_file():
        raise BadModelFile(f"cannot use '{folder}': it has no {WEIGHTS}")
    if max(ranks) > MAX_RANK:
        raise BadModelFile(f"cannot use '{folder}': rank {max(ranks)} exceeds {MAX_RANK}")
    return int(max(ranks))
