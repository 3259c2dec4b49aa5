"""All models of this machine under one roof: list, find, read, pull, remove.

Knows stores and one source through their protocols. Blocking: call `pull`, `remove` and the
first `info` of a model in a thread; all methods may be called from many threads.
"""

from __future__ import annotations

import difflib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from vllama.errors import BadRequest, ModelNotFound, NoPlan, Offline, VllamaError
from vllama.models.aliases import hub_alias
from vllama.models.cloud import CloudDisabled, is_cloud
from vllama.models.disk import free_bytes
from vllama.models.info import read_info
from vllama.models.ref import Kind, ModelRef
from vllama.models.settings import ModelsSettings
from vllama.models.sources.base import Repository, Source
from vllama.models.stores.base import ForeignStore, RemovingStore, Store
from vllama.models.stores.folder import FolderStore
from vllama.models.stores.hf_cache import HfCacheStore
from vllama.models.stores.local import LocalStore, check_base
from vllama.models.stores.packaged import PackagedStore
from vllama.models.stores.upstream import UpstreamStore
from vllama.models.types import (
    Bundle,
    Format,
    ModelInfo,
    Progress,
    PullEvent,
    Removed,
    Variant,
)
from vllama.models.variants import GgufGroup, choose_group

ALL_FORMATS = (Format.GGUF, Format.SAFETENSORS)
_INFOS_KEPT = 256
_NAMES_SHOWN = 8


class Library:
    """The models in `stores` (asked in that order) and at the source that `open_source` makes."""

    def __init__(
        self,
        stores: Sequence[Store],
        open_source: Callable[[], Source],
        settings: ModelsSettings,
        *,
        free_space: Callable[[Path], int] = free_bytes,
    ) -> None:
        self._stores, self._settings = tuple(stores), settings
        self._open_source, self._free_space = open_source, free_space
        self._infos: OrderedDict[tuple[object, ...], ModelInfo] = OrderedDict()
        self._lock = threading.Lock()

    def list(self) -> list[Bundle]:
        """Return all models, the newest first; of one name the first store's."""
        bundles: dict[str, Bundle] = {}
        for store in self._stores:
            for bundle in store.list():
                bundles.setdefault(bundle.name.lower(), bundle)
        return sorted(bundles.values(), key=lambda b: (-b.modified_s, b.name))

    @property
    def local(self) -> LocalStore:
        """The store of the models created here. Raises VllamaError if there is none."""
        for store in self._stores:
            if isinstance(store, LocalStore):
                return store
        raise VllamaError("cannot keep models: no data folder is set")

    def find(self, name: str) -> Bundle:
        """Return the model called `name`; raise InvalidModelRef or ModelNotFound."""
        ref = ModelRef.parse(name)
        bundle = self._find(ref)
        if bundle is not None:
            return bundle
        if is_cloud(ref):
            raise CloudDisabled
        if ref.kind is Kind.PATH:
            raise ModelNotFound(
                name,
                message=f"cannot find a model at '{name}'",
                hint="name a .gguf file, or a folder with config.json and *.safetensors",
            )
        shown = name.strip() if ref.kind is Kind.HUB else ref.display
        raise ModelNotFound(shown, hint=self._advice(ref))

    def _find(self, ref: ModelRef) -> Bundle | None:
        for store in self._stores:
            bundle = store.find(ref)
            if bundle is not None:
                return bundle
        alias = hub_alias(ref)
        return self._find(alias) if alias else None

    def _advice(self, ref: ModelRef) -> str:
        """Say what can be done about a model that is not here: a near name, or a pull."""
        keys: dict[str, str] = {}
        for bundle in self.list():
            here = ModelRef.parse(bundle.name)
            # without the tag and the organisation too: which of them is wrong is not known
            for key in (f"{here.plain}:{here.tag}", here.plain, here.model):
                keys.setdefault(key.lower(), bundle.name)
        wanted = f"{ref.plain}:{ref.tag}" if ref.has_tag else ref.plain
        close = difflib.get_close_matches(wanted.lower(), keys, n=3, cutoff=0.7)
        near = list(dict.fromkeys(keys[key] for key in close))
        if ref.kind is Kind.HUB or hub_alias(ref):
            pull = f"run: vllama pull {ref.text}"
        else:
            pull = "pull it from the hub by its full name: vllama pull hf.co/org/repo"
        return f"did you mean {' or '.join(near)}? Otherwise {pull}" if near else pull

    def info(self, bundle: Bundle) -> ModelInfo:
        """Read a model's own metadata, once for each state of its files; raise BadModelFile."""
        if bundle.info is not None:
            return bundle.info
        check_base(bundle)
        key = _state(bundle)
        with self._lock:
            if key in self._infos:
                self._infos.move_to_end(key)
                return self._infos[key]
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
    ) -> Bundle:
        """Bring a model here, or up to date; return it.

        `formats` are those that can be served, the best first. Raises InvalidModelRef,
        ModelNotFound, NoPlan (no such format there), Cancelled, DiskFull, SourceError and kin.
        """
        ref = ModelRef.parse(name)
        progress(PullEvent(status="pulling manifest"))
        here = self._find(ref)
        hub = ref if ref.kind is Kind.HUB else hub_alias(ref)
        if here is not None and (hub is None or here.store != HfCacheStore.name):
            progress(PullEvent(status="success"))
            return here
        if is_cloud(ref):
            raise CloudDisabled
        if hub is None or hub.hub_id is None:
            return self._unpullable(ref)
        from vllama.models.fetch import Fetcher  # with its HTTP client: only a pull pays for it

        source = self._open_source()
        try:
            repository = source.resolve(hub.hub_id)
        except Offline:
            if here is None:
                raise
            progress(PullEvent(status="success"))  # what is here is complete, if maybe not newest
            return here
        variant = choose_variant(repository, hub.tag if hub.has_tag else None, formats)
        fetcher = Fetcher(source, self._settings, free_space=self._free_space)
        fetcher.fetch(repository, variant, progress, cancel or threading.Event())
        bundle = self._fetched(repository, variant)
        progress(PullEvent(status="success"))
        return bundle

    def _unpullable(self, ref: ModelRef) -> Bundle:
        if ref.kind is Kind.PATH:
            return self.find(ref.text)  # raises: it is not here
        raise ModelNotFound(
            ref.display,
            message=f"cannot pull '{ref.display}': Ollama's own library is not a source of vllama",
            hint="name the model on the hub: vllama pull hf.co/org/repo[:QUANT]",
        )

    def _fetched(self, repository: Repository, variant: Variant) -> Bundle:
        store = HfCacheStore(self._settings.hf_cache_dir)
        wanted = ModelRef.of_hub(repository.hub_id, variant.label)
        for bundle in store.in_repository(repository.hub_id):
            if wanted.means(bundle.name) and bundle.format is variant.format:
                return bundle
        raise ModelNotFound(wanted.display, hint="it was removed while it was pulled: pull again")

    def remove(self, name: str) -> Removed:
        """Delete a model that vllama or another user of the hub's cache fetched.

        Raises ModelNotFound, and BadRequest for models that belong to somebody else.
        """
        bundle = self.find(name)
        store = next(s for s in self._stores if s.name == bundle.store)
        if isinstance(store, RemovingStore):
            return store.remove(bundle)
        reason, hint = "its store is read-only", None
        if isinstance(store, ForeignStore):
            reason, hint = store.keeps(bundle)
        raise BadRequest(f"cannot remove '{bundle.name}': {reason}", hint=hint)


