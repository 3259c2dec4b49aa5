"""The models of this machine as their stores have them: list them, find what a name means.

The settings that the user wrote for models are not applied here: `library` does that.

A library name, or a repository without files of the right kind, is resolved when it is pulled, and
the result is recorded (`PulledNames`), so that the name finds the model again without the hub, and
lists show that name.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.base import private
from vllama.models.aliases import find_hub_alias
from vllama.models.disk import list_model_files, lock_data
from vllama.models.hub_cache import list_repositories
from vllama.models.lookup import rest_on, sign
from vllama.models.names.ref import Kind, ModelRef
from vllama.models.resolve.matching import QUANTIZERS, explain_name_mismatch, rank_publisher
from vllama.models.settings import ModelsSettings
from vllama.models.stores.base import Store
from vllama.models.stores.local import check_base
from vllama.models.types import Bundle, ModelInfo, Skipped

if TYPE_CHECKING:
    from vllama.models.headers.kept import KeptHeaders

_INFOS_KEPT = 4096  # of a few KB each


class StoredModels:
    """All `stores` as one, asked in that order, with the names that models were pulled by.

    Of equal names the first store's model counts, but an upstream's may yield to another.
    """

    def __init__(self, stores: Sequence[Store], settings: ModelsSettings) -> None:
        self.stores = tuple(stores)
        self.names = PulledNames(settings.data_dir)
        self._here = tuple(each for each in self.stores if not each.is_elsewhere)
        self.reaches_elsewhere = len(self._here) < len(self.stores)
        self.settings = settings
        self._infos: OrderedDict[tuple[object, ...], ModelInfo] = OrderedDict()
        self._headers: KeptHeaders | None = None
        self._lock = threading.Lock()

    def list_stored(self) -> Sequence[Bundle]:
        """Return all models."""
        bundles: dict[str, Bundle] = {}
        for store in self.stores:
            for bundle in store.list():
                known = bundles.get(bundle.name.lower())
                if known is None or yields(known):
                    bundles[bundle.name.lower()] = bundle
        for name, shown in self.names.list_shown().items():
            if (pulled := bundles.get(name)) is not None:
                del bundles[name]
                bundles |= {other.lower(): replace(pulled, name=other) for other in shown}
        return tuple(bundles.values())

    def has_models_here(self) -> bool:
        """Return whether any model is on this disk."""
        return any(store.list() for store in self._here)

    def list_skipped(self) -> tuple[Skipped, ...]:
        """Return the models on this disk that are not listed, with the reasons."""
        return tuple(item for store in self.stores for item in store.list_skipped())

    def search(self, name: str) -> Bundle | None:
        """Return the model called `name`, or None. Raises InvalidModelRef."""
        return self.find_link(name) or self.search_ref(ModelRef.parse(name))

    def find_link(self, name: str) -> Bundle | None:
        """Return the model that a link to a server which the user named stands for, else None."""
        return next((found for store in self.stores if (found := store.find_link(name))), None)

    def search_ref(self, ref: ModelRef) -> Bundle | None:
        """Return the model that `ref` means, or None."""
        found = self._search_in(self.stores, ref)
        return self._search_in(self._here, ref) or found if found and yields(found) else found

    def find_yielding(self, name: str) -> Bundle | None:
        """Return the model of that name of a server that does not answer now, else None."""
        found = find_in([each for each in self.stores if each.is_elsewhere], ModelRef.parse(name))
        return found if found is not None and yields(found) else None

    def _search_in(self, stores: Sequence[Store], ref: ModelRef) -> Bundle | None:
        """Return the model that `stores` have by this name, or by another one of the same model."""
        bundle = find_in(stores, ref)
        if bundle is not None:
            return bundle if ref.kind is not Kind.PATH else self._name_apart(bundle)
        noted = self.names.find_bundle_name(ref)
        if noted is not None and (bundle := find_in(stores, ModelRef.parse(noted[1]))) is not None:
            return replace(bundle, name=noted[0])
        alias = self.find_alias(ref)
        if alias is not None and (bundle := find_in(stores, alias)) is not None:
            return bundle
        forms = self.list_forms(alias or ref, known=alias is not None)
        return next((b for form in forms if (b := find_in(stores, form)) is not None), None)

    def _name_apart(self, bundle: Bundle) -> Bundle:
        """Return a model that was found by its path; it has that as its name if another has its."""
        named = find_in(self.stores, ModelRef.parse(bundle.name))
        if named is None or named.key == bundle.key:
            return bundle
        return replace(bundle, name=str(bundle.path))

    def find_alias(self, ref: ModelRef) -> ModelRef | None:
        """Return the hub model that a library name, or a user's alias, stands for; or None."""
        return find_hub_alias(ref, self.settings.aliases)

    def list_forms(self, ref: ModelRef, *, known: bool) -> Sequence[ModelRef]:
        """Return the repositories in the hub's cache with forms of a hub model, best first.

        `known`: the name comes from the table of aliases, so known quantizers are trusted as well;
        otherwise only the repository's own organization is.
        """
        base = ref.hub_id
        if base is None or ref.revision is not None:  # others have no such revision
            return []
        last = len(QUANTIZERS) if known else 0
        repos = list_repositories(self.settings.hf_cache_dir)
        ids = [hub_id for hub_id in repos if hub_id.lower() != base.lower()]
        fit = [i for i in ids if rank_publisher(base, i) <= last]
        fit = [i for i in fit if explain_name_mismatch(base, i) is None]
        fit.sort(key=lambda hub_id: rank_publisher(base, hub_id))
        return [ModelRef.of_hub(hub_id, ref.tag) for hub_id in fit]

    def read(self, bundle: Bundle) -> ModelInfo:
        """Return a model's metadata from its files, without its template. Raises BadModelFile.

        The headers are read once for each state of the files, and the latest are remembered.
        """
        if bundle.info is not None:
            return bundle.info
        signatures = tuple(map(sign, bundle.files))
        if not signatures or None in signatures:
            check_base(bundle)
        # as texts, which are compared sooner than paths
        key = (str(bundle.path), str(bundle.projector), bundle.quant, *signatures)
        with self._lock:
            if key in self._infos:
                self._infos.move_to_end(key)
                return self._infos[key]
        # not at the top: starting a server and listing models read no model
        from vllama.models.headers.info import read_info
        from vllama.models.headers.kept import KeptHeaders

        if self._headers is None:
            self._headers = KeptHeaders(self.settings.data_dir)
        info = read_info(bundle, self._headers.read)
        with self._lock:
            self._infos[key] = info
            while len(self._infos) > _INFOS_KEPT:
                self._infos.popitem(last=False)
        return info


