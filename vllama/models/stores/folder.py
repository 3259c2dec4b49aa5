"""Models in folders: those named by their path, the user's own folders, and LM Studio's.

Files are grouped as in a repository of the hub: the shards of a model together, with its projector.
Nothing is written there, and only LM Studio's files are deleted, with `--force`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from vllama.base.errors import BadModelFile, BadRequest, InvalidModelRef
from vllama.base.left_out import explain, show_path
from vllama.models.disk import is_file, list_files_below, remove_empty
from vllama.models.headers.facts import look_below
from vllama.models.headers.safetensors import is_mlx, is_model_folder
from vllama.models.lookup import rest_on
from vllama.models.names.quant import strip_quant
from vllama.models.names.ref import Kind, ModelRef, path_stem, read_canonical
from vllama.models.names.variants import (
    DEFAULT_LABEL,
    GgufGroup,
    choose_group,
    explain_left_out,
    get_stem,
    group_ggufs,
    parse_shard,
)
from vllama.models.stores.base import (
    RemovingStore,
    Store,
    compute_digest,
    map_removal_errors,
    sum_real_sizes,
)
from vllama.models.types import Bundle, Format, Skipped

_Found = Bundle | Skipped


class FolderStore(Store):
    """GGUF files and safetensors folders outside any managed cache."""

    name = "folder"

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self._folders = tuple(folders)

    def read_all(self) -> Iterator[Bundle | Skipped]:
        """Yield the models in the folders and files that are named in the settings."""
        for folder in self._folders:
            if is_file(folder):
                yield from self.attempt(folder.name, folder, partial(_find_at_path, folder))
                continue
            yield from (each for _, each in self._read_folder(folder, published=False))
            for inner in (folder, *_list_folders(folder)):
                yield from self.attempt(inner.name, inner, partial(_find_safetensors, inner))

    def _read_folder(self, folder: Path, *, published: bool) -> Iterator[tuple[str, _Found]]:
        """Yield the GGUF models in a folder and below it by their labels, and why others are not.

        `published` is that of `group_ggufs`.
        """
        faults, look = list[OSError](), look_below(folder)
        names, bad = _list_ggufs(list_files_below(folder, faults.append), folder)
        for group in group_ggufs(names, look, published=published):
            path, read = folder / group.paths[0], partial(make_gguf_bundle, folder, group)
            yield from ((group.label, each) for each in self.attempt(path.name, path, read))
        left_out = [(folder / name, why) for name, why in explain_left_out(names, look).items()]
        left_out += [(Path(error.filename), explain(error)) for error in faults]
        left_out += [(folder / name, "it is not a readable file") for name in bad]
        yield from ((DEFAULT_LABEL, self.skip(path.name, path, why)) for path, why in left_out)

    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model at a path, or the listed model with that name."""
        if ref.kind is not Kind.PATH:
            listed = self.list() if len(ref.candidates) > 1 or ref.kind is not Kind.HUB else ()
            wanted = ref.candidates  # what `means` would find anew for each
            return next((b for b in listed if read_canonical(b.name) in wanted), None)
        assert ref.path is not None  # by kind
        try:
            return _find_at_path(ref.path)
        except OSError:
            return None

    def keeps(self, bundle: Bundle) -> tuple[str, str]:
        """Return why the user's own files are not deleted."""
        return (
            "vllama did not download this file",
            f"delete '{bundle.path}' yourself",
        )


def _find_at_path(path: Path) -> Bundle | None:
    rest_on(path, path.parent)
    if path.is_file():
        if path.suffix == ".safetensors" and is_model_folder(path.parent):
            return make_safetensors_bundle(path.parent)
        names, look = _list_ggufs(path.parent.iterdir(), path.parent)[0], look_below(path.parent)
        for group in group_ggufs(names, look, published=False):
            if path.name in group.paths:
                return make_gguf_bundle(path.parent, group)
        if shard := parse_shard(path.name):
            reason = explain_left_out(names, look).get(shard[0], "its first part is missing")
            raise BadModelFile(f"cannot use '{path}': {reason}", hint="download all of its parts")
        return make_gguf_bundle(path.parent, GgufGroup(paths=(path.name,)))
    if not path.is_dir():
        return None
    if is_model_folder(path):
        return make_safetensors_bundle(path)
    # not below it: a client could name "/"
    names, _ = _list_ggufs(path.iterdir(), path)
    groups = group_ggufs(names, look := look_below(path), published=False)
    if len({strip_quant(get_stem(group.paths[0])) for group in groups}) > 1:
        here = ", ".join(group.paths[0] for group in groups)
        raise BadRequest(f"cannot choose a model in '{path}': it has several", hint=f"use {here}")
    for name, why in explain_left_out(names, look).items() if not groups else ():
        raise BadModelFile(f"cannot use '{path / name}': {why}", hint="download all of its parts")
    chosen = choose_group(groups, None)
    return make_gguf_bundle(path, chosen) if chosen else None


def _find_safetensors(folder: Path) -> Bundle | None:
    return make_safetensors_bundle(folder) if is_model_folder(folder) else None


def _list_ggufs(paths: Iterable[Path], folder: Path) -> tuple[list[str], list[str]]:
    """Return the GGUF files in a folder, and what has such a name, but is a link to nowhere."""
    found: tuple[list[str], list[str]] = [], []
    for path in paths:
        if path.suffix.lower() == ".gguf":
            found[not is_file(path)].append(path.relative_to(folder).as_posix())
    return found


