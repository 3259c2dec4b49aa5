"""What is known of a model on another server, put together as a bundle. Pure.

It comes from the user's settings, or else from the server, or else it is a guess that refuses
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from vllama.models.headers.chat_templates import read_template_capabilities
from vllama.models.settings import UpstreamTraits
from vllama.models.stores.base import compute_digest
from vllama.models.stores.upstream_server import ServerFacts
from vllama.models.types import Bundle, Capability, Format, ModelInfo, UpstreamModel

STORE = "upstream"
SCHEME = "upstream:"
# capabilities of a model whose server reports none, so that nothing is refused here
ANYTHING = frozenset(
    {Capability.COMPLETION, Capability.TOOLS, Capability.THINKING, Capability.VISION}
)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_EMBEDS = re.compile(r"(?i)embed|(?:^|[/_-])(?:bge|gte|e5)[_-]|minilm")


def describe_model(
    row: Mapping[str, Any], facts: ServerFacts, shown: Mapping[str, Any], said: UpstreamTraits
) -> Bundle:
    """Return the model of a row in a server's list, under the name that it has there.

    `facts` are those of the server, `shown` is what it shows of the model, `said` what the user
    says of it.
    """
    name: str = row["id"]
    meta = _table(row.get("meta"))
    owner = str(row.get("owned_by") or "")
    info = _read_shown(shown) if shown else ModelInfo(architecture=owner or "unknown")
    tag = facts.tags.get(name) or facts.tags.get(f"{name}:latest") or {}
    digest = str(tag.get("digest")).removeprefix("sha256:")
    context = (
        said.context
        # what is loaded is less, and grows when it is asked for
        or (info.context_length if shown else None)
        or _number(row.get("max_model_len"))
        or _number(_table(facts.props.get("default_generation_settings")).get("n_ctx"))
        or _number(meta.get("n_ctx"))
        or _number(facts.info.get("context_length"))
    )
    embedding_length = info.embedding_length or _number(meta.get("n_embd"))
    capabilities = _capabilities(name, facts, info.capabilities if shown else None, said)
    arch = info.architecture
    numbers = {"context_length": context, "embedding_length": embedding_length}
    metadata = {
        "general.architecture": arch,
        "general.basename": name,
        **info.metadata,
        **{f"{arch}.{key}": value for key, value in numbers.items() if value},
    }
    return Bundle(
        name=name if ":" in PurePosixPath(name).name else f"{name}:latest",
        store=STORE,
        format=Format.REMOTE,
        path=Path(f"{SCHEME}{name}"),
        files=(),
        size_bytes=_number(meta.get("size")) or _number(tag.get("size")) or 0,
        digest=digest if _DIGEST.fullmatch(digest) else compute_digest([(name, "", 0)]),
        modified_s=float(_number(row.get("created")) or 0),
        hub_id=name,
        info=replace(
            info,
            parameter_count=info.parameter_count or _number(meta.get("n_params")),
            context_length=context,
            embedding_length=embedding_length,
            capabilities=capabilities,
            metadata=metadata,
        ),
        upstream=UpstreamModel(
            owner=owner,
            tool_calls_in_text=_in_text(said.tool_calls, facts.info, "tool_call_parser"),
            thinking_in_text=_in_text(said.thinking, facts.info, "reasoning_parser"),
            shown=shown if facts.shows else None,
        ),
    )


def _capabilities(
    name: str,
    facts: ServerFacts,
    shown: frozenset[Capability] | None,
    said: UpstreamTraits,
) -> frozenset[Capability]:
    """Return the capabilities of a model: from the user, or else its server, or else its name."""
    embeds = said.embeddings
    if embeds is None and shown is None:
        embeds = facts.only_embeds or _EMBEDS.search(name) is not None
    if embeds:
        return frozenset({Capability.EMBEDDING})
    found = set(shown or ANYTHING)
    if embeds is False and Capability.EMBEDDING in found:
        found = set(ANYTHING)
    if facts.props:
        template = facts.props.get("chat_template")
        modalities = _table(facts.props.get("modalities"))
        found -= {Capability.TOOLS, Capability.THINKING, Capability.VISION}
        found |= read_template_capabilities(str(template or ""), "")
        found |= {Capability.VISION} if modalities.get("vision") else set()
        found |= {Capability.AUDIO} if modalities.get("audio") else set()
    for capability, wanted in (
        (Capability.TOOLS, None if said.tool_calls is None else said.tool_calls != "none"),
        (Capability.THINKING, None if said.thinking is None else said.thinking != "none"),
        (Capability.VISION, said.images),
    ):
        if wanted is not None:
            found = found | {capability} if wanted else found - {capability}
    return frozenset(found)


def _in_text(said: str | None, info: Mapping[str, Any], parser: str) -> bool | None:
    """Return whether tool calls or thinking remain in the text; SGLang reports its `parser`."""
    if said is not None:
        return said in ("text", "tags")
    return not info[parser] if parser in info else None


def _read_shown(shown: Mapping[str, Any]) -> ModelInfo:
    """Parse an answer of Ollama's `/api/show`."""
    details, metadata = _table(shown.get("details")), dict(_table(shown.get("model_info")))
    arch = str(metadata.get("general.architecture") or details.get("family") or "unknown")
    words = shown.get("capabilities")
    named = {str(word) for word in words} if isinstance(words, list) else set()
    known = frozenset(each for each in Capability if each.value in named)
    level = details.get("quantization_level")
    return ModelInfo(
        architecture=arch,
        parameter_count=_number(metadata.get("general.parameter_count")),
        quant=level if isinstance(level, str) and level else None,
        context_length=_number(metadata.get(f"{arch}.context_length")),
        embedding_length=_number(metadata.get(f"{arch}.embedding_length")),
        capabilities=known or ANYTHING,
        metadata=metadata,
    )


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> int | None:
    """Return `value` if it is a positive integer, else None."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**63:
        return None
    return value
