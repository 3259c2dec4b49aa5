"""Ollama's own store read in place: what `ollama pull` or vllama brought there is served as it is.

Nothing is copied or converted. vllama deletes there what it pulled itself; other models are
Ollama's, and go only when the user insists.

See docs/reference/ollama-api.md#store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from vllama.errors import InvalidModelRef, ModelNotFound, VllamaError
from vllama.models.ollama.layout import OllamaModels, StoredName
from vllama.models.ollama.manifest import (
    Layer,
    Manifest,
    explain_unservable,
    find_digests,
    parse_manifest,
)
from vllama.models.ref import Kind, ModelRef
from vllama.models.types import Bundle, Format, Removed, Skipped

_MAX_TEXT = 16 * 1024 * 1024  # templates, licences, conversations: no gigabytes by mistake


class OllamaStore:
    """The models in folders laid out as Ollama does; of one name the first folder's."""

    name = "ollama"

    def __init__(self, folders: Sequence[Path]) -> None:
        self._places = tuple(OllamaModels(folder) for folder in folders)

    def list(self) -> list[Bundle]:
        """Return every complete model that can be served."""
        found: dict[str, Bundle] = {}
        for models, name in self._names():
            try:
                bundle = _bundle(models, name)
            except (OSError, ValueError):  # told by `skipped`; it must not hide the others
                continue
            found.setdefault(bundle.name, bundle)
        return list(found.values())

    def skipped(self) -> tuple[Skipped, ...]:
        """Return the models that are not listed, with the reason."""
        found: list[Skipped] = []
        for models, name in self._names():
            try:
                _bundle(models, name)
            except OSError as error:
                reason = f"it cannot be read ({error.strerror or error})"
            except ValueError as error:
                reason = str(error)
            else:
                continue
            found.append(
                Skipped(
                    name=name.display,
                    store=self.name,
                    path=models.manifest(name),
                    reason=reason,
                )
            )
        return tuple(found)

    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model of that name, in any case."""
        if ref.kind is Kind.PATH:
            return None
        for models, name in self._names():
            if ref.means(name.display):
                try:
                    return _bundle(models, name)
                except (OSError, ValueError):
                    continue
        return None

    def keeps(self, bundle: Bundle) -> tuple[str, str] | None:
        """Return why a model is not deleted without being told to; None for vllama's own pulls."""
        models, name, content = self._manifest(bundle)
        if models.is_ours(name, content):
            return None
        return (
            "it is in Ollama's store and vllama did not pull it",
            f"to delete it all the same: vllama rm --force {bundle.name}",
        )

    def remove(self, bundle: Bundle) -> Removed:
        """Delete a model; blobs that other models use stay.

        The bytes returned are those that really came free.
        """
        models, name, content = self._manifest(bundle)
        try:
            with models.locked():
                freed = models.delete_manifest(name) + models.prune(find_digests(content))
        except OSError as error:
            raise VllamaError(
                f"cannot remove '{bundle.name}': {error.strerror or error}",
                hint=f"check the owner and the rights of {models.folder}",
            ) from error
        return Removed(names=(bundle.name,), freed_bytes=freed)

    def _names(self) -> Iterator[tuple[OllamaModels, StoredName]]:
        for models in self._places:
            for name in models.names():
                try:
                    ModelRef.parse(name.display)
                except InvalidModelRef:  # some other file: nobody could type that name
                    continue
                yield models, name

    def _manifest(self, bundle: Bundle) -> tuple[OllamaModels, StoredName, bytes]:
        """Find a bundle's manifest again: the one that its digest was made of."""
        for models, name in self._names():
            if name.display == bundle.name:
                try:
                    content = models.manifest(name).read_bytes()
                except OSError:
                    continue
                if hashlib.sha256(content).hexdigest() == bundle.digest:
                    return models, name, content
        raise ModelNotFound(bundle.name)


def _bundle(models: OllamaModels, name: StoredName) -> Bundle:
    """Read one model's manifest and small layers. Raises OSError, ValueError with a reason."""
    path = models.manifest(name)
    content, modified_s = path.read_bytes(), path.stat().st_mtime
    manifest = parse_manifest(content)
    config = _config(models, manifest)
    if reason := explain_unservable(manifest, config):
        raise ValueError(reason)
    (weights,) = manifest.of("model")
    projector = manifest.first("projector")
    adapters = manifest.of("adapter")
    drafts = manifest.of("draft")[:1]
    extra = (projector,) if projector else ()
    files = [_file(models, layer) for layer in (weights, *extra, *adapters, *drafts)]
    template = _text(models, manifest.first("template", "prompt"))
    # such a model's prompts are made by code inside Ollama: its template layer is a placeholder,
    # and the file's own template says the same as that code
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
        quant=_word(config, "file_type"),
        projector=files[1] if projector else None,
        parameters=_parameters(models, manifest),
        system=_text(models, manifest.first("system")),
        license="\n".join(filter(None, (_text(models, x) for x in manifest.of("license")))) or None,
        template=template,
        messages=_messages(models, manifest),
        adapters=tuple(files[1 + len(extra) : len(files) - len(drafts)]),
        draft=files[-1] if drafts else None,
        renderer=_word(config, "renderer"),
        parser=_word(config, "parser"),
        requires=_word(config, "requires"),
    )


def _word(config: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name)
    return value if isinstance(value, str) and value else None


def _file(models: OllamaModels, layer: Layer) -> Path:
    """Return a blob that must be complete."""
    if not models.has_blob(layer.digest, layer.size_bytes):
        raise ValueError(f"its {layer.kind}, the blob sha256:{layer.digest[:12]}, is not complete")
    return models.blob(layer.digest)


def _text(models: OllamaModels, layer: Layer | None) -> str | None:
    if layer is None or layer.size_bytes > _MAX_TEXT:
        return None
    return _file(models, layer).read_bytes().decode(errors="replace") or None


def _json(models: OllamaModels, layer: Layer | None) -> object:
    text = _text(models, layer)
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, RecursionError) as error:
        assert layer is not None  # it had text
        raise ValueError(f"its {layer.kind} are no JSON ({error})") from None


def _config(models: OllamaModels, manifest: Manifest) -> Mapping[str, Any]:
    """Return the config; empty where it is missing, as all that is needed of it is in the GGUF."""
    if manifest.config is None:
        return {}
    try:
        config = _json(models, manifest.config)
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _parameters(models: OllamaModels, manifest: Manifest) -> dict[str, object]:
    found = _json(models, manifest.first("params"))
    given = found.items() if isinstance(found, dict) else ()
    return {name: value for name, value in given if value is not None}


def _messages(models: OllamaModels, manifest: Manifest) -> tuple[Mapping[str, object], ...]:
    found = _json(models, manifest.first("messages"))
    rows = found if isinstance(found, list) else []
    return tuple(
        {"role": row["role"], "content": row["content"]}
        for row in rows
        if isinstance(row, dict)
        and isinstance(row.get("role"), str)
        and isinstance(row.get("content"), str)
    )
