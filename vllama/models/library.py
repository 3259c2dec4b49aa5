"""The library of this machine's models: list, find, read, pull, remove.

It knows stores and a source through their protocols. Blocking: call `pull`, `remove` and the first
`info` of a model in a thread. All methods may be called from many threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.errors import (
    BadModelFile,
    BadRequest,
    ModelNotFound,
    NotEnoughMemory,
    Offline,
    VllamaError,
)
from vllama.models.aliases import check_aliases, find_hub_alias, find_own_alias
from vllama.models.configured import ConfiguredModels
from vllama.models.disk import get_free_bytes
from vllama.models.limits import check_registry
from vllama.models.model_settings import ModelSettings
from vllama.models.ollama.layout import RegistryTarget, find_target
from vllama.models.ref import CloudDisabled, Kind, ModelRef, is_cloud
from vllama.models.remote import Remote
from vllama.models.resolve.pulled_names import PulledNames, find_cached_forms
from vllama.models.settings import ModelsSettings
from vllama.models.stores.base import (
    ForeignStore,
    LinkingStore,
    RemovingStore,
    SkippingStore,
    Store,
)
from vllama.models.stores.folder import FolderStore
from vllama.models.stores.hf_cache import HfCacheStore
from vllama.models.stores.lmstudio import LMStudioStore
from vllama.models.stores.local import LocalStore, check_base
from vllama.models.stores.ollama import OllamaStore
from vllama.models.stores.packaged import PackagedStore
from vllama.models.types import (
    Bundle,
    Format,
    ModelInfo,
    Progress,
    PullEvent,
    Removed,
    Skipped,
)
from vllama.spelling import find_similar

if TYPE_CHECKING:
    from vllama.models.resolve.memory_fit import Fits
    from vllama.models.resolve.search import Resolution
    from vllama.models.sources.base import Hub

ALL_FORMATS = (Format.GGUF, Format.SAFETENSORS)
_INFOS_KEPT = 256
_NAMES_SHOWN = 8


class Library:
    """The models in `stores` (asked in that order) and at the source that `open_source` makes."""

    def __init__(
        self,
        stores: Sequence[Store],
        open_source: Callable[[], Hub],
        settings: ModelsSettings,
        *,
        free_space: Callable[[Path], int] = get_free_bytes,
    ) -> None:
        self._stores, self._settings = tuple(stores), settings
        self._here = tuple(each for each in self._stores if not isinstance(each, LinkingStore))
        self._remote = Remote(open_source, settings, free_space)
        self._names = PulledNames(settings.data_dir)
        self.configured = ConfiguredModels(
            settings.tables, self._find_plain, self._read, self._list_plain
        )
        self._has_fallbacks = bool(settings.tables.list_links())
        self._infos: OrderedDict[tuple[object, ...], ModelInfo] = OrderedDict()
        self._lock = threading.Lock()

    def list(self) -> list[Bundle]:
        """Return all models, the newest first.

        Of equal names the first store's model counts, but an upstream's may yield to another.
        """
        plain = self._list_plain()
        found = [self._configure(bundle, others=plain) for bundle in plain]
        found += self.configured.list_others(found)
        return sorted(found, key=lambda b: (-b.modified_s, b.name))

    def _list_plain(self) -> Sequence[Bundle]:
        """Return all models as their stores have them."""
        bundles: dict[str, Bundle] = {}
        for store in self._stores:
            for bundle in store.list():
                known = bundles.get(bundle.name.lower())
                if known is None or yields(known):
                    bundles[bundle.name.lower()] = bundle
        for name, shown in self._names.shown().items():
            if (pulled := bundles.get(name)) is not None:
                del bundles[name]
                bundles |= {other.lower(): replace(pulled, name=other) for other in shown}
        return tuple(bundles.values())

    def has_models_here(self) -> bool:
        """Return whether any model is on this disk."""
        return any(store.list() for store in self._here)

    def list_asked_names(self, bundle: Bundle) -> Sequence[str]:
        """Return the names that a model was pulled by, in full and in lower case."""
        return self._names.list_asked(bundle.name)

    def skipped(self) -> tuple[Skipped, ...]:
        """Return the models on this disk that are not listed, with the reasons."""
        stores = [store for store in self._stores if isinstance(store, SkippingStore)]
        return tuple(item for store in stores for item in store.skipped())

    @property
    def hf_cache_dir(self) -> Path:
        """Where models of the hub are kept."""
        return self._settings.hf_cache_dir

    @property
    def local(self) -> LocalStore:
        """The store of the models created here. Raises VllamaError if there is none."""
        for store in self._stores:
            if isinstance(store, LocalStore):
                return store
        raise VllamaError("cannot keep models: no data folder is set")

    def find(self, name: str, *, may_pull: bool = True) -> Bundle:
        """Return the model called `name`, with its settings; raise InvalidModelRef, ModelNotFound.

        `may_pull`: the hint of the error may be to pull it, which is no help to remove or copy one.
        """
        bundle = self.configured.find(name)
        if bundle is None:
            raise self._make_missing_error(name, may_pull=may_pull)
        return self._configure(bundle, name)

    def _configure(
        self, bundle: Bundle, *names: str, others: Sequence[Bundle] | None = None
    ) -> Bundle:
        if not self._settings.tables.tables:
            return bundle
        return self.configured.apply(bundle, (*names, *self.list_asked_names(bundle)), others)

    @property
    def has_fallbacks(self) -> bool:
        """Whether any model has a fallback chain."""
        return self._has_fallbacks

    def find_settings(self, name: str) -> ModelSettings:
        """Return the user's settings for a name, whether there is such a model or not."""
        return self._settings.tables.find([self._settings.tables.find_alias(name) or name])

    def renew(self, bundle: Bundle) -> Bundle:
        """Return a loaded model with its present settings."""
        names = (bundle.name, *self.list_asked_names(bundle))
        return replace(bundle, settings=self._settings.tables.find(names))

    def is_link(self, name: str) -> bool:
        """Return whether a name is a link to a server that the user named (`find_link`)."""
        return self._find_linked(name) is not None

    def _find_linked(self, name: str) -> Bundle | None:
        stores = (store for store in self._stores if isinstance(store, LinkingStore))
        return next((found for store in stores if (found := store.find_link(name))), None)

    def _find_plain(self, name: str) -> Bundle | None:
        """Return the model called `name` as its store has it, or None. Raises InvalidModelRef."""
        return self._find_linked(name) or self._find(ModelRef.parse(name))

    def _make_missing_error(self, name: str, *, may_pull: bool = True) -> VllamaError:
        """Return the error for a model that is not here, with what to do about it."""
        ref = ModelRef.parse(name)
        if is_cloud(ref):
            return CloudDisabled()
        if ref.kind is Kind.PATH:
            return ModelNotFound(
                name,
                message=f"cannot find a model at '{name}'",
                hint="name a .gguf file, or a folder with config.json (or params.json) and "
                "*.safetensors"
                if ref.path is not None and ref.path.exists()
                else "there is no such file or folder",
            )
        shown = name.strip() if ref.kind is Kind.HUB else ref.display
        return ModelNotFound(shown, hint=self._advice(ref, may_pull=may_pull))

    def _find(self, ref: ModelRef) -> Bundle | None:
        found = self._search(ref, self._stores)
        if found is None or not yields(found):
            return found
        return self._search(ref, self._here) or found

    def _search(self, ref: ModelRef, stores: Sequence[Store]) -> Bundle | None:
        """Return the model that `stores` have by this name, or by another one of the same model."""
        bundle = find_in(stores, ref)
        if bundle is not None:
            return bundle if ref.kind is not Kind.PATH else self._named_apart(bundle)
        noted = self._names.meant_by(ref)
        if noted is not None and (bundle := find_in(stores, ModelRef.parse(noted[1]))) is not None:
            return replace(bundle, name=noted[0])
        alias = self.alias(ref)
        if alias is not None and (bundle := find_in(stores, alias)) is not None:
            return bundle
        forms = self._forms(alias or ref, known=alias is not None)
        return next((b for form in forms if (b := find_in(stores, form)) is not None), None)

    def _named_apart(self, bundle: Bundle) -> Bundle:
        """Return a model that was found by its path; it has that as its name if another has its."""
        named = find_in(self._stores, ModelRef.parse(bundle.name))
        if named is None or named.key == bundle.key:
            return bundle
        return replace(bundle, name=str(bundle.path))

    def alias(self, ref: ModelRef) -> ModelRef | None:
        """Return the hub model that a library name, or a user's alias, stands for; or None."""
        return find_hub_alias(ref, self._settings.aliases)

    def _advice(self, ref: ModelRef, *, may_pull: bool) -> str:
        """Return the hint for a model that is not here: a similar name, a pull, or the list."""
        for item in self.skipped():
            if ref.means(item.name):
                return f"it lies in '{item.path}', but is left out: {item.reason}"
        keys: dict[str, str] = {}
        for bundle in self.list():
            here = ModelRef.parse(bundle.name)
            # also without the tag and the organisation: any of them may be misspelt
            for key in (f"{here.plain}:{here.tag}", here.plain, here.model):
                keys.setdefault(key.lower(), bundle.name)
        wanted = f"{ref.plain}:{ref.tag}" if ref.has_tag else ref.plain
        near = list(dict.fromkeys(keys[key] for key in find_similar(wanted, keys)))
        if not may_pull:
            other = "see what is here: vllama list"
        elif ref.kind is Kind.HUB or self.alias(ref):
            other = f"run: vllama pull {ref.text}"
        else:
            other = "pull it from the hub by its full name: vllama pull hf.co/org/repo"
        return f"did you mean {' or '.join(near)}? Otherwise {other}" if near else other

    def info(self, bundle: Bundle) -> ModelInfo:
        """Return a model's metadata, with the capabilities of its template. Raises BadModelFile."""
        # not at the top: starting a server and listing models read no model
        from vllama.models.info import apply_template

        return apply_template(self._read(bundle), bundle)

    def _read(self, bundle: Bundle) -> ModelInfo:
        """Read a model's metadata, once for each state of its files."""
        if bundle.info is not None:
            return bundle.info
        check_base(bundle)
        key = _state(bundle)
        with self._lock:
            if key in self._infos:
                self._infos.move_to_end(key)
                return self._infos[key]
        from vllama.models.info import read_info

        info = read_info(bundle)
        with self._lock:
            self._infos[key] = info
            while len(self._infos) > _INFOS_KEPT:
                self._infos.popitem(last=False)
        return info

    def pull(
        self,
        name: str,
        *,
        formats: Sequence[Format] = ALL_FORMATS,
        progress: Progress = lambda event: None,
        cancel: threading.Event | None = None,
        insecure: bool = False,
        fits: Fits | None = None,
        to_load: bool = False,
    ) -> Bundle:
        """Fetch a model, or update it; return it.

        `insecure` allows plain http to a registry of Ollama's kind. `formats` are those that can
        be served, the best first. With `fits` the quantisation is chosen by memory, and a model
        of which none fits is refused; one that was named is fetched all the same, unless it is
        `to_load` here. Raises InvalidModelRef, ModelNotFound, NoPlan (no such format there),
        NotEnoughMemory, Cancelled, DiskFull, SourceError and kin; Forbidden, before any progress,
        for a registry that the settings do not allow.
        """
        ref, cancel = ModelRef.parse(name), cancel or threading.Event()
        here = self._find(ref)
        if here is not None and here.format is Format.GGUF and Format.GGUF not in formats:
            here = None  # the caller wants the original, to convert it
        where = None
        if self._settings.ollama_dirs and find_own_alias(ref, self._settings.aliases) is None:
            where = find_target(ref, self._settings.ollama_registry, insecure=insecure)
        if where is not None and (where.asked or here is None or here.store == OllamaStore.name):
            if is_cloud(ref):
                raise CloudDisabled
            # before any progress, so that a client gets the error as a status code
            check_registry(self._settings.allowed_registries, where.address)
            progress(PullEvent(status="pulling manifest"))
            bundle = self._from_registry(where, here, formats, progress, cancel)
            progress(PullEvent(status="success"))
            return bundle
        hub = self.alias(ref) or (ref if ref.kind is Kind.HUB else None)
        fetched = here is None or here.store == HfCacheStore.name
        if hub is not None and fetched:
            check_registry(self._settings.allowed_registries, self._settings.hub_address)
        progress(PullEvent(status="pulling manifest"))
        if here is not None and ref.kind is Kind.PATH:
            self.info(here)  # raises: nothing could load it
        if here is not None and (hub is None or not fetched):
            progress(PullEvent(status="success"))
            return here
        if is_cloud(ref):
            raise CloudDisabled
        if hub is None and ref.kind is Kind.PATH:
            return self.find(ref.text)  # raises: it is not here
        try:
            found = self.look_up(name, formats=formats, fits=fits)
        except Offline:
            if here is None or hub is None:
                raise
            progress(PullEvent(status="success"))  # complete, though perhaps not the newest
            return here
        for note in found.notes:
            progress(PullEvent(status=note))
        if found.shortage is not None:
            if to_load or hub is None or not hub.has_tag:
                raise make_too_large_error(ref, found, found.shortage, to_load=to_load)
            progress(PullEvent(status=f"warning: {found.shortage.sentence()}"))
        bundle = self._names.note(ref, self._remote.fetch(found, progress, cancel))
        progress(PullEvent(status="success"))
        return bundle

    def _from_registry(
        self,
        where: RegistryTarget,
        here: Bundle | None,
        formats: Sequence[Format],
        progress: Progress,
        cancel: threading.Event,
    ) -> Bundle:
        try:
            return self._remote.fetch_from(where, formats, progress, cancel)
        except Offline:
            if here is None or here.store != OllamaStore.name:
                raise
            return here  # complete, though perhaps not the newest

    def _cut_off(self, error: Offline, hub: ModelRef) -> Offline:
        """Add the forms of a model that are here to the error that the hub cannot be reached."""
        ids = {hub.hub_id, *(form.hub_id for form in self._forms(hub, known=True))}
        here = [b.name for b in self.list() if b.hub_id in ids][:_NAMES_SHOWN]
        hint = f"use what is here: {', '.join(here)}; or {error.hint}" if here else error.hint
        return Offline(error.message, hint=hint)

    def _forms(self, ref: ModelRef, *, known: bool) -> Sequence[ModelRef]:
        return find_cached_forms(self._settings.hf_cache_dir, ref, known=known)

    def look_up(
        self, name: str, *, formats: Sequence[Format] = ALL_FORMATS, fits: Fits | None = None
    ) -> Resolution:
        """Decide what a pull from the hub would fetch, and why, without fetching it.

        Raises what `pull` raises, except NotEnoughMemory, which is the resolution's `shortage`.
        """
        ref = ModelRef.parse(name)
        check_registry(self._settings.allowed_registries, self._settings.hub_address)
        try:
            return self._remote.look_up(ref, formats, fits, self._known)
        except Offline as error:
            raise self._cut_off(error, self.alias(ref) or ref) from error

    def is_pullable(self, name: str) -> bool:
        """Tell whether a name is one of the hub, or a library's: not a path, not in the cloud."""
        ref = ModelRef.parse(name)
        return ref.kind is not Kind.PATH and not is_cloud(ref)

    def _known(self, found: Resolution) -> ModelInfo | None:
        """Return the metadata of a form that is on this disk, to save a request to the hub."""
        repository = found.repository
        ref = ModelRef.of_hub(repository.hub_id, found.variant.label, repository.branch)
        bundle = find_in(self._stores, ref)
        if bundle is None or bundle.format is not found.variant.format:
            return None
        try:
            return self._read(bundle)
        except BadModelFile:
            return None

    def look_into(self, found: Resolution) -> ModelInfo:
        """Read the metadata of what a pull would fetch, from the hub: a few MB at most.

        Raises BadModelFile, AuthRequired, Offline, SourceError.
        """
        return self._remote.look_into(found)

    def remove(self, name: str, *, force: bool = False) -> Removed:
        """Delete a model that vllama or another user of the hub's cache fetched.

        `force`: also one that another tool put into a store that vllama writes to. Raises
        ModelNotFound, and BadRequest for models that belong to another program.
        """
        bundle, store = self._removable(name, force=force)
        noted = self._names.meant_by(ModelRef.parse(name))
        if noted is None or (bundle.store, bundle.name) != (HfCacheStore.name, noted[0]):
            return store.remove(bundle)
        if self._names.forget(*noted):  # as a tag of Ollama's: the files stay for the others
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
        bundle = self._find_plain(name)
        if bundle is None:
            raise self._make_missing_error(name)
        store = next(s for s in self._stores if s.name == bundle.store)
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


