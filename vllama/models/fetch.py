"""Fetches a whole variant into the hub's cache and makes it visible there.

Free space is checked first. When all files are there the snapshot's links are made, then the
branch's ref: a snapshot that can be seen is complete. Blocking; call it in a thread.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from vllama.errors import DiskFull, VllamaError
from vllama.models.disk import free_bytes
from vllama.models.download import Cancelled, FileDownload, open_client, part_size
from vllama.models.hub_cache import HubRepo
from vllama.models.partial import saved_bytes
from vllama.models.settings import ModelsSettings
from vllama.models.sources.base import Repository, Source
from vllama.models.types import Progress, PullEvent, SourceFile, Variant
from vllama.units import format_bytes_decimal

_LARGER = "remove models (vllama rm), or set HF_HUB_CACHE to a folder on a larger disk"


class Fetcher:
    """Fetches variants from one source into one cache."""

    def __init__(
        self,
        source: Source,
        settings: ModelsSettings,
        *,
        free_space: Callable[[Path], int] = free_bytes,
    ) -> None:
        self._source, self._settings, self._free_space = source, settings, free_space

    def fetch(
        self, repository: Repository, variant: Variant, progress: Progress, cancel: threading.Event
    ) -> Path:
        """Fetch what is missing of a variant; return its snapshot's folder.

        `progress` may be called from several threads. Raises Cancelled, DiskFull,
        ChecksumMismatch, AuthRequired, Offline, SourceError.
        """
        repo = HubRepo(self._settings.hf_cache_dir, repository.hub_id)
        with _disk_errors(repo):
            self._check_space(repo, variant)
            repo.prepare()
            etags = self._files(repo, repository, variant, progress, cancel)
            progress(PullEvent(status="verifying sha256 digest"))  # was done while they came
            progress(PullEvent(status="writing manifest"))
            for file, etag in zip(variant.files, etags, strict=True):
                repo.link(repository.commit, file.path, etag)
            repo.write_ref(repository.branch, repository.commit)
        return repo.snapshot(repository.commit)

    def _check_space(self, repo: HubRepo, variant: Variant) -> None:
        missing = {
            file.etag or file.path: file.size_bytes
            - (saved_bytes(repo.blob(file.etag), file.size_bytes) if file.etag else 0)
            for file in variant.files
            if not (file.etag and repo.has_blob(file.etag, file.size_bytes))
        }
        need = sum(missing.values())
        if not need:
            return
        free = self._free_space(repo.cache_dir)
        # a disk that is full to the last byte hurts everybody: leave 5 % of the download, or 1 GiB
        if need + min(1024**3, need // 20) > free:
            raise DiskFull(
                f"cannot download '{repo.hub_id}': it needs {format_bytes_decimal(need)}, "
                f"and {format_bytes_decimal(free)} are free at {repo.cache_dir}",
                hint=_LARGER,
            )

    def _files(
        self,
        repo: HubRepo,
        repository: Repository,
        variant: Variant,
        progress: Progress,
        cancel: threading.Event,
    ) -> list[str]:
        """Fetch small files side by side, then large ones each with all connections."""
        failed = threading.Event()
        settings = self._settings
        with open_client(settings) as client:

            def fetch(file: SourceFile) -> str:
                job = FileDownload(
                    file,
                    repo=repo,
                    locate=partial(self._source.locate, repository, file),
                    client=client,
                    settings=settings,
                    progress=progress,
                    stops=(cancel, failed),
                )
                try:
                    return job.run()
                except BaseException:
                    failed.set()
                    raise

            small = [
                file
                for file in variant.files
                if file.size_bytes <= part_size(file.size_bytes, settings)  # one connection each
            ]
            done = _side_by_side(fetch, small, settings.connections, failed)
            return [done.get(file.path) or fetch(file) for file in variant.files]


def _side_by_side(
    fetch: Callable[[SourceFile], str],
    files: list[SourceFile],
    threads: int,
    failed: threading.Event,
) -> dict[str, str]:
    with ThreadPoolExecutor(threads) as pool:
        futures = {file.path: pool.submit(fetch, file) for file in files}
        try:
            errors = [error for future in futures.values() if (error := future.exception())]
        except BaseException:  # Ctrl-C in this thread: leaving the pool would wait for all
            failed.set()
            raise
    # one failure stops the others: show the failure, not their being stopped
    for error in sorted(errors, key=lambda error: isinstance(error, Cancelled)):
        raise error
    return {path: future.result() for path, future in futures.items()}


@contextmanager
def _disk_errors(repo: HubRepo) -> Iterator[None]:
    """Map what the disk refuses; errors of the network are mapped where they arise."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"cannot download '{repo.hub_id}': the disk of {repo.cache_dir} is full",
                hint=_LARGER,
            ) from error
        raise VllamaError(
            f"cannot write to '{error.filename or repo.cache_dir}': {error.strerror or error}",
            hint="check the folder's owner and rights, or set HF_HUB_CACHE",
        ) from error
