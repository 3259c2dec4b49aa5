"""Models that are named by their path, and the user's own folders with models.

Never writes or deletes there. Files are grouped as in a repository of the hub: the shards of a
model together, with its projector.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllama.models.disk import list_files_below
from vllama.models.headers.safetensors import is_model_folder
from vllama.models.names.ref import Kind, ModelRef, path_stem
from vllama.models.names.variants import (
    GgufGroup,
    choose_group,
    get_stem,
    group_ggufs,
    list_shard_paths,
    parse_shard,
)
from vllama.models.stores.base import compute_digest, sum_real_sizes
from vllama.models.types import Bundle, Format


class FolderStore:
    """GGUF files and safetensors folders outside any managed cache."""

    name = "folder"

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self._folders = tuple(folders)

    def list(self) -> list[Bundle]:
        """Return the models in the folders and files that are named in the settings."""
        bundles: dict[str, Bundle] = {}
        for folder in self._folders:
            for bundle in _list_models(folder):
                bundles.setdefault(bundle.name, bundle)
        return list(bundles.values())

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
        wanted = list_shard_paths(path.name)
        for group in group_ggufs(siblings):
            if group.paths == wanted:
                return make_gguf_bundle(path.parent, group)
        if parse_shard(path.name) is not None:
            return None  # a shard is missing
        return make_gguf_bundle(path.parent, GgufGroup(label=None, quant=None, paths=(path.name,)))
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
    files = tuple(folder / path for path in group.paths)
    projector = folder / group.projector if group.projector else None
    everything = (*files, projector) if projector else files
    name = path_stem(Path(get_stem(group.paths[0]) if files[0].suffix else group.paths[0]))
    return _make_bundle(Format.GGUF, f"{name}:latest", files[0], everything, group.quant, projector)


def make_safetensors_bundle(folder: Path) -> Bundle:
    """Return the bundle of a folder with a config and weights. Raises OSError."""
    name = path_stem(folder)
    files = tuple(sorted(p for p in folder.iterdir() if p.is_file()))
    return _make_bundle(Format.SAFETENSORS, f"{name}:latest", folder, files, None, None)


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