def find_in(stores: Sequence[Store], ref: ModelRef) -> Bundle | None:
    """Return the model with the name `ref` in the first store that has it."""
    return next((b for store in stores if (b := store.find(ref)) is not None), None)


def yields(bundle: Bundle) -> bool:
    """Tell whether a model gives way to one of the same name on this disk."""
    return bundle.upstream is not None and bundle.upstream.yields


def make_too_large_error(
    ref: ModelRef, found: Resolution, shortage: NotEnoughMemory, *, to_load: bool
) -> NotEnoughMemory:
    """Make the error for a model that is not fetched because it does not fit."""
    hint = shortage.hint
    if not to_load and found.variant.format is Format.GGUF:
        repository = found.repository
        name = ModelRef.of_hub(repository.hub_id, found.variant.label, repository.branch).display
        anyway = f"to fetch it all the same, name the quantisation: vllama pull {name}"
        hint = f"{hint}; or {anyway}" if hint else anyway
    verb = "load" if to_load else "pull"
    return NotEnoughMemory(f"cannot {verb} '{ref.display}': {shortage.message}", hint=hint)


def _state(bundle: Bundle) -> tuple[object, ...]:
    try:
        times = tuple(path.stat().st_mtime_ns for path in bundle.files)
    except OSError:
        times = ()
    return (bundle.path, bundle.projector, bundle.quant, bundle.size_bytes, times)
