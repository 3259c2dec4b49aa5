"""Fetches one file into a blob storage: in parallel ranges, resumable, verified.

Why not huggingface_hub's own download: it cannot resume in a later process, accepts a damaged byte
silently, gives up on a reset, and cannot be canceled (measured).

1. A file that is complete in its place, by its etag, is done.
2. Ask the source for the address, and take the blob's lock, so that two pulls share one download.
3. Workers fetch parts by Range. After a 5xx, or a closed or silent connection, a part continues
   from the byte that was reached. An expired address is asked for again. A server without ranges
   sends the file as a whole, over one connection.
4. Verify the checksum, and give the blob its name: a blob with its name is always complete.

The calling thread reports progress and hashes what has arrived while the workers run. So the hash
is nearly ready when the last byte comes, and no second pass over gigabytes is needed.

See docs/reference/hub.md#why-downloads-are-our-own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

import filelock

from vllama.base.errors import Cancelled, Offline, SourceError
from vllama.models.disk import BlobStorage
from vllama.models.download.partial_file import FileClosed, PartialFile, Range, count_saved_bytes
from vllama.models.download.ranges import RangesUnsupported, RetryNeeded, stream_part
from vllama.models.limits import check_registry, check_size
from vllama.models.settings import ModelsSettings
from vllama.models.types import Location, Progress, PullEvent, SourceFile, Transient
from vllama.net.web.connections import BadAddress, Connections

_EMIT_EVERY_S = 0.06  # Ollama's rhythm
_TICK_S = 0.02
_HASH_STEP = 16 * 1024 * 1024
_LEAST_PART = 4 * 1024 * 1024
_LONGEST_PAUSE_S = 30.0
_LONGEST_WAIT_S = 120.0  # a server that asks for more counts as failed


def open_client(settings: ModelsSettings) -> Connections:
    """Make the connections to registries that the settings allow; the caller closes them."""
    return Connections(
        connect_s=settings.request_timeout_s,
        silence_s=settings.stall_timeout_s,
        check=partial(check_registry, settings.allow_registry),
    )


def open_connections(settings: ModelsSettings) -> Connections:
    """Make the connections for the bytes of one pull; the caller closes them."""
    return Connections(connect_s=settings.request_timeout_s, silence_s=settings.stall_timeout_s)


def choose_part_size(size_bytes: int, settings: ModelsSettings) -> int:
    """Return the size of a file's parts: several per connection, so that none idles at the end."""
    share = -(-size_bytes // (settings.download_connections * 4))
    return min(max(share, _LEAST_PART), settings.part_bytes)


def make_file_event(file: SourceFile, etag: str, total_bytes: int, done_bytes: int) -> PullEvent:
    """Make the event that says how much of a file has arrived."""
    kind = "sha1" if len(etag) == 40 else "sha256"
    return PullEvent(
        status=f"pulling {etag[:12]}",
        file=file.path,
        digest=f"{kind}:{etag}",
        total_bytes=total_bytes,
        completed_bytes=done_bytes,
    )


class FileDownload:
    """The download of one file into `place`; any of the events `stops` ends it.

    `locate` asks the source for the file's address; it is called again when an address has expired.
    """

    def __init__(
        self,
        file: SourceFile,
        *,
        place: BlobStorage,
        locate: Callable[[], Location],
        connections: Connections,
        settings: ModelsSettings,
        progress: Progress,
        stops: Sequence[threading.Event],
    ) -> None:
        self._file, self._place, self._ask = file, place, locate
        self._connections, self._settings, self._progress = connections, settings, progress
        self._ended = threading.Event()  # for the workers of this file only
        self._stops = tuple(stops)
        self._asking = threading.Lock()
        self._errors: list[Exception] = []
        self._location: Location | None = None
        self._ranges = True
        self._emitted_at = 0.0

    def run(self) -> str:
        """Bring the file into its place; return its etag.

        Raises Canceled, ChecksumMismatch, SourceError and its kind, OSError of the disk.
        """
        etag, size = self._file.etag, self._file.size_bytes
        if etag is None or not self._place.has_blob(etag, size):
            location = self._locate(None)
            etag, size = location.etag, location.size_bytes
            if 0 < self._file.size_bytes < size:  # the free space was checked for the smaller size
                raise SourceError(
                    f"cannot download '{self._file.path}': its size is {size} bytes, but "
                    f"{self._file.size_bytes} were expected"
                )
            check_size(self._file.path, size, self._settings.max_blob_size_bytes)
            with self._locked(location):
                if not self._place.has_blob(etag, size):
                    self._transfer(location)
        self._emit(etag, size, size, force=True)
        return etag

    def _locate(self, expired: Location | None) -> Location:
        """Ask for the address, unless another worker has just replaced the expired one."""
        with self._asking:
            if self._location is not None and self._location is not expired:
                return self._location
            tries = 0
            while True:
                try:
                    location = self._ask()
                    break
                except (Transient, Offline) as error:
                    tries += 1
                    if tries >= self._settings.attempts:
                        raise
                    self._tell_retry(tries, str(error))
                    self._pause(tries, str(error))
            if expired is not None and expired.etag != location.etag:
                raise SourceError(f"cannot download '{self._file.path}': it changed on the server")
            self._location = location
            return location

    @contextmanager
    def _locked(self, location: Location) -> Iterator[None]:
        # the mode is huggingface_hub's: several users may share a cache
        lock = filelock.FileLock(self._place.lock(location.etag), mode=0o660)
        while True:
            self._check_stops()
            try:
                lock.acquire(timeout=0.1)
                break
            except filelock.Timeout:  # another process fetches it: report its progress
                done = count_saved_bytes(self._place.partial(location.etag), location.size_bytes)
                self._emit(location.etag, location.size_bytes, done)
        try:
            yield
        finally:
            lock.release()

    def _transfer(self, location: Location) -> None:
        partial = PartialFile(
            self._place.partial(location.etag),
            etag=location.etag,
            size_bytes=location.size_bytes,
            part_bytes=choose_part_size(location.size_bytes, self._settings),
        )
        with partial:
            self._emit(location.etag, location.size_bytes, partial.done_bytes, force=True)
            try:
                self._run_workers(partial, location)
            except RangesUnsupported:
                self._ranges = False
                partial.restart_whole()
                self._run_workers(partial, location)
            partial.finish(self._place.blob(location.etag), self._file.path, self._file.sha256)

    def _run_workers(self, partial: PartialFile, location: Location) -> None:
        self._ended.clear()
        self._errors.clear()
        count = min(self._settings.download_connections, partial.missing_parts)
        # daemon threads: one that hangs in a DNS look-up must not keep the program alive
        workers = [
            threading.Thread(target=self._work, args=(partial,), daemon=True) for _ in range(count)
        ]
        for worker in workers:
            worker.start()
        try:
            self._attend(partial, location, workers)
        finally:
            self._ended.set()
            self._hang_up(workers)
            self._ended.clear()
        if self._errors:
            raise self._errors[0]
        self._check_stops()  # the workers may have seen a stop first, and left their parts

    def _attend(
        self, partial: PartialFile, location: Location, workers: Sequence[threading.Thread]
    ) -> None:
        while not self._ended.is_set() and any(worker.is_alive() for worker in workers):
            self._check_stops()
            if not partial.hash_ahead(_HASH_STEP):
                self._ended.wait(_TICK_S)
            self._emit(location.etag, location.size_bytes, partial.done_bytes)

    def _hang_up(self, workers: Sequence[threading.Thread]) -> None:
        """End the workers; one that waits for bytes wakes when its socket is shut down.

        Repeated, because a worker may open its next connection between two calls.
        """
        deadline = time.monotonic() + self._settings.request_timeout_s
        while any(w.is_alive() for w in workers) and time.monotonic() < deadline:
            self._connections.end_reads(workers)
            for worker in workers:
                worker.join(0.05)

    def _work(self, partial: PartialFile) -> None:
        try:
            while not self._ended.is_set() and (part := partial.claim()) is not None:
                self._fetch_part(partial, part)
        except (FileClosed, Cancelled):
            pass
        except Exception as error:  # the end of the thread: `_run_workers` raises it
            if not self._ended.is_set():
                self._errors.append(error)
                self._ended.set()

    def _fetch_part(self, partial: PartialFile, part: Range) -> None:
        tries = 0
        while part.left:
            reached, location = part.done, self._location
            assert location is not None  # `run` has set it
            if not self._ranges:
                part.done = 0
            try:
                self._receive(partial, part, location)
            except RetryNeeded as error:
                # only tries in a row without a new byte count, so that a bad line gets through;
                # a connection that trickles brings new bytes, but never the file
                tries = 0 if part.done > reached and not error.slow else tries + 1
                if error.misplaced and tries > 1:
                    raise RangesUnsupported from error
                if tries >= self._settings.attempts or error.wait_s > _LONGEST_WAIT_S:
                    raise SourceError(
                        f"cannot download '{self._file.path}': {error}",
                        hint="pull again to resume",
                    ) from error
                self._tell_retry(tries, str(error))
                self._pause(tries, str(error), error.wait_s)
                if error.expired:
                    self._locate(location)
            except (BadAddress, SourceError) as error:
                raise SourceError(f"cannot download '{self._file.path}': {error}") from error

    def _receive(self, partial: PartialFile, part: Range, location: Location) -> None:
        pieces = stream_part(
            self._connections,
            location,
            part,
            ranged=self._ranges,
            slow_after_s=self._settings.stall_timeout_s,
        )
        with closing(pieces):
            for data in pieces:
                if self._ended.is_set():
                    raise Cancelled("cannot continue: canceled")
                partial.write(part, data)

    def _tell_retry(self, tries: int, reason: str) -> None:
        """Say why there is a pause; a first failure after new bytes costs none."""
        if tries:
            self._progress(PullEvent(status=f"retrying {self._file.path}: {reason}"))

    def _pause(self, tries: int, reason: str, asked_s: float = 0.0) -> None:
        """Wait before the next try: at first not, then `backoff_s`, doubled; or as asked."""
        pause = self._settings.backoff_s * 2 ** (tries - 1) if tries else 0.0
        until = time.monotonic() + max(asked_s, min(pause, _LONGEST_PAUSE_S))
        while True:
            self._check_stops(reason)
            if self._ended.wait(min(_TICK_S, max(0.0, until - time.monotonic()))):
                raise Cancelled("cannot continue: another connection failed", hint=reason)
            if time.monotonic() >= until:
                return

    def _check_stops(self, reason: str = "") -> None:
        if any(stop.is_set() for stop in self._stops):
            raise Cancelled("cannot continue: canceled", hint=reason or None)

    def _emit(self, etag: str, total: int, done: int, *, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._emitted_at < _EMIT_EVERY_S:
            return
        self._emitted_at = now
        self._progress(make_file_event(self._file, etag, total, done))
