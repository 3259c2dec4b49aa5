"""LM Studio's models, read in place: `<models>/<publisher>/<repository>/<files>`.

The two folders correspond to the hub (lmstudio.ai/docs, "Import models"), so a model has the name
that it would have there: `hf.co/publisher/repository:QUANT`. Writes nothing, and deletes only with
`--force`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from vllama.base.errors import InvalidModelRef, VllamaError
from vllama.models.disk import list_files_below, remove_empty
from vllama.models.headers.safetensors import is_mlx, is_model_folder
from vllama.models.names.ref import Kind, ModelRef
from vllama.models.names.variants import choose_group
from vllama.models.stores.folder import find_gguf_groups, make_gguf_bundle, make_safetensors_bundle
from vllama.models.types import Bundle, Removed, Skipped

MLX = "it is in MLX's format, which only Apple's MLX engine reads"


class LMStudioStore:
    """The models in LM Studio's folders; of equal names, the one in the first folder counts."""

    name = "lmstudio"

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)

    def list(self) -> list[Bundle]:
        """Return all complete models that can be served."""
        bundles: dict[str, Bundle] = {}
        for repository in self._list_repositories():
            for bundle in self._list_models(repository):
                bundles.setdefault(bundle.name, bundle)
        return list(bundles.values())

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

    def remove(self, bundle: Bundle) -> Removed:
        """Delete the files of a model, except those that another model uses (a projector)."""
        folder = next(f for f in self._list_repositories() if bundle.path.is_relative_to(f))
        others = (other for other in self._list_models(folder) if other.name != bundle.name)
        kept = {file for other in others for file in other.files}
        freed = 0
        try:
            for file in bundle.files:
                if file in kept:
                    continue
                freed += 0 if file.is_symlink() else file.stat().st_size
                file.unlink()
                remove_empty(file.parent, folder.parent.parent)
        except OSError as error:
            raise VllamaError(
                f"cannot remove '{bundle.name}': {error.strerror or error}"
            ) from error
        return Removed(names=(bundle.name,), freed_bytes=freed)

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
                bundles.append(self._rename(folder, make_safetensors_bundle(folder), None))
        except OSError:
            return ()
        return tuple(bundles)

    def _rename(self, folder: Path, bundle: Bundle, label: str | None) -> Bundle:
        hub_id = _make_hub_id(folder)
        name = ModelRef.of_hub(hub_id, label or "latest").display
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
