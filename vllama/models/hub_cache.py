"""The layout of huggingface_hub's cache, shared with it, vLLM and llama.cpp's `-hf`.

::

    <cache>/.locks/models--org--name/<etag>.lock
    <cache>/models--org--name/refs/<branch or tag>            40-hex commit, no newline
                              blobs/<etag>                    (or a link into <cache>/blobs/)
                              snapshots/<commit>/<path>  ->  ../../blobs/<etag>

A commit that was asked for by its number gets a ref of that name from us, so that it stays known as
one that was pinned.

Paths and links only: no network, no huggingface_hub.
"""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import suppress
from pathlib import Path

from vllama.base.errors import SourceError
from vllama.models.disk import BlobStorage, list_files_below, write_shared
from vllama.models.lookup import rest_on

MAIN = "main"
_PREFIX = "models--"
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n# This file is a cache directory tag created by "
    "huggingface_hub.\n# For information about cache directory tags, see:\n"
    "#\thttps://bford.info/cachedir/\n"
)


class HubRepo(BlobStorage):
    """One model repository inside the cache."""

    variable = "HF_HUB_CACHE"

    def __init__(self, cache_dir: Path, hub_id: str) -> None:
        self.cache_dir = self.folder = cache_dir
        self.hub_id = hub_id
        self._name = _PREFIX + hub_id.replace("/", "--")
        self.root = cache_dir / self._name
        self._moved: dict[str, Path] = {}

    def prepare(self) -> None:
        """Create the folders; raises OSError."""
        if not self.cache_dir.is_dir():
            self.cache_dir.mkdir(parents=True, exist_ok=True)
            (self.cache_dir / "CACHEDIR.TAG").write_text(_TAG)
        (self.root / "blobs").mkdir(parents=True, exist_ok=True)
        (self.cache_dir / ".locks" / self._name).mkdir(parents=True, exist_ok=True)

    def blob(self, etag: str) -> Path:
        return self.root / "blobs" / _one_name(etag)

    def partial(self, etag: str) -> Path:
        return self.root / "blobs" / f"{_one_name(etag)}.vllama-partial"

    def lock(self, etag: str) -> Path:
        return self.cache_dir / ".locks" / self._name / f"{_one_name(etag)}.lock"

    def snapshot(self, commit: str) -> Path:
        """Return the folder of one commit's files."""
        return self.root / "snapshots" / _one_name(commit)

    def has_file(self, commit: str, path: str, size_bytes: int) -> bool:
        """Tell whether a snapshot has a file, as a link to a blob or as a plain file."""
        try:
            return (self.snapshot(commit) / path).stat().st_size == size_bytes
        except OSError:
            return False

    def link(self, commit: str, path: str, etag: str) -> Path:
        """Make a blob appear as `path` in a snapshot, by a relative link; raises OSError.

        In one step, as a second pull may do the same now and a reader must always find a file.
        On a file system without links the file itself goes there, as with huggingface_hub.
        """
        place = self.snapshot(commit) / path
        target = os.path.relpath(self.blob(etag), place.parent)
        if place.is_symlink() and str(place.readlink()) == target:
            return place
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.parent.resolve().is_relative_to(self.snapshot(commit).resolve()):
            raise SourceError(f"cannot store '{path}': a link points outside the hub's cache")
        temporary = self.root / f".link-{uuid.uuid4().hex}"
        try:
            temporary.symlink_to(target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._put(etag, place, temporary)
        else:
            temporary.replace(place)
        return place

    def _put(self, etag: str, place: Path, temporary: Path) -> None:
        if etag in self._moved:  # two files with the same content
            import shutil

            shutil.copyfile(self._moved[etag], temporary)
            temporary.replace(place)
        else:
            self.blob(etag).replace(place)
            self._moved[etag] = place

    def write_ref(self, revision: str, commit: str) -> None:
        """Point a revision's name at a commit, in one step; raises OSError."""
        place = self._ref(revision)
        try:
            if place.read_text() == commit:
                return
        except (OSError, UnicodeDecodeError):  # it will be made anew
            pass
        write_shared(place, commit.encode(), by=self.root)

    def remove_ref(self, revision: str) -> None:
        """Forget a revision's name; raises OSError."""
        self._ref(revision).unlink(missing_ok=True)

    def _ref(self, revision: str) -> Path:
        return self.root.joinpath("refs", *map(_one_name, revision.split("/")))

    def snapshots(self) -> list[Path]:
        """Return all snapshots: that of `main` first, then the newest."""
        main = self.revisions().get(MAIN)
        try:
            rest_on(self.root / "snapshots")
            folders = [path for path in (self.root / "snapshots").iterdir() if path.is_dir()]
            return sorted(folders, key=lambda path: (path.name != main, -path.stat().st_mtime))
        except OSError:  # removed, or at this moment
            return []

    def snapshots_of(self, revision: str | None) -> list[Path]:
        """Return the snapshots that a revision may mean.

        None: that of `main`, then those that nothing points at, such as what was `main` before.
        """
        known, snapshots = self.revisions(), self.snapshots()
        if revision is not None:
            commit = known.get(revision, revision)
            return [path for path in snapshots if path.name == commit]
        others = {commit for name, commit in known.items() if name != MAIN}
        return [
            path for path in snapshots if path.name == known.get(MAIN) or path.name not in others
        ]

    def revisions(self) -> dict[str, str]:
        """Return the commit of each revision that was fetched by its name."""
        folder = self.root / "refs"
        found: dict[str, str] = {}
        for path in list_files_below(folder):
            rest_on(path)  # huggingface_hub writes it in place
            with suppress(OSError, UnicodeDecodeError):
                found[path.relative_to(folder).as_posix()] = path.read_text().strip()
        return found


def _one_name(name: str) -> str:
    """Return the name of a file or folder here; raise SourceError for a path."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise SourceError(f"cannot store {name[:80]!r} in the hub's cache: it points outside")
    return name


def list_repositories(cache_dir: Path) -> list[str]:
    """Return the ids of the model repositories of a cache."""
    rest_on(cache_dir)
    try:
        names = sorted(os.listdir(cache_dir))  # noqa: PTH208 - of thousands no paths
    except OSError:
        return []
    cut = len(_PREFIX)
    return [name[cut:].replace("--", "/") for name in names if name.startswith(_PREFIX)]


def find_repository(cache_dir: Path, hub_id: str) -> HubRepo | None:
    """Return a cached repository by its id in any case, or None."""
    exact = HubRepo(cache_dir, hub_id)
    rest_on(exact.root)
    if exact.root.is_dir():
        return exact
    wanted = hub_id.lower()
    found = next((each for each in list_repositories(cache_dir) if each.lower() == wanted), None)
    return HubRepo(cache_dir, found) if found else None
