"""Arguments for vLLM that follow from the model's files: their format, and drafts. Pure."""

from __future__ import annotations

import json

from vllama.engines.argv import has_flag
from vllama.engines.base import Settings
from vllama.models.types import Bundle, ModelInfo

SPECULATION = ("--speculative-config", "-sc")
METHODS = {"simple": "draft_model", "mtp": "mtp"}
DRAFT_TOKENS, HEAD_TOKENS = 5, 1


def build_draft_config(bundle: Bundle, settings: Settings) -> str | None:
    """Return the value of `--speculative-config`, None without a draft model.

    The numbers of tokens are those of vLLM's documentation (features/speculative_decoding). It
    finds out by itself what kind of head a draft model is.
    """
    kind = settings.draft_kind
    if kind is None:
        return None
    count = bundle.parameters.get("draft_num_predict")
    default = HEAD_TOKENS if kind == "mtp" else DRAFT_TOKENS
    config: dict[str, object] = {
        "num_speculative_tokens": count if isinstance(count, int) else default
    }
    if bundle.draft is not None:
        config["model"] = str(bundle.draft)
    if method := METHODS.get(kind):
        config["method"] = method
    return json.dumps(config)


def choose_formats(info: ModelInfo, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options for files in Mistral's own format, except those that are `given`."""
    wanted = []
    if info.mistral_tokenizer:
        wanted.append("--tokenizer-mode")
    if info.mistral_weights:
        wanted += ["--config-format", "--load-format"]
    return tuple(word for flag in wanted if not has_flag(given, flag) for word in (flag, "mistral"))
