"""Fetches sets of files into a blob storage, and whole variants into the hub's cache.

Free space is checked first. A variant becomes visible only when all its files are there: first the
snapshot's links, then the branch's ref, so that a visible snapshot is always complete. Blocking;
call it in a thread.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.base.errors import DiskFull, VllamaError
from vllama.base.threads import in_parallel
from vllama.base.units import format_bytes_decimal
from vllama.models.disk import BlobStorage, get_free_bytes
from vllama.models.download.file_download import (
    FileDownload,
    choose_part_size,
    make_file_event,
    open_connections,
)
from vllama.models.download.partial_file import count_saved_bytes
from vllama.models.hub_cache import HubRepo
from vllama.models.limits import check_size
from vllama.models.settings import ModelsSettings
from vllama.models.types import Location, Progress, PullEvent, Repository, SourceFile, Variant
from vllama.net.web.connections import Connections

if TYPE_CHECKING:
    from vllama.models.sources.hf import HuggingFace


def fetch_variant(
    source: HuggingFace,
    settings: ModelsSettings,
    repository: Repository,
    variant: Variant,
    progress: Progress,
    cancel: threading.Event,
) -> Path:
    """Fetch what is missing of a variant into the hub's cache; return its snapshot's folder.

    `progress` may be called from several threads. Raises Canceled, DiskFull,
    ChecksumMismatch, AuthRequired, Offline, SourceError.
    """
    repo = HubRepo(settings.hf_cache_dir, repository.hub_id)
    commit = repository.commit
    here = [f for f in variant.files if repo.has_file(commit, f.path, f.size_bytes)]
    missing = [file for file in variant.files if file not in here]
    with map_disk_errors(repo, repo.hub_id):
        for file in here:
            progress(make_file_event(file, file.etag or "", file.size_bytes, file.size_bytes))
        if missing:
            check_space(repo, missing, repo.hub_id)
            repo.prepare()
        with open_connections(settings) as connections:
            etags = fetch_files(
                missing,
                place=repo,
                locate=partial(source.locate, repository),
                connections=connections,
                settings=settings,
                progress=progress,
                cancel=cancel,
            )
        progress(PullEvent(status="verifying sha256 digest"))  # done while they arrived
        progress(PullEvent(status="writing manifest"))
        for file, etag in zip(missing, etags, strict=True):
            repo.link(commit, file.path, etag)
        repo.write_ref(repository.branch, commit)
    return repo.snapshot(commit)


def check_space(place: BlobStorage, files: Sequence[SourceFile], what: str) -> None:
    """Raise DiskFull if the missing bytes of `files` do not fit; `what` names the download."""
    missing = {
        file.etag or file.path: file.size_bytes
        - (count_saved_bytes(place.partial(file.etag), file.size_bytes) if file.etag else 0)
        for file in files
        if not (file.etag and place.has_blob(file.etag, file.size_bytes))
    }
    need = sum(missing.values())
    if not need:
        return
    free = get_free_bytes(place.folder)
    # a completely full disk breaks other programs: leave 5 % of the download, at most 1 GiB
    if need + min(1024**3, need // 20) > free:
        raise DiskFull(
            f"cannot download '{what}': it needs {format_bytes_decimal(need)}, "
            f"and {format_bytes_decimal(free)} is free at {place.folder}",
            hint=_larger(place),
        )


def fetch_files(
    files: Sequence[SourceFile],
    *,
    place: BlobStorage,
    locate: Callable[[SourceFile], Location],
    connections: Connections,
    settings: ModelsSettings,
    progress: Progress,
    cancel: threading.Event,
) -> list[str]:
    """Fetch small files in parallel, then each large one over all connections.

    Returns their etags. Raises what `FileDownload.run` raises.
    """
    for file in files:
        check_size(file.path, file.size_bytes, settings.max_blob_size_bytes)
    failed = threading.Event()

    def fetch(file: SourceFile) -> str:
        return FileDownload(
            file,
            place=place,
            locate=partial(locate, file),
            connections=connections,
            settings=settings,
            progress=progress,
            stops=(cancel, failed),
        ).run()

    small = [
        file
        for file in files
        if file.size_bytes <= choose_part_size(file.size_bytes, settings)  # one connection each
    ]
    etags = in_parallel(fetch, small, settings.download_connections, failed)
    done = {file.path: etag for file, etag in zip(small, etags, strict=True)}
    return [done.get(file.path) or fetch(file) for file in files]


@contextmanager
def map_disk_errors(place: BlobStorage, what: str) -> Iterator[None]:
    """Turn errors of the disk into ours; network errors are mapped where they arise."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"cannot download '{what}': the disk of {place.folder} is full",
                hint=_larger(place),
            ) from error
        raise VllamaError(
            f"cannot write to '{error.filename or place.folder}': {error.strerror or error}",
            hint=f"check the folder's owner and permissions, or set {place.variable}",
        ) from error


def _larger(place: BlobStorage) -> str:
    return f"remove models (vllama rm), or set {place.variable} to a folder on a larger disk"
