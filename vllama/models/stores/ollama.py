"""Ollama's store, read in place: models that `ollama pull` or vllama downloaded are served as is.

Nothing is copied or converted. vllama deletes the models that it pulled itself. All others are
Ollama's, and are deleted only with `--force`.

See docs/reference/ollama-api.md#store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from vllama.base.errors import ModelNotFound
from vllama.models.lookup import rest_on
from vllama.models.names.ref import Kind, ModelRef
from vllama.models.ollama.layout import OllamaModels
from vllama.models.ollama.manifest import (
    Layer,
    Manifest,
    explain_unservable,
    find_digests,
    parse_manifest,
)
from vllama.models.stores.base import RemovingStore, map_removal_errors
from vllama.models.types import Bundle, Format, Skipped

_MAX_TEXT = 16 * 1024 * 1024  # limit for templates, licenses and messages


class OllamaStore(RemovingStore):
    """The models in folders with Ollama's layout; of equal names, the one in the first counts."""

    name = "ollama"

    def __init__(self, folders: Sequence[Path]) -> None:
        self.roots = folders
        self._places = tuple(OllamaModels(folder) for folder in folders)

    def read_all(self) -> Iterator[Bundle | Skipped]:
        """Yield the models of all manifests."""
        for models, name in self._list_names():
            path, read = models.manifest(name), partial(_read_bundle, models, name)
            yield from self.attempt(name.display, path, read)

    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model with that name, ignoring case."""
        if ref.kind is Kind.PATH:
            return None
        for models, name in self._list_names(ref.model):
            if name.canonical in ref.candidates:
                try:
                    return _read_bundle(models, name)
                except (OSError, ValueError):
                    continue
        return None

    def keeps(self, bundle: Bundle) -> tuple[str, str] | None:
        """Return why a model is not deleted without `--force`; None if vllama pulled it."""
        models, name, content = self._find_manifest(bundle)
        if models.is_ours(name, content):
            return None
        return (
            "it is in Ollama's store, and vllama did not pull it",
            f"to delete it anyway: vllama rm --force {bundle.name}",
        )

    def remove(self, bundle: Bundle) -> int:
        """Delete a model, except blobs that other models use; return the bytes actually freed."""
        models, name, content = self._find_manifest(bundle)
        hint = f"check the owner and permissions of {models.folder}"
        with map_removal_errors(bundle, hint), models.locked():
            return models.delete_manifest(name) + models.prune(find_digests(content))

    def _list_names(self, model: str | None = None) -> Iterator[tuple[OllamaModels, ModelRef]]:
        return ((models, name) for models in self._places for name in models.names(model))

    def _find_manifest(self, bundle: Bundle) -> tuple[OllamaModels, ModelRef, bytes]:
        """Return the manifest that a bundle was made from, which has its digest."""
        for models, name in self._list_names():
            if name.display == bundle.name:
                try:
                    content = models.manifest(name).read_bytes()
                except OSError:
                    continue
                if hashlib.sha256(content).hexdigest() == bundle.digest:
                    return models, name, content
        raise ModelNotFound(bundle.name)


def _read_bundle(models: OllamaModels, name: ModelRef) -> Bundle:
    """Read one model's manifest and small layers. Raises OSError, ValueError with a reason."""
    path = models.manifest(name)
    rest_on(path)
    content, modified_s = path.read_bytes(), path.stat().st_mtime
    manifest = parse_manifest(content)
    config = _read_config(models, manifest)
    if reason := explain_unservable(manifest, config):
        raise ValueError(reason)
    (weights,) = manifest.of("model")
    projector = manifest.first("projector")
    adapters = manifest.of("adapter")
    extra = (projector,) if projector else ()
    files = [_get_blob(models, layer) for layer in (weights, *extra, *adapters)]
    template = _read_text(models, manifest.first("template", "prompt"))
    # With a `renderer`, code inside Ollama makes the prompts. The template layer is a placeholder
    # then, and the template in the model file is equivalent to that code.
    template = None if config.get("renderer") else template
    return Bundle(
        name=name.display,
        store=OllamaStore.name,
        format=Format.GGUF,
        path=files[0],
        files=tuple(files),
        size_bytes=manifest.size_bytes,
        digest=hashlib.sha256(content).hexdigest(),
        modified_s=modified_s,
        quant=_read_word(config, "file_type"),
        projector=files[1] if projector else None,
        parameters=_read_parameters(models, manifest),
        system=_read_text(models, manifest.first("system")),
        license="\n".join(filter(None, (_read_text(models, x) for x in manifest.of("license"))))
        or None,
        template=template,
        messages=_read_messages(models, manifest),
        adapters=tuple(files[len(files) - len(adapters) :]),
        renderer=_read_word(config, "renderer"),
        parser=_read_word(config, "parser"),
        requires=_read_word(config, "requires"),
    )


def _read_word(config: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name)
    return value if isinstance(value, str) and value else None


def _get_blob(models: OllamaModels, layer: Layer) -> Path:
    """Return the path of a blob. Raises ValueError if it is incomplete."""
    rest_on(models.blob(layer.digest))
    if not models.has_blob(layer.digest, layer.size_bytes):
        raise ValueError(f"its {layer.kind}, blob sha256:{layer.digest[:12]}, is incomplete")
    return models.blob(layer.digest)


def _read_text(models: OllamaModels, layer: Layer | None) -> str | None:
    if layer is None or layer.size_bytes > _MAX_TEXT:
        return None
    return _get_blob(models, layer).read_bytes().decode(errors="replace") or None


def _read_json(models: OllamaModels, layer: Layer | None) -> object:
    text = _read_text(models, layer)
    try:
        return msgspec.json.decode(text) if text else None
    except (ValueError, RecursionError) as error:
        assert layer is not None  # since it has text
        raise ValueError(f"its {layer.kind} are not valid JSON ({error})") from None


def _read_config(models: OllamaModels, manifest: Manifest) -> Mapping[str, Any]:
    """Return the config; empty if it is missing, because the GGUF contains all that is needed."""
    if manifest.config is None:
        return {}
    try:
        config = _read_json(models, manifest.config)
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _read_parameters(models: OllamaModels, manifest: Manifest) -> dict[str, object]:
    params = _read_json(models, manifest.first("params"))
    items = params.items() if isinstance(params, dict) else ()
    return {name: value for name, value in items if value is not None}


def _read_messages(models: OllamaModels, manifest: Manifest) -> tuple[Mapping[str, object], ...]:
    messages = _read_json(models, manifest.first("messages"))
    rows = messages if isinstance(messages, list) else []
    return tuple(
        {"role": row["role"], "content": row["content"]}
        for row in rows
        if isinstance(row, dict)
        and isinstance(row.get("role"), str)
        and isinstance(row.get("content"), str)
    )
