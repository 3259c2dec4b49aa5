"""Models in folders: those named by their path, the user's own folders, and LM Studio's.

Files are grouped as in a repository of the hub: the shards of a model together, with its projector.
Nothing is written there, and only LM Studio's files are deleted, with `--force`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from vllama.base.errors import InvalidModelRef
from vllama.models.disk import list_files_below, remove_empty
from vllama.models.headers.safetensors import is_mlx, is_model_folder
from vllama.models.names.ref import Kind, ModelRef, path_stem
from vllama.models.names.variants import (
    DEFAULT_LABEL,
    GgufGroup,
    choose_group,
    get_stem,
    group_ggufs,
    iterate_shard_paths,
    parse_shard,
)
from vllama.models.stores.base import (
    RemovingStore,
    Store,
    compute_digest,
    keep_first,
    map_removal_errors,
    sum_real_sizes,
)
from vllama.models.types import Bundle, Format, Skipped


class FolderStore(Store):
    """GGUF files and safetensors folders outside any managed cache."""

    name = "folder"

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self._folders = tuple(folders)

    def list(self) -> list[Bundle]:
        """Return the models in the folders and files that are named in the settings."""
        return keep_first(bundle for folder in self._folders for bundle in _list_models(folder))

    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model at a path, or the listed model with that name."""
        if ref.kind is not Kind.PATH:
            return next((b for b in self.list() if ref.means(b.name)), None)
        assert ref.path is not None  # by kind
        try:
            return _find_at_path(ref.path)
        except OSError:
            return None

    def keeps(self, bundle: Bundle) -> tuple[str, str]:
        """Return why the user's own files are not deleted."""
        return (
            "it is your own file, and vllama did not download it",
            f"delete '{bundle.path}' yourself",
        )


def _find_at_path(path: Path) -> Bundle | None:
    if path.is_file():
        if path.suffix == ".safetensors" and is_model_folder(path.parent):
            return make_safetensors_bundle(path.parent)
        siblings = [p.name for p in path.parent.iterdir() if p.suffix.lower() == ".gguf"]
        wanted = tuple(iterate_shard_paths(path.name))
        for group in group_ggufs(siblings):
            if group.paths == wanted:
                return make_gguf_bundle(path.parent, group)
        if parse_shard(path.name) is not None:
            return None  # a shard is missing
        return make_gguf_bundle(path.parent, GgufGroup(paths=(path.name,)))
    if not path.is_dir():
        return None
    if is_model_folder(path):
        return make_safetensors_bundle(path)
    chosen = choose_group(find_gguf_groups(path, deep=False), None)
    return make_gguf_bundle(path, chosen) if chosen else None


def _list_models(folder: Path) -> list[Bundle]:
    try:
        if folder.is_file():
            bundle = _find_at_path(folder)
            return [bundle] if bundle else []
        groups = find_gguf_groups(folder)
        bundles = [make_gguf_bundle(folder, group) for group in groups]
        inner = sorted(path for path in folder.iterdir() if path.is_dir())
        bundles += [make_safetensors_bundle(p) for p in (folder, *inner) if is_model_folder(p)]
    except OSError:
        return []
    return bundles


def find_gguf_groups(folder: Path, *, deep: bool = True) -> tuple[GgufGroup, ...]:
    """Return the GGUF models of a folder; `deep` includes its subfolders. Raises OSError."""
    # not deep for folders that a client names, because it could name "/"
    paths = list_files_below(folder) if deep else folder.iterdir()
    files = (p for p in paths if p.suffix.lower() == ".gguf" and p.is_file())
    return group_ggufs(p.relative_to(folder).as_posix() for p in files)


def make_gguf_bundle(folder: Path, group: GgufGroup) -> Bundle:
    """Return the bundle of a GGUF model in a folder. Raises OSError."""
    files = tuple(folder / path for path in group.all_paths)
    projector = files[-1] if group.projector else None
    name = path_stem(Path(get_stem(group.paths[0]) if files[0].suffix else group.paths[0]))
    return _make_bundle(Format.GGUF, f"{name}:latest", files[0], files, group.quant, projector)


def make_safetensors_bundle(folder: Path, files: Sequence[Path] = ()) -> Bundle:
    """Return the bundle of a folder with a config and weights, by default of all its files.

    Raises OSError.
    """
    files = files or sorted(path for path in folder.iterdir() if path.is_file())
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


MLX = "it is in MLX's format, which only Apple's MLX engine reads"


class LMStudioStore(RemovingStore):
    """The models in LM Studio's folders; of equal names, the one in the first folder counts."""

    name = "lmstudio"

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)

    def list(self) -> list[Bundle]:
        """Return all complete models that can be served."""
        return keep_first(
            bundle for folder in self._list_repositories() for bundle in self._list_models(folder)
        )

    def skipped(self) -> tuple[Skipped, ...]:
        """Return the repositories that are not listed, with the reason."""
        return tuple(
            Skipped(
                name=ModelRef.of_hub(_make_hub_id(folder)).display,
                store=self.name,
                path=folder,
                reason=reason,
            )
            for folder in self._list_repositories()
            if (reason := _explain_skip(folder))
        )

    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model; if `ref` names no quantisation, the preferred one."""
        if ref.hub_id is None:
            return None
        wanted = ref.hub_id.lower()
        for folder in self._list_repositories():
            if _make_hub_id(folder).lower() != wanted:
                continue
            try:
                group = choose_group(find_gguf_groups(folder), ref.tag if ref.has_tag else None)
                if group is not None:
                    return self._rename(folder, make_gguf_bundle(folder, group), group.label)
            except OSError:
                continue
            for bundle in self._list_models(folder):
                if ref.means(bundle.name):
                    return bundle
        return None

    def keeps(self, bundle: Bundle) -> tuple[str, str]:
        """Return why LM Studio's files are not deleted without `--force`."""
        force = f"vllama rm --force {bundle.name}"
        hint = f"remove it there (My Models, or lms), or delete it anyway: {force}"
        return "it belongs to LM Studio", hint

    def remove(self, bundle: Bundle) -> int:
        """Delete the files of a model, except those that another model uses (a projector)."""
        folder = next(f for f in self._list_repositories() if bundle.path.is_relative_to(f))
        others = (other for other in self._list_models(folder) if other.name != bundle.name)
        kept = {file for other in others for file in other.files}
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

    def _list_models(self, folder: Path) -> tuple[Bundle, ...]:
        try:
            bundles = [
                self._rename(folder, make_gguf_bundle(folder, group), group.label)
                for group in find_gguf_groups(folder)
            ]
            if is_model_folder(folder) and not is_mlx(folder):
                bundles.append(self._rename(folder, make_safetensors_bundle(folder), DEFAULT_LABEL))
        except OSError:
            return ()
        return tuple(bundles)

    def _rename(self, folder: Path, bundle: Bundle, label: str) -> Bundle:
        hub_id = _make_hub_id(folder)
        name = ModelRef.of_hub(hub_id, label).display
        return replace(bundle, name=name, store=self.name, hub_id=hub_id)


def _make_hub_id(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def _explain_skip(folder: Path) -> str | None:
    """Return why the folder of a repository has no model to list, None if it has one."""
    try:
        if find_gguf_groups(folder):
            return None
        if any(path.suffix == ".gguf" for path in list_files_below(folder)):
            return "its GGUF files are not a complete model: a shard is missing"
        return MLX if is_model_folder(folder) and is_mlx(folder) else None
    except OSError as error:
        return f"it cannot be read ({error.strerror or error})"


def _list_folders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if not p.name.startswith(".") and p.is_dir())
    except OSError:
        return []
