"""Models of external servers (`--upstream`), listed from their `/v1/models`.

None of their files is on this disk, so a bundle of this store has no files. It contains the known
facts about the model: from the user's settings, or else from the server, or else a guess that
refuses nothing. Blocking; answers are cached for a while.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from vllama.models.chat_templates import read_template_capabilities
from vllama.models.ref import ModelRef
from vllama.models.settings import UpstreamTraits
from vllama.models.stores.base import compute_digest
from vllama.models.stores.upstream_server import ServerFacts, UpstreamServer
from vllama.models.types import Bundle, Capability, Format, ModelInfo, UpstreamModel

KEEP_S = 5.0
FACTS_KEEP_S = 60.0
SCHEME = "upstream:"
# capabilities of a model whose server reports none, so that nothing is refused here
ANYTHING = frozenset(
    {Capability.COMPLETION, Capability.TOOLS, Capability.THINKING, Capability.VISION}
)
_EMBEDS = re.compile(r"(?i)embed|(?:^|[/_-])(?:bge|gte|e5)[_-]|minilm")


class UpstreamStore:
    """The models that the given servers list.

    `traits` are the user's settings, by the URL of a server or the id of a model; those of a model
    take precedence.
    """

    name = "upstream"

    def __init__(
        self,
        urls: Sequence[str],
        key: str | None,
        traits: Mapping[str, UpstreamTraits] | None = None,
    ) -> None:
        self._servers = tuple(UpstreamServer(find_root(url), key) for url in urls)
        self._traits = {_key(name): value for name, value in (traits or {}).items()}
        self._lock = threading.Lock()
        self._kept: tuple[float, list[Bundle]] = (0.0, [])
        self._rows: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._facts: dict[str, tuple[float, ServerFacts]] = {}
        self._shown: dict[tuple[str, str], tuple[float, Mapping[str, Any]]] = {}

    def list(self) -> list[Bundle]:
        """Return the models of all servers that answer; equal ids are one model."""
        with self._lock:
            until_s, bundles = self._kept
            if time.monotonic() < until_s:
                return list(bundles)
            found: dict[str, Bundle] = {}
            for server in self._servers:
                rows = server.list_models()
                if rows is not None:
                    self._rows[server.url] = rows
                for row in rows or ():
                    if row["id"] not in found:
                        found[row["id"]] = self._describe(server, row)
            # if no server answers, keep the list: they may be unreachable for a moment only
            bundles = [self._place(bundle) for bundle in found.values()] or bundles
            self._kept = (time.monotonic() + KEEP_S, bundles)
            return list(bundles)

    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model with this id on its server, with or without `:latest`."""
        wanted = ref.text.strip().lower()
        for bundle in self.list():
            own = str(bundle.hub_id).lower()
            if wanted in (own, bundle.name.lower()) or wanted == f"{own}:latest":
                return bundle
        return None

    def keeps(self, bundle: Bundle) -> tuple[str, str]:
        """Return why a model of another server is not deleted."""
        return "it is on another server", "remove it there"

    def _place(self, bundle: Bundle) -> Bundle:
        """Return the bundle with the servers that have it: all but those that do not list it."""
        assert bundle.upstream is not None
        urls = tuple(
            server.url
            for server in self._servers
            if server.url not in self._rows
            or any(row["id"] == bundle.hub_id for row in self._rows[server.url])
        )
        return replace(bundle, upstream=replace(bundle.upstream, urls=urls))

    def _describe(self, server: UpstreamServer, row: Mapping[str, Any]) -> Bundle:
        name: str = row["id"]
        now_s = time.monotonic()
        until_s, facts = self._facts.get(server.url, (0.0, ServerFacts()))
        if now_s >= until_s:
            facts = server.describe()
            self._facts[server.url] = (now_s + FACTS_KEEP_S, facts)
        shown: Mapping[str, Any] = {}
        if facts.shows:
            until_s, shown = self._shown.get((server.url, name), (0.0, {}))
            if now_s >= until_s:
                shown = server.show(name)
                self._shown[server.url, name] = (now_s + FACTS_KEEP_S, shown)
        said = self._traits.get(_key(server.url)) or UpstreamTraits()
        if own := self._traits.get(_key(name)):
            said = _overlay(said, own)
        return _bundle(row, facts, shown, said)


def _bundle(
    row: Mapping[str, Any], facts: ServerFacts, shown: Mapping[str, Any], said: UpstreamTraits
) -> Bundle:
    name: str = row["id"]
    meta = _table(row.get("meta"))
    owner = str(row.get("owned_by") or "")
    info = _read_shown(shown) if shown else ModelInfo(architecture=owner or "unknown")
    context = (
        said.context
        or _number(row.get("max_model_len"))
        or _number(_table(facts.props.get("default_generation_settings")).get("n_ctx"))
        or _number(meta.get("n_ctx"))
        or _number(facts.info.get("context_length"))
        or info.context_length
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
    created = row.get("created")
    return Bundle(
        name=name if ":" in PurePosixPath(name).name else f"{name}:latest",
        store=UpstreamStore.name,
        format=Format.REMOTE,
        path=Path(f"{SCHEME}{name}"),
        files=(),
        size_bytes=_number(meta.get("size")) or 0,
        digest=compute_digest([(name, "", 0)]),
        modified_s=float(created) if isinstance(created, int | float) else 0.0,
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


def _overlay(below: UpstreamTraits, above: UpstreamTraits) -> UpstreamTraits:
    """Return `below` with all values that are set in `above`."""
    values = {name: getattr(above, name) for name in UpstreamTraits.__slots__}
    return replace(below, **{name: value for name, value in values.items() if value is not None})


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> int | None:
    """Return `value` if it is a positive integer, else None."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**63:
        return None
    return value


def _key(name: str) -> str:
    """Return the key of a setting: the root of a URL, or the id of a model."""
    return find_root(name).lower() if "://" in name else name.lower()


def find_root(url: str) -> str:
    """Return the address that `/v1/models` is put after."""
    return (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
