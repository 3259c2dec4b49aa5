"""Pulls a model from a registry with Ollama's protocol into Ollama's own layout.

1. Fetch the manifest, and refuse a model that no engine can serve before downloading gigabytes.
2. Download the missing blobs, and verify them during the download.
3. Write the manifest last, so that Ollama and vllama never see an incomplete model. Then delete the
   blobs that only the previous manifest needed.

Blocking; call it in a thread. The statuses are Ollama's.

See docs/reference/ollama-api.md#model-management.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from vllama.base.errors import Cancelled, NoPlan, SourceError
from vllama.models.disk import get_free_bytes
from vllama.models.download.fetch import check_space, fetch_files, map_disk_errors
from vllama.models.download.file_download import open_client, open_connections
from vllama.models.ollama.layout import OllamaModels, RegistryTarget, StoredName
from vllama.models.ollama.manifest import Manifest, explain_unservable, find_digests, parse_manifest
from vllama.models.ollama.registry import OllamaRegistry
from vllama.models.settings import ModelsSettings
from vllama.models.sources.base import Transient
from vllama.models.types import Format, Progress, PullEvent, SourceFile

ATTEMPTS = 3


def pull_model(
    target: RegistryTarget,
    models: OllamaModels,
    settings: ModelsSettings,
    *,
    formats: Sequence[Format],
    progress: Progress,
    cancel: threading.Event,
    free_space: Callable[[Path], int] = get_free_bytes,
) -> StoredName:
    """Download `target` into `models`, or update it; return its name there.

    `progress` may be called from several threads. Raises ModelNotFound, NoPlan (for a format that
    no engine reads), AuthRequired, Cancelled, ChecksumMismatch, DiskFull, Offline, SourceError.
    """
    what = target.name.display
    with (
        open_client(settings) as client,
        open_connections(settings) as connections,
        map_disk_errors(models, what),
    ):
        registry = OllamaRegistry(client, target)
        content = _fetch_manifest(registry, settings, cancel)
        manifest = _check_manifest(content, what, formats)
        files = [
            SourceFile(
                path=f"{what} (blob {blob.digest[:12]})",
                size_bytes=blob.size_bytes,
                etag=blob.digest,
                sha256=blob.digest,
            )
            for blob in manifest.blobs
        ]
        models.prepare()
        name = models.spelled(target.name)
        for _ in range(ATTEMPTS):
            check_space(models, files, what, free_space)
            fetch_files(
                files,
                place=models,
                locate=registry.locate,
                connections=connections,
                settings=settings,
                progress=progress,
                cancel=cancel,
            )
            progress(PullEvent(status="verifying sha256 digest"))  # done during the download
            with models.locked():
                # the blob of another model may have been removed together with it meanwhile
                if all(models.has_blob(blob.digest, blob.size_bytes) for blob in manifest.blobs):
                    _publish(models, name, content, progress)
                    return name
    raise SourceError(f"cannot pull '{what}': its blobs are deleted as soon as they are here")


def _fetch_manifest(
    registry: OllamaRegistry, settings: ModelsSettings, cancel: threading.Event
) -> bytes:
    """Fetch the manifest, with retries while the registry is overloaded."""
    for pause in range(ATTEMPTS - 1):
        try:
            return registry.manifest()
        except Transient as error:
            if cancel.wait(settings.backoff_s * 2**pause):
                raise Cancelled("cannot continue: cancelled", hint=error.message) from error
    return registry.manifest()


def _publish(models: OllamaModels, name: StoredName, content: bytes, progress: Progress) -> None:
    progress(PullEvent(status="writing manifest"))
    path = models.manifest(name)
    before = find_digests(path.read_bytes()) if path.exists() else set()
    models.write_manifest(name, content)
    if unused := before - find_digests(content):
        progress(PullEvent(status="removing unused layers"))
        models.prune(unused)


def _check_manifest(content: bytes, what: str, formats: Sequence[Format]) -> Manifest:
    try:
        manifest = parse_manifest(content)
    except ValueError as error:
        raise SourceError(f"cannot pull '{what}': {error}") from None
    if reason := explain_unservable(manifest, {}):
        raise NoPlan(
            f"cannot pull '{what}': {reason}",
            hint="pull a GGUF of it from the hub: vllama pull hf.co/org/repo",
        )
    if Format.GGUF not in formats:
        raise NoPlan(
            f"cannot serve '{what}' here: it is GGUF, and {' or '.join(formats)} is wanted",
            hint="install an engine that serves it: vllama engines",
        )
    return manifest
