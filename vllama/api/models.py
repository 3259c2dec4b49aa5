"""Models for Python programs: what a name means, how it would be served, and the download."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from vllama import config
from vllama.config import Config
from vllama.config.parse import whole_path
from vllama.errors import ModelNotFound
from vllama.models.hub_cache import MAIN, HubRepo
from vllama.models.library import Library, make_too_large_error, open_library
from vllama.models.ref import ModelRef
from vllama.models.resolve.search import Resolution
from vllama.models.types import Bundle, Format, Progress
from vllama.plan.choose import list_loadable_formats
from vllama.plan.fitting import FitsHere
from vllama.plan.ladder import make_first_plan
from vllama.plan.quant_fallback import list_forms_here
from vllama.plan.types import Facts, Need, Plan
from vllama.server.preflight import gather_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a name stands for on this machine.

    `bundle` names the files, on this disk if `is_here`, else where a pull would put them; then
    `resolution` has the repository, what else was considered and why not, and notes such as the
    licence.
    """

    bundle: Bundle
    resolution: Resolution | None = None

    @property
    def is_here(self) -> bool:
        """Whether nothing has to be downloaded."""
        return self.resolution is None


def resolve(model: str, **settings: Any) -> Resolved:
    """Return what `model` stands for, without downloading it: on this disk, else on the hub.

    `settings` are those of `vllama serve` by field (`context_length=8192`). Raises InvalidModelRef,
    ModelNotFound, NoPlan, NotEnoughMemory, Offline, SourceError.
    """
    settings_ = config.load(settings, config.environ())
    return resolve_model(_library(settings_), settings_, gather_facts(settings_), model)


def plan(model: str, **settings: Any) -> Plan:
    """Return how `serve` would run `model`: engine, context, memory, and the reasons.

    Reads the header of a model that is not here from the hub, a few MB at most. Raises what
    `resolve` raises.
    """
    settings_ = config.load(settings, config.environ())
    library, facts = _library(settings_), gather_facts(settings_)
    found = resolve_model(library, settings_, facts, model)
    if found.resolution is None:
        info = library.info(found.bundle)
        return make_first_plan(
            facts, found.bundle, info, Need(), lambda: list_forms_here(library, found.bundle)
        )
    if found.resolution.shortage is not None:
        raise make_too_large_error(
            ModelRef.parse(whole_path(model)),
            found.resolution,
            found.resolution.shortage,
            to_load=True,
        )
    return make_first_plan(facts, found.bundle, library.look_into(found.resolution), Need())


def pull(
    model: str,
    *,
    progress: Progress = lambda event: None,
    cancel: threading.Event | None = None,
    **settings: Any,
) -> Bundle:
    """Download `model`, or go on with a download that was stopped; return what is on the disk.

    `progress` gets a `PullEvent` now and then; setting `cancel` stops it, and what is there is
    kept. Raises what `resolve` raises, and Cancelled, DiskFull.
    """
    settings_ = config.load(settings, config.environ())
    facts = gather_facts(settings_)
    return _library(settings_).pull(
        whole_path(model),
        formats=list_loadable_formats(facts),
        fits=FitsHere(facts),
        progress=progress,
        cancel=cancel,
    )


def resolve_model(library: Library, settings: Config, facts: Facts, model: str) -> Resolved:
    """Resolve a name with what was opened and detected before."""
    name = whole_path(model)
    try:
        return Resolved(bundle=library.find(name))
    except ModelNotFound:
        if not library.is_pullable(name):
            raise
        formats, fits = list_loadable_formats(facts), FitsHere(facts)
        found = library.look_up(name, formats=formats, fits=fits)
    return Resolved(bundle=_bundle_to_come(settings, found), resolution=found)


def _library(settings: Config) -> Library:
    config.prepare_environment()
    return open_library(config.models_settings(settings))


def _bundle_to_come(settings: Config, found: Resolution) -> Bundle:
    """Return the bundle that a pull would make, as if it were on this disk."""
    repository, variant = found.repository, found.variant
    repo = HubRepo(config.models_settings(settings).hf_cache_dir, repository.hub_id)
    folder = repo.snapshot(repository.commit)
    files = tuple(folder / file.path for file in variant.files)
    return Bundle(
        name=ModelRef.of_hub(repository.hub_id, variant.label, repository.branch).display,
        store="hub",
        format=variant.format,
        path=files[0] if variant.format is Format.GGUF else folder,
        files=files,
        size_bytes=variant.size_bytes,
        digest="",
        modified_s=0.0,
        quant=variant.quant,
        hub_id=repository.hub_id,
        revision=None if repository.branch == MAIN else repository.branch,
    )