def read_state(bundle: Bundle) -> tuple[object, ...]:
    """Return the state of the files that an engine loads; the time of an uploaded one is none."""
    own = () if bundle.lora else bundle.adapters
    with suppress(OSError):  # of a folder that is being removed
        files = list_model_files(bundle.path, *own, bundle.draft)
        return tuple(
            (file.name, *(sign(file) or ())[: 2 if file.name.startswith("sha256-") else 3])
            for file in files
            if not file.name.startswith(".") and file.suffix != ".md"
        )
    return ()


def find_in(stores: Sequence[Store], ref: ModelRef) -> Bundle | None:
    """Return the model with the name `ref` in the first store that has it."""
    for store in stores:
        with suppress(OSError):  # of a drive that fails: the others are not on it
            if (bundle := store.find(ref)) is not None:
                return bundle
    return None


def yields(bundle: Bundle) -> bool:
    """Tell whether a model gives way to one of the same name on this disk."""
    return bundle.upstream is not None and bundle.upstream.yields


FILE_NAME = "pulled.json"


class PulledNames:
    """The names noted in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def note(self, ref: ModelRef, bundle: Bundle) -> Bundle:
        """Record the bundle of a name; return the bundle under the name to show."""
        shown = ref.display if ref.kind is Kind.LIBRARY else bundle.name
        with self._locked():
            self._write({**self._read(), ref.canonical: (shown, bundle.name)})
        return replace(bundle, name=shown)

    def find_bundle_name(self, ref: ModelRef) -> tuple[str, str] | None:
        """Return (name to show, name of the bundle) recorded for `ref`, or None."""
        known = self._read()
        return next((known[name] for name in ref.candidates if name in known), None)

    def list_shown(self) -> dict[str, list[str]]:
        """Return the names to show of each bundle that has names, by its own in lower case."""
        names: dict[str, list[str]] = {}
        for shown, bundle in self._read().values():
            own = names.setdefault(bundle.lower(), [])
            if shown.lower() not in map(str.lower, own):
                own.append(shown)
        return names

    def list_asked(self, shown: str) -> list[str]:
        """Return the names by which what is shown as `shown` was pulled, in full, lower case."""
        return self.index_asked().get(shown.lower(), [])

    def index_asked(self) -> dict[str, list[str]]:
        """Return the names by which models were pulled, by the shown ones in lower case."""
        asked: dict[str, list[str]] = {}
        for name, (shown, _) in self._read().items():
            asked.setdefault(shown.lower(), []).append(name)
        return asked

    def forget(self, shown: str, bundle: str) -> bool:
        """Forget a shown name of a bundle; tell whether others of it are left."""
        with self._locked():
            known = self._read()
            kept = {
                name: pair
                for name, pair in known.items()
                if (pair[0].lower(), pair[1].lower()) != (shown.lower(), bundle.lower())
            }
            if len(kept) != len(known):
                self._write(kept)
        return any(pair[1].lower() == bundle.lower() for pair in kept.values())

    def _locked(self) -> AbstractContextManager[None]:
        """Hold the lock of the file against other pulls and removals. Raises VllamaError."""
        lock = self._path.with_name(f".{self._path.name}.lock")
        return lock_data(lock, f"record the name in '{self._path}'")

    def _read(self) -> Mapping[str, tuple[str, str]]:
        rest_on(self._path)
        try:
            entries = json.loads(self._path.read_bytes())
            pairs = [(name, pair) for name, pair in entries.items() if isinstance(pair, list)]
            return {name: (str(pair[0]), str(pair[1])) for name, pair in pairs if len(pair) == 2}
        except (OSError, ValueError, AttributeError):
            return {}

    def _write(self, entries: Mapping[str, tuple[str, str]]) -> None:
        private.replace(self._path, json.dumps(entries, indent=1), sync=True)
