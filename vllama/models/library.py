"""The library of this machine's models: list, find, read, remove; `remote` pulls more.

It knows stores and a source through their protocols. Blocking: call `remove`, the methods of
`remote` and the first `info` of a model in a thread. All methods may be called from many threads.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any

from vllama.base.errors import BadModelFile, BadRequest, InvalidModelRef, ModelNotFound, VllamaError
from vllama.base.spelling import find_similar
from vllama.base.units import rfc3339_local
from vllama.models.aliases import check_aliases
from vllama.models.disk import list_model_files
from vllama.models.lookup import HINT_AGE_S, Entry, Watch, rest_on
from vllama.models.names.ref import CloudDisabled, Kind, ModelRef, add_default_tag, is_cloud
from vllama.models.remote import Remote, make_missing_path_error
from vllama.models.settings import NOTHING, ModelSettings, ModelsSettings, is_pattern
from vllama.models.stored import StoredModels, read_state
from vllama.models.stores.base import RemovingStore, Store
from vllama.models.stores.folder import FolderStore, LMStudioStore
from vllama.models.stores.hf_cache import HfCacheStore
from vllama.models.stores.local import LocalStore
from vllama.models.stores.ollama import OllamaStore
from vllama.models.stores.packaged import PackagedStore
from vllama.models.types import Bundle, Format, ModelInfo

log = logging.getLogger(__name__)

OK = "ok"


class Library(StoredModels):
    """The models on this machine, with the settings of their tables `[models."NAME"]`.

    `remote` is what can be pulled.
    """

    def __init__(self, stores: Sequence[Store], settings: ModelsSettings) -> None:
        super().__init__(stores, settings)
        self.tables = settings.tables
        self.remote = Remote(self, self.list)
        self.has_fallbacks = bool(settings.tables.list_links())
        self._drafts_lock = threading.Lock()
        self._drafts: dict[tuple[str, str], str] = {}  # OK, or why a draft model is left out

    def list(self) -> list[Bundle]:
        """Return all models with their settings, the newest first."""
        found = [self._configure(bundle) for bundle in self.list_stored()]
        found += self._list_others(found)
        return sorted(found, key=lambda b: (-b.modified_s, b.name))

    @property
    def local(self) -> LocalStore:
        """The store of the models created here."""
        return next(store for store in self.stores if isinstance(store, LocalStore))

    def find(self, name: str, *, may_pull: bool = True) -> Entry:
        """Return the model called `name`, with its settings; raise InvalidModelRef, ModelNotFound.

        `may_pull`: the hint of the error may be to pull it, which is no help to remove or copy one.
        """
        with Watch() as watch:
            bundle = self._find(name)
            if bundle is None:
                with Watch(max_age_s=HINT_AGE_S):
                    raise self._make_missing_error(name, may_pull=may_pull)
            return self.make_entry(self._configure(bundle, name), watch)

    def make_entry(self, bundle: Bundle, watch: Watch) -> Entry:
        """Return a found model as it is now; `watch` is that of the running look-up."""
        rest_on(*bundle.files)
        bundle = replace(bundle, state=read_state(bundle))
        return Entry(bundle, cache(partial(self.info, bundle)), watch=watch)

    def _find(self, name: str) -> Bundle | None:
        """Return the model called `name`, as its store has it.

        One that is not here is the first model of its fallback chain that is.
        """
        name = self.tables.find_alias(name) or name
        if (bundle := self.search(name)) is not None:
            return bundle
        for link in self.tables.find([name]).fallback or ():
            with contextlib.suppress(InvalidModelRef):
                if (bundle := self.search(link)) is not None:
                    return replace(bundle, name=add_default_tag(name))
        return None

    def _make_missing_error(self, name: str, *, may_pull: bool) -> VllamaError:
        """Make the error for a model that is not here, with what to do about it."""
        ref = ModelRef.parse(name)
        if is_cloud(ref):
            return CloudDisabled()
        if ref.kind is Kind.PATH:
            return make_missing_path_error(name, ref)
        shown = name.strip() if ref.kind is Kind.HUB else ref.display
        return ModelNotFound(shown, hint=self._advise(ref, may_pull=may_pull))

    def _advise(self, ref: ModelRef, *, may_pull: bool) -> str:
        """Return the hint for a model that is not here: a similar name, a pull, or the list."""
        for item in self.list_skipped():
            if ref.means(item.name):
                return f"'{item.path}' contains it but is ignored: {item.reason}"
        keys = _list_spellings(tuple(bundle.name for bundle in self.list()))
        wanted = f"{ref.plain}:{ref.tag}" if ref.has_tag else ref.plain
        near = list(dict.fromkeys(keys[key] for key in find_similar(wanted, keys)))
        if not may_pull:
            other = "list installed models: vllama list"
        elif ref.kind is Kind.HUB or self.find_alias(ref):
            other = f"run: vllama pull {ref.text}"
        else:
            other = "pull it by its full name: vllama pull hf.co/org/repo"
        return f"did you mean {' or '.join(near)}? Otherwise {other}" if near else other

    def _configure(self, bundle: Bundle, *names: str) -> Bundle:
        """Return a model with its settings; `names` are others that it is known by."""
        settings = self._find_settings(bundle, *names)
        if settings is NOTHING or not settings.given:
            return bundle
        stored = bundle
        if settings.defaults:
            bundle = replace(bundle, parameters={**bundle.parameters, **settings.defaults})
        if settings.system is not None:
            bundle = replace(bundle, system=settings.system)
        if settings.draft:
            bundle = self._add_draft(bundle, settings.draft)
        return replace(bundle, settings=settings, stored=stored)

    def _find_settings(self, bundle: Bundle, *names: str) -> ModelSettings:
        if not self.tables.tables:
            return NOTHING
        return self.tables.find([bundle.name, *names, *self.names.list_asked(bundle.name)])

    def _list_others(self, bundles: Sequence[Bundle]) -> Sequence[Bundle]:
        """Return the models with names that only the tables have, next to `bundles`."""
        here = {bundle.name.lower() for bundle in bundles}
        names = [alias for _, each in self.tables.tables for alias in each.aliases or ()]
        names += [
            name for name, each in self.tables.tables if each.fallback and not is_pattern(name)
        ]
        found = []
        for name in dict.fromkeys(map(add_default_tag, names)):
            if name.lower() in here:
                continue
            try:
                bundle = self._find(name)
            except InvalidModelRef:
                continue
            if bundle is not None:
                found.append(replace(bundle, name=name))
        return [self._configure(bundle) for bundle in found]

    def _add_draft(self, bundle: Bundle, name: str) -> Bundle:
        """Return a model with the draft model `name`, or as it is if that cannot draft for it."""
        from vllama.models.companions import check_draft  # only where one is wanted

        key = (bundle.key, name)
        try:
            if (draft := self.search(name)) is None:
                raise ModelNotFound(name)
            with self._drafts_lock:
                if self._drafts.get(key) != OK:
                    check_draft(draft.path, bundle, self.read(bundle))
                self._drafts[key] = OK
        except VllamaError as error:
            if self._drafts.get(key) != error.message:
                log.warning("%s: ignoring its draft model: %s", bundle.name, error.sentence())
            self._drafts[key] = error.message
            return bundle
        files = (*bundle.files, *list_model_files(draft.path))
        return replace(bundle, draft=draft.path, files=files)

    def find_settings(self, name: str) -> ModelSettings:
        """Return the user's settings for a name, whether there is such a model or not."""
        return self.tables.find([self.tables.find_alias(name) or name])

    def renew(self, bundle: Bundle) -> Bundle:
        """Return a loaded model with its present settings."""
        return replace(bundle, settings=self._find_settings(bundle))

    def info(self, bundle: Bundle) -> ModelInfo:
        """Return a model's metadata, with the capabilities of its template. Raises BadModelFile."""
        # not at the top: starting a server and listing models read no model
        from vllama.models.headers.info import apply_template

        return apply_template(self.read(bundle), bundle)

    def plan_info(self, bundle: Bundle) -> ModelInfo:
        """Return a model's metadata for a load: with the adapters that share its engine."""
        from vllama.models.headers.lora import read_rank

        info = self.info(bundle)
        if bundle.format is not Format.SAFETENSORS:
            return info
        others = (one for one in self.local.list() if one.key == bundle.key)
        ranks = {}
        for lora in {one.lora for one in (bundle, *others) if one.lora}:
            with contextlib.suppress(BadModelFile):  # the error appears when it is requested
                ranks[lora] = read_rank(lora)
        return replace(info, lora_count=len(ranks), lora_rank=max(ranks.values(), default=0))

    def remove(self, name: str, *, force: bool = False) -> int:
        """Delete a model that vllama or another user of the hub's cache fetched; return the bytes.

        `force`: also one that another tool put into a store that vllama writes to. Raises
        ModelNotFound, and BadRequest for models that belong to another program.
        """
        bundle, store = self._removable(name, force=force)
        noted = self.names.find_bundle_name(ModelRef.parse(name))
        if noted is None or (bundle.store, bundle.name) != (HfCacheStore.name, noted[0]):
            return store.remove(bundle)
        if self.names.forget(*noted):  # as a tag of Ollama's: the files stay for the others
            return 0
        return store.remove(replace(bundle, name=noted[1]))

    def _removable(self, name: str, *, force: bool) -> tuple[Bundle, RemovingStore]:
        if (model := self.tables.find_alias(name)) is not None:
            raise BadRequest(
                f"cannot remove '{name}': it is an alias of '{model}' in the config file",
                hint="remove the alias from that file",
            )
        bundle = self.search(name)
        if bundle is None:
            raise self._make_missing_error(name, may_pull=False)
        store = next(s for s in self.stores if s.name == bundle.store)
        kept = store.keeps(bundle)
        if isinstance(store, RemovingStore) and (force or kept is None):
            return bundle, store
        reason, hint = kept or ("its store is read-only", None)
        raise BadRequest(f"cannot remove '{bundle.name}': {reason}", hint=hint)


