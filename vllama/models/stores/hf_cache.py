"""The hub's cache, read in place: it also has the downloads of vLLM, llama.cpp and `hf download`.

Listing reads folders only, and does not import huggingface_hub (0.2 s). Deleting uses its API,
because only that handles the blobs that repositories share since 1.33 (`<cache>/blobs/`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from vllama.base.errors import Busy
from vllama.models.disk import is_file, list_files_below
from vllama.models.headers.facts import look_below
from vllama.models.headers.safetensors import list_weight_files
from vllama.models.hub_cache import MAIN, HubRepo, find_repository, list_repositories
from vllama.models.names.ref import Kind, ModelRef
from vllama.models.names.variants import (
    DEFAULT_LABEL,
    GgufGroup,
    choose_group,
    choose_safetensors_files,
    find_missing_shards,
    group_ggufs,
)
from vllama.models.stores.base import RemovingStore, compute_digest, map_removal_errors
from vllama.models.stores.folder import make_gguf_bundle, make_safetensors_bundle
from vllama.models.types import Bundle, Skipped


class HfCacheStore(RemovingStore):
    """Models in a huggingface_hub cache folder (`HF_HUB_CACHE`)."""

    name = "hub"

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir, self.roots = cache_dir, (cache_dir,)

    def read_all(self) -> Iterator[Bundle | Skipped]:
        """Yield the models of `main`, and of the revisions that were pulled by name."""
        for hub_id in list_repositories(self._cache_dir):
            yield from self._read(HubRepo(self._cache_dir, hub_id))

    def _read(self, repo: HubRepo) -> Iterator[Bundle | Skipped]:
        named = (None, *sorted(repo.revisions().keys() - {MAIN}))
        places = [_Revision(repo, path, name) for name in named for path in repo.snapshots_of(name)]
        for revision in places:
            snapshot, paths = revision.snapshot, _files(revision.snapshot)
            for group in group_ggufs(paths, look_below(snapshot)):
                path, read = snapshot / group.paths[0], partial(_gguf, revision, group)
                yield from self.attempt(repo.hub_id, path, read)
            whole = partial(_safetensors, revision, paths)
            yield from self.attempt(repo.hub_id, snapshot, whole)

    def in_repository(self, hub_id: str) -> tuple[Bundle, ...]:
        """Return the complete models of one repository."""
        found = self._read(HubRepo(self._cache_dir, hub_id))
        return tuple(each for each in found if isinstance(each, Bundle))

    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model; if `ref` names no quantization, the preferred one."""
        if ref.kind is Kind.PATH:
            return None
        if ref.hub_id is None:  # an old repository without an organization: `gpt2`
            ids = [each for each in list_repositories(self._cache_dir) if "/" not in each]
            old = (b for hub_id in ids for b in self.in_repository(hub_id))
            return next((b for b in old if ref.means(b.name)), None)
        repo = find_repository(self._cache_dir, ref.hub_id)
        if repo is None:
            return None
        tag = ref.tag if ref.has_tag else None
        for snapshot in repo.snapshots_of(ref.revision):
            with suppress(OSError):
                bundle = _choose(_Revision(repo, snapshot, ref.revision), tag)
                if bundle is not None:
                    return bundle
        return None

    def remove(self, bundle: Bundle) -> int:
        """Delete one model, except files that other quantizations and revisions share.

        Returns the bytes that were actually freed.
        """
        repo = HubRepo(self._cache_dir, bundle.hub_id or "")
        before = _real_files(repo.root)
        with map_removal_errors(bundle):
            try:
                self._delete(repo, bundle)
            except OSError as error:
                if error.errno == errno.ENOTEMPTY:
                    raise Busy(f"cannot remove '{bundle.name}': download in progress") from error
                raise
        return sum(size for path, size in before.items() if not path.exists())

    def _delete(self, repo: HubRepo, bundle: Bundle) -> None:
        from huggingface_hub import scan_cache_dir

        others = [x for x in self.in_repository(repo.hub_id) if x.name != bundle.name]
        kept = {path for other in others for path in other.files}
        doomed = {path for path in bundle.files if path not in kept}
        # also delete the model in older snapshots, or it would be listed again from there
        snapshots = repo.root / "snapshots"
        insides = [Path(*path.relative_to(snapshots).parts[1:]) for path in doomed]
        copies = {snapshot / inside for snapshot in repo.snapshots() for inside in insides}
        root = repo.root.resolve()
        places = {root / path.relative_to(repo.root) for path in (doomed | copies) - kept}
        cache = scan_cache_dir(self._cache_dir)
        repos = [cached for cached in cache.repos if cached.repo_path == root]
        revisions = [revision for cached in repos for revision in cached.revisions]
        files = [f for r in revisions for f in r.files if f.file_path in places]
        if others:
            cache.delete_files(*files).execute()
        else:
            cache.delete_revisions(*(r.commit_hash for r in revisions)).execute()
        if bundle.revision and all(other.revision != bundle.revision for other in others):
            repo.remove_ref(bundle.revision)