def open_library(settings: ModelsSettings) -> Library:
    """Build the library of this machine: packaged models, folders, the hub and its cache."""
    stores: tuple[Store, ...] = (
        PackagedStore(settings.package_dirs),
        FolderStore(settings.folders),
        HfCacheStore(settings.hf_cache_dir),
    )
    if settings.upstreams:
        stores = (UpstreamStore(settings.upstreams, settings.upstream_key), *stores)
    if settings.data_dir is not None:
        stores = (LocalStore(settings.data_dir, stores), *stores)

    def open_source() -> Source:
        from vllama.models.sources.hf import HuggingFace

        return HuggingFace(settings)

    return Library(stores, open_source, settings)


def choose_variant(repository: Repository, tag: str | None, formats: Sequence[Format]) -> Variant:
    """Choose what to fetch: the first of `formats` that the repository has, by tag if given.

    Raises ModelNotFound (no such tag), NoPlan (none of the formats is there).
    """
    found = {variant.format for variant in repository.variants}
    for format in formats:
        if format is Format.GGUF and format in found:
            variant = _gguf_variant(repository, tag)
            if variant is not None:
                return variant
        elif format in found and tag is None:
            return next(v for v in repository.variants if v.format is format)
    hub_id = repository.hub_id
    if not found:
        raise NoPlan(
            f"cannot serve '{hub_id}': it holds neither GGUF nor safetensors weights",
            hint="look for a quantised repository of the model on the hub",
        )
    labels = [v.label for v in repository.variants if v.format in formats]
    if tag is not None and labels:
        shown = ", ".join(labels[:_NAMES_SHOWN]) + (" …" if len(labels) > _NAMES_SHOWN else "")
        raise ModelNotFound(
            f"hf.co/{hub_id}:{tag}",
            message=f"cannot find ':{tag}' in '{hub_id}'",
            hint=f"take one of: {shown}",
        )
    have, want = " and ".join(sorted(found)), " or ".join(formats) or "another format"
    wants_gguf = Format.GGUF in formats
    raise NoPlan(
        f"cannot serve '{hub_id}' here: it holds {have} only, and {want} is wanted",
        hint=f"try a GGUF repository of the model, such as hf.co/{hub_id}-GGUF"
        if wants_gguf
        else "install an engine that serves it: vllama engines",
    )


def _gguf_variant(repository: Repository, tag: str | None) -> Variant | None:
    variants = [v for v in repository.variants if v.format is Format.GGUF]
    groups = [
        GgufGroup(
            label=None if v.label == "latest" else v.label,
            quant=v.quant,
            paths=tuple(file.path for file in v.files),
        )
        for v in variants
    ]
    chosen = choose_group(groups, tag)
    return variants[groups.index(chosen)] if chosen else None


def _state(bundle: Bundle) -> tuple[object, ...]:
    try:
        times = tuple(path.stat().st_mtime_ns for path in bundle.files)
    except OSError:
        times = ()
    return (bundle.path, bundle.projector, bundle.quant, bundle.size_bytes, times)