@lru_cache(maxsize=1)
def _list_spellings(names: Sequence[str]) -> Mapping[str, str]:
    """Return each name by its forms, in lower case.

    Also without the tag and the organization: any of them may be misspelled.
    """
    keys: dict[str, str] = {}
    for name in names:
        here = ModelRef.parse(name)
        for key in (f"{here.plain}:{here.tag}", here.plain, here.model):
            keys.setdefault(key.lower(), name)
    return keys


def describe_models(library: Library) -> dict[str, Any]:
    """Return all models, the newest first, and those that are left out."""
    asked = library.names.index_asked()
    found = sorted(library.list(), key=lambda bundle: -bundle.modified_s)
    skipped = [
        {"name": one.name, "store": one.store, "path": str(one.path), "reason": one.reason}
        for one in library.list_skipped()
    ]
    return {
        "models": [_describe(library, one, asked.get(one.name.lower(), [])) for one in found],
        "skipped": skipped,
    }


def _describe(library: Library, bundle: Bundle, asked: Sequence[str]) -> dict[str, Any]:
    quant = bundle.quant
    if not quant:
        with contextlib.suppress(VllamaError):  # it is listed all the same
            quant = library.info(bundle).quant
    return {
        "name": bundle.name,
        "model": bundle.name,
        "digest": bundle.digest,
        "size": bundle.size_bytes,
        "modified_at": rfc3339_local(bundle.modified_s),
        "format": str(bundle.format),
        "quantization_level": quant,
        "details": {"format": str(bundle.format), "quantization_level": quant},
        "store": bundle.store,
        "path": str(bundle.path),
        "files": [str(path) for path in bundle.files],
        "hub_id": bundle.hub_id,
        "revision": bundle.revision,
        "asked_as": asked,
        "base": bundle.base,
    }


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

        upstreams = UpstreamStore(settings.upstreams, settings.tables)
        stores = (upstreams, *stores)
    return Library((LocalStore(settings.data_dir, stores), *stores), settings)