@dataclass(frozen=True, slots=True)
class _Revision:
    """A snapshot and the name of its revision; None for main."""

    repo: HubRepo
    snapshot: Path
    name: str | None


def _choose(revision: _Revision, tag: str | None) -> Bundle | None:
    paths = _files(revision.snapshot)
    group = choose_group(group_ggufs(paths, look_below(revision.snapshot)), tag)
    if group is not None:
        return _gguf(revision, group)
    return _safetensors(revision, paths) if tag is None else None


def _files(snapshot: Path) -> list[str]:
    """Return the relative paths of the files in a snapshot, except links to missing blobs."""
    files = (path for path in list_files_below(snapshot) if is_file(path))
    return [path.relative_to(snapshot).as_posix() for path in files]


def _gguf(revision: _Revision, group: GgufGroup) -> Bundle:
    return _rename(revision, make_gguf_bundle(revision.snapshot, group), group.label)


def _safetensors(revision: _Revision, paths: list[str]) -> Bundle | None:
    snapshot = revision.snapshot
    wanted = choose_safetensors_files(paths)
    if not wanted:
        return None
    weights = list_weight_files(snapshot)
    if not weights or not all(path.is_file() for path in weights):
        return None
    if find_missing_shards(path.name for path in weights):
        return None
    whole = make_safetensors_bundle(snapshot, [snapshot / path for path in wanted])
    return _rename(revision, whole, DEFAULT_LABEL)


def _rename(revision: _Revision, bundle: Bundle, label: str) -> Bundle:
    """Return a model in a snapshot under its name on the hub, with its checksums as identity."""
    snapshot, hub_id = revision.snapshot, revision.repo.hub_id
    name = ModelRef.of_hub(hub_id, label, revision.name).display
    ModelRef.parse(name)  # raises InvalidModelRef for a folder that nobody could name
    lines = [(f.relative_to(snapshot).as_posix(), _etag(f), f.stat().st_size) for f in bundle.files]
    return replace(
        bundle,
        name=name,
        store=HfCacheStore.name,
        digest=compute_digest(lines),
        modified_s=max(file.lstat().st_mtime for file in bundle.files),
        hub_id=hub_id,
        revision=revision.name,
    )


def _etag(file: Path) -> str:
    """Return the name of the blob, which is the checksum of the content; "" for a plain file."""
    return file.readlink().name if file.is_symlink() else ""


def _real_files(folder: Path) -> dict[Path, int]:
    """Return the files that a repository's folder contains or links to, with their sizes."""
    sizes: dict[Path, int] = {}
    for path in list_files_below(folder):
        with suppress(OSError):  # a link to a blob that is missing or just being removed
            real = path.resolve()
            sizes[real] = real.stat().st_size
    return sizes
