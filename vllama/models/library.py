"""The library of this machine's models: list, find, read, remove; `remote` pulls more.

It knows stores and a source through their protocols. Blocking: call `remove`, the methods of
`remote` and the first `info` of a model in a thread. All methods may be called from many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.errors import BadRequest, VllamaError
from vllama.models.aliases import check_aliases
from vllama.models.configured import ConfiguredModels
from vllama.models.disk import get_free_bytes
from vllama.models.info_cache import InfoCache
from vllama.models.model_settings import ModelSettings
from vllama.models.not_found import make_missing_error
from vllama.models.ref import ModelRef
from vllama.models.remote import Remote
from vllama.models.settings import ModelsSettings
from vllama.models.stored import StoredModels
from vllama.models.stores.base import ForeignStore, RemovingStore, Store
from vllama.models.stores.folder import FolderStore
from vllama.models.stores.hf_cache import HfCacheStore
from vllama.models.stores.lmstudio import LMStudioStore
from vllama.models.stores.local import LocalStore
from vllama.models.stores.ollama import OllamaStore
from vllama.models.stores.packaged import PackagedStore
from vllama.models.types import Bundle, ModelInfo, Removed

if TYPE_CHECKING:
    from vllama.models.sources.base import Hub


class Library:
    """The models on this machine, with the user's settings for them.

    `stored` has them without these settings; `remote` is what can be pulled.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        open_source: Callable[[], Hub],
        settings: ModelsSettings,
        *,
        free_space: Callable[[Path], int] = get_free_bytes,
    ) -> None:
        self._settings = settings
        self._infos = InfoCache()
        self.stored = StoredModels(stores, settings)
        self.configured = ConfiguredModels(
            settings.tables, self.stored.find, self._infos.read, self.stored.list
        )
        self.remote = Remote(open_source, settings, self.stored, self._infos, self.list, free_space)
        self._has_fallbacks = bool(settings.tables.list_links())

    def list(self) -> list[Bundle]:
        """Return all models with their settings, the newest first."""
        plain = self.stored.list()
        found = [self._configure(bundle, others=plain) for bundle in plain]
        found += self.configured.list_others(found)
        return sorted(found, key=lambda b: (-b.modified_s, b.name))

    @property
    def hf_cache_dir(self) -> Path:
        """Where models of the hub are kept."""
        return self._settings.hf_cache_dir

    @property
    def local(self) -> LocalStore:
        """The store of the models created here. Raises VllamaError if there is none."""
        for store in self.stored.stores:
            if isinstance(store, LocalStore):
                return store
        raise VllamaError("cannot keep models: no data folder is set")

    def find(self, name: str, *, may_pull: bool = True) -> Bundle:
        """Return the model called `name`, with its settings; raise InvalidModelRef, ModelNotFound.

        `may_pull`: the hint of the error may be to pull it, which is no help to remove or copy one.
        """
        bundle = self.configured.find(name)
        if bundle is None:
            raise make_missing_error(name, self.stored, self.list, may_pull=may_pull)
        return self._configure(bundle, name)

    def _configure(
        self, bundle: Bundle, *names: str, others: Sequence[Bundle] | None = None
    ) -> Bundle:
        if not self._settings.tables.tables:
            return bundle
        return self.configured.apply(
            bundle, (*names, *self.stored.list_asked_names(bundle)), others
        )

    @property
    def has_fallbacks(self) -> bool:
        """Whether any model has a fallback chain."""
        return self._has_fallbacks

    def find_settings(self, name: str) -> ModelSettings:
        """Return the user's settings for a name, whether there is such a model or not."""
        return self._settings.tables.find([self._settings.tables.find_alias(name) or name])

    def renew(self, bundle: Bundle) -> Bundle:
        """Return a loaded model with its present settings."""
        names = (bundle.name, *self.stored.list_asked_names(bundle))
        return replace(bundle, settings=self._settings.tables.find(names))

    def info(self, bundle: Bundle) -> ModelInfo:
        """Return a model's metadata, with the capabilities of its template. Raises BadModelFile."""
        # not at the top: starting a server and listing models read no model
        from vllama.models.info import apply_template

        return apply_template(self._infos.read(bundle), bundle)

    def remove(self, name: str, *, force: bool = False) -> Removed:
        """Delete a model that vllama or another user of the hub's cache fetched.

        `force`: also one that another tool put into a store that vllama writes to. Raises
        ModelNotFound, and BadRequest for models that belong to another program.
        """
        bundle, store = self._removable(name, force=force)
        noted = self.stored.names.meant_by(ModelRef.parse(name))
        if noted is None or (bundle.store, bundle.name) != (HfCacheStore.name, noted[0]):
            return store.remove(bundle)
        if self.stored.names.forget(*noted):  # as a tag of Ollama's: the files stay for the others
            return Removed(names=(noted[0],), freed_bytes=0)
        return replace(store.remove(replace(bundle, name=noted[1])), names=(noted[0],))

    def check_removable(self, name: str, *, force: bool = False) -> None:
        """Raise what `remove` would raise before it deletes anything."""
        self._removable(name, force=force)

    def _removable(self, name: str, *, force: bool) -> tuple[Bundle, RemovingStore]:
        if (model := self._settings.tables.find_alias(name)) is not None:
            raise BadRequest(
                f"cannot remove '{name}': it is an alias of '{model}' in the config file",
                hint="take it out of that file",
            )
        bundle = self.stored.find(name)
        if bundle is None:
            raise make_missing_error(name, self.stored, self.list)
        store = next(s for s in self.stored.stores if s.name == bundle.store)
        kept = store.keeps(bundle) if isinstance(store, ForeignStore) else None
        if isinstance(store, RemovingStore) and (force or kept is None):
            return bundle, store
        reason, hint = kept or ("its store is read-only", None)
        raise BadRequest(f"cannot remove '{bundle.name}': {reason}", hint=hint)


def open_library(settings: ModelsSettings) -> Library:
    """Build the library of this machine: stores, folders, the hub's cache and packages."""
    check_aliases(settings.aliases)
    stores: tuple[Store, ...] = (
        OllamaStore(settings.ollama_dirs),
        FolderStore(settings.folders),
        HfCacheStore(settings.hf_cache_dir),
        LMStudioStore(settings.lmstudio_dirs),
        PackagedStore(settings.package_dirs),
    )
    if settings.upstreams:
        from vllama.models.stores.upstream import UpstreamStore

        upstreams = UpstreamStore(settings.upstreams, settings.upstream_traits)
        stores = (upstreams, *stores)
    if settings.data_dir is not None:
        stores = (LocalStore(settings.data_dir, stores), *stores)

    def open_source() -> Hub:
        from vllama.models.sources.hf import HuggingFace

        return HuggingFace(settings)

    return Library(stores, open_source, settings)