def make_gguf_bundle(folder: Path, group: GgufGroup) -> Bundle:
    """Return the bundle of a GGUF model in a folder. Raises OSError."""
    files = tuple(folder / path for path in group.all_paths)
    projector = files[-1] if group.projector else None
    name = path_stem(Path(get_stem(group.paths[0]) if files[0].suffix else group.paths[0]))
    bundle = _make_bundle(Format.GGUF, f"{name}:latest", files[0], files, group.quant, projector)
    return replace(bundle, unfit_projector=folder / group.unfit) if group.unfit else bundle


def make_safetensors_bundle(folder: Path, files: Sequence[Path] = ()) -> Bundle:
    """Return the bundle of a folder with a config and weights, by default of all its files.

    Raises OSError.
    """
    files = files or sorted(filter(is_file, folder.iterdir()))
    name = f"{path_stem(folder)}:latest"
    return _make_bundle(Format.SAFETENSORS, name, folder, tuple(files), None, None)


def _make_bundle(
    format: Format,
    name: str,
    path: Path,
    files: tuple[Path, ...],
    quant: str | None,
    projector: Path | None,
) -> Bundle:
    if str(path) != show_path(path):
        reason = "its name is not UTF-8"
        raise BadModelFile(f"cannot use '{show_path(path)}': {reason}", hint="rename it")
    files = tuple(file for file in files if str(file) == show_path(file))  # others can do without
    statuses = [(file, file.stat()) for file in files]
    return Bundle(
        name=name,
        store=FolderStore.name,
        format=format,
        path=path,
        files=files,
        size_bytes=sum_real_sizes(files),
        # no checksum is known, so the time of modification stands for the content
        digest=compute_digest((f.name, str(s.st_mtime_ns), s.st_size) for f, s in statuses),
        modified_s=max(s.st_mtime for _, s in statuses),
        quant=quant,
        projector=projector,
    )


MLX = "it is in MLX format, which only Apple's MLX engine reads"


class LMStudioStore(FolderStore, RemovingStore):
    """The models in LM Studio's folders; of equal names, the one in the first folder counts."""

    name = "lmstudio"

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__(folders)
        self.roots = folders

    def read_all(self) -> Iterator[Bundle | Skipped]:
        """Yield the models of all repositories."""
        for folder in self._list_repositories():
            yield from self._read(folder)

    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model; if `ref` names no quantization, the preferred one."""
        if ref.hub_id is None:
            return None
        wanted = ref.hub_id.lower()
        for folder in self._list_repositories():
            if _make_hub_id(folder).lower() != wanted:
                continue
            names, _ = _list_ggufs(list_files_below(folder), folder)
            tag = ref.tag if ref.has_tag else None
            group = choose_group(group_ggufs(names, look_below(folder)), tag)
            meant = ModelRef.of_hub(_make_hub_id(folder), group.label) if group else ref
            for each in self._read(folder):
                if isinstance(each, Bundle) and meant.means(each.name):
                    return each
        return None

    def keeps(self, bundle: Bundle) -> tuple[str, str]:
        """Return why LM Studio's files are not deleted without `--force`."""
        force = f"vllama rm --force {bundle.name}"
        hint = f"remove it in LM Studio (My Models, or lms), or delete it anyway: {force}"
        return "it belongs to LM Studio", hint

    def remove(self, bundle: Bundle) -> int:
        """Delete the files of a model, except those that another model uses (a projector)."""
        folder = next(f for f in self._list_repositories() if bundle.path.is_relative_to(f))
        others = (other for other in self._read(folder) if other.name != bundle.name)
        kept = {file for other in others if isinstance(other, Bundle) for file in other.files}
        freed = 0
        with map_removal_errors(bundle):
            for file in bundle.files:
                if file in kept:
                    continue
                freed += 0 if file.is_symlink() else file.stat().st_size
                file.unlink()
                remove_empty(file.parent, folder.parent.parent)
        return freed

    def _list_repositories(self) -> Iterator[Path]:
        """Yield the folders of the second level, following links."""
        for root in self._folders:
            for publisher in _list_folders(root):
                for folder in _list_folders(publisher):
                    try:
                        if ModelRef.parse(_make_hub_id(folder)).kind is Kind.HUB:
                            yield folder
                    except InvalidModelRef:  # not a folder of LM Studio's layout
                        continue

    def _read(self, folder: Path) -> Iterator[Bundle | Skipped]:
        for label, each in self._read_folder(folder, published=True):
            yield self._rename(folder, each, label)
        for each in self.attempt(folder.name, folder, partial(_find_readable, folder)):
            yield self._rename(folder, each, DEFAULT_LABEL)

    def _rename(self, folder: Path, found: _Found, label: str) -> _Found:
        hub_id = _make_hub_id(folder)
        name = ModelRef.of_hub(hub_id, label).display
        if isinstance(found, Skipped):
            return replace(found, name=name)
        return replace(found, name=name, store=self.name, hub_id=hub_id)


def _make_hub_id(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def _find_readable(folder: Path) -> Bundle | None:
    """Return the model that a folder is. Raises ValueError if no engine here reads it."""
    bundle = _find_safetensors(folder)
    if bundle and is_mlx(folder):
        raise ValueError(MLX)
    return bundle


def _list_folders(folder: Path) -> list[Path]:
    rest_on(folder)
    try:
        inside = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
        rest_on(*(path for path in inside if path.is_symlink()))
        return [path for path in inside if path.is_dir()]
    except OSError:
        return []
