"""Ollama's manifests: the blobs of a model, and whether it can be served. Pure.

A manifest names a config and layers by SHA-256. The media type of a layer says what it contains
(`application/vnd.ollama.image.model`).

See docs/reference/ollama-api.md#store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
_LAYER_TYPE = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_ANY_DIGEST = re.compile(rb"sha256[:-]([0-9a-fA-F]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A blob of a model; `kind` is the end of its media type, `digest` has 64 hex digits."""

    kind: str
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The blobs of a model; `config` is None if the manifest has none."""

    layers: tuple[Layer, ...]
    config: Layer | None = None

    @property
    def blobs(self) -> tuple[Layer, ...]:
        """All blobs, each once: the layers, then the config (the order of Ollama's pull)."""
        everything = (*self.layers, self.config) if self.config else self.layers
        return tuple({layer.digest: layer for layer in everything}.values())

    @property
    def size_bytes(self) -> int:
        """The sum of the sizes of all blobs."""
        return sum(layer.size_bytes for layer in self.blobs)

    def of(self, *kinds: str) -> tuple[Layer, ...]:
        """Return the layers of these kinds, in the manifest's order."""
        return tuple(layer for layer in self.layers if layer.kind in kinds)

    def first(self, *kinds: str) -> Layer | None:
        """Return the first layer of these kinds."""
        return next(iter(self.of(*kinds)), None)


class _Blob(msgspec.Struct):
    digest: str
    size: int = 0
    mediaType: str = ""  # noqa: N815 — the protocol's spelling


class _Document(msgspec.Struct):
    layers: list[_Blob] | None = None
    config: _Blob | None = None
    manifests: list[object] | None = None


def parse_manifest(content: bytes) -> Manifest:
    """Parse a manifest. Raises ValueError with the reason."""
    try:
        document = msgspec.json.decode(content, type=_Document)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its manifest is damaged ({error})") from None
    if document.manifests and not document.layers:
        raise ValueError("its manifest is a manifest list, as for container images")
    layers = tuple(_make_layer(blob) for blob in document.layers or ())
    config = _make_layer(document.config) if document.config and document.config.digest else None
    return Manifest(layers=layers, config=config)


def _make_layer(blob: _Blob) -> Layer:
    match = _DIGEST.fullmatch(blob.digest)
    if match is None or blob.size < 0:
        raise ValueError(f"its manifest has the invalid blob '{blob.digest[:80]}'")
    kind = blob.mediaType.partition(";")[0].strip()
    return Layer(kind=kind.removeprefix(_LAYER_TYPE), digest=match[1].lower(), size_bytes=blob.size)


def find_digests(content: bytes) -> set[str]:
    """Return all digests in a manifest, even if it is damaged."""
    return {match.decode().lower() for match in _ANY_DIGEST.findall(content)}


def explain_unservable(manifest: Manifest, config: Mapping[str, Any]) -> str | None:
    """Return why no engine can serve this model's blobs, None if one can."""
    if config.get("remote_host") or config.get("remote_model"):
        return "it runs in Ollama's cloud"
    models = manifest.of("model")
    if not models and manifest.of("tensor"):
        return "its tensors are separate layers, which only Ollama's MLX engine reads"
    if not models:
        return "it has no model layer"
    if len(models) > 1:
        return "it is split into several layers, which llama.cpp cannot read"
    form = config.get("model_format") or "gguf"
    return None if form == "gguf" else f"its format is {form}, not gguf"
