"""Models elsewhere: on the hub, and in registries that speak Ollama's protocol.

Decides what a name stands for there, reads its metadata, and fetches it. Blocking.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.errors import ModelNotFound
from vllama.models.aliases import find_hub_alias, list_families, list_tags
from vllama.models.ollama.layout import OllamaModels, RegistryTarget
from vllama.models.ref import DEFAULT_TAG, Kind, ModelRef
from vllama.models.settings import ModelsSettings
from vllama.models.stores.hf_cache import HfCacheStore
from vllama.models.stores.ollama import OllamaStore
from vllama.models.types import Bundle, Format, ModelInfo, Progress
from vllama.spelling import find_similar

if TYPE_CHECKING:
    from vllama.models.resolve.memory_fit import Fits
    from vllama.models.resolve.search import Resolution
    from vllama.models.sources.base import Hub


class Remote:
    """The source that `open_source` makes, and the registries that names may mention.

    Modules that only a pull needs (the HTTP client, the hub's library) are imported by the pull.
    """

    def __init__(
        self,
        open_source: Callable[[], Hub],
        settings: ModelsSettings,
        free_space: Callable[[Path], int],
    ) -> None:
        self._open_source, self._settings, self._free_space = open_source, settings, free_space

    def look_up(
        self,
        ref: ModelRef,
        formats: Sequence[Format],
        fits: Fits | None = None,
        known: Callable[[Resolution], ModelInfo | None] = lambda found: None,
    ) -> Resolution:
        """Decide what a pull from the hub would fetch, and why; nothing is fetched.

        With `fits` memory chooses among the forms (`resolve.memory_fit`); `known` returns
        metadata that need not be read there. Raises as a pull does; ModelNotFound for names that
        the hub has no part in.
        """
        from vllama.models.resolve.memory_fit import choose_fitting
        from vllama.models.resolve.search import iterate_resolutions

        alias = find_hub_alias(ref, self._settings.aliases)
        hub = alias or ref
        if hub.kind is not Kind.HUB:
            raise make_no_repository_error(ref)
        search = iterate_resolutions(self._open_source(), hub, formats, named=alias is None)
        if fits is None:
            return next(search)

        def read(found: Resolution) -> ModelInfo:
            return known(found) or self.look_into(found)

        def family() -> Sequence[tuple[str, float]]:
            from vllama.models.aliases import list_family_sizes

            return list_family_sizes(ref)

        return choose_fitting(search, fits, read, family, named=hub.has_tag)

    def look_into(self, found: Resolution) -> ModelInfo:
        """Read the metadata of what a pull would fetch, from the hub: a few MB at most.

        Raises BadModelFile, AuthRequired, Offline, SourceError.
        """
        from vllama.models.resolve.remote_header import read_remote_info

        source = self._open_source()
        return read_remote_info(source, found.repository, found.variant, self._settings)

    def fetch(self, found: Resolution, progress: Progress, cancel: threading.Event) -> Bundle:
        """Download what was decided into the hub's cache. Raises what a pull raises."""
        from vllama.models.download.fetch import Fetcher

        repository, variant = found.repository, found.variant
        fetcher = Fetcher(self._open_source(), self._settings, free_space=self._free_space)
        fetcher.fetch(repository, variant, progress, cancel)
        wanted = ModelRef.of_hub(repository.hub_id, variant.label, repository.branch)
        for bundle in HfCacheStore(self._settings.hf_cache_dir).in_repository(repository.hub_id):
            if wanted.means(bundle.name) and bundle.format is variant.format:
                return bundle
        raise make_removed_error(wanted.display)

    def fetch_from(
        self,
        where: RegistryTarget,
        formats: Sequence[Format],
        progress: Progress,
        cancel: threading.Event,
    ) -> Bundle:
        """Pull from a registry of Ollama's kind, into Ollama's store."""
        from vllama.models.ollama.pull import pull_model

        models = OllamaModels(self._settings.ollama_dirs[0])
        name = pull_model(
            where,
            models,
            self._settings,
            formats=formats,
            progress=progress,
            cancel=cancel,
            free_space=self._free_space,
        )
        bundle = OllamaStore([models.folder]).find(ModelRef.parse(name.display))
        if bundle is None:
            raise make_removed_error(name.display)
        return bundle


def make_removed_error(name: str) -> ModelNotFound:
    """Make the error for a model that another process removed while it came."""
    return ModelNotFound(name, hint="it was removed while it was pulled: pull again")


def make_no_repository_error(ref: ModelRef) -> ModelNotFound:
    """Make the error for a name that stands for nothing on the hub."""
    message = f"cannot find '{ref.display}': no repository on the hub is known for it"
    elsewhere = (
        "name a repository: vllama pull hf.co/org/repo[:QUANT], or take it from Ollama's registry: "
        f"vllama pull ollama://{ref.display}"
    )
    if tags := list_tags(ref.model):
        known = ", ".join(f"{ref.model}:{tag}" for tag in tags if tag != DEFAULT_TAG)
        return ModelNotFound(
            ref.display, message=message, hint=f"take one of: {known}; or {elsewhere}"
        )
    near = find_similar(ref.model, list_families())
    meant = f"did you mean {' or '.join(near)}? Otherwise " if near else ""
    return ModelNotFound(ref.display, message=message, hint=f"{meant}{elsewhere}")
