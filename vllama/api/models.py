"""Models for Python programs: what a name means, how it would be served, and the download."""

from __future__ import annotations

import threading
from typing import Any

from vllama import config
from vllama.config import Config
from vllama.config.parse import whole_path
from vllama.models.library import Library, open_library
from vllama.models.names.ref import ModelRef
from vllama.models.remote import make_too_large_error
from vllama.models.types import Bundle, Progress
from vllama.plan.choose import list_loadable_formats
from vllama.plan.form_choice import FitsHere
from vllama.plan.ladder import make_first_plan
from vllama.plan.preview import Resolved, resolve_name
from vllama.plan.quant_fallback import list_forms_here
from vllama.plan.types import Need, Plan
from vllama.server.preflight import gather_facts


def resolve(model: str, **settings: Any) -> Resolved:
    """Return what `model` stands for, without downloading it: on this disk, else on the hub.

    `settings` are those of `vllama serve` by field (`context_length=8192`). Raises InvalidModelRef,
    ModelNotFound, NoPlan, NotEnoughMemory, Offline, SourceError.
    """
    settings_ = config.load(settings, config.environ())
    return resolve_name(_library(settings_), gather_facts(settings_), whole_path(model))


def plan(model: str, **settings: Any) -> Plan:
    """Return how `serve` would run `model`: engine, context, memory, and the reasons.

    Reads the header of a model that is not here from the hub, a few MB at most. Raises what
    `resolve` raises.
    """
    settings_ = config.load(settings, config.environ())
    library, facts = _library(settings_), gather_facts(settings_)
    found = resolve_name(library, facts, whole_path(model))
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
    return make_first_plan(facts, found.bundle, library.remote.look_into(found.resolution), Need())


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
    return _library(settings_).remote.pull(
        whole_path(model),
        formats=list_loadable_formats(facts),
        fits=FitsHere(facts),
        progress=progress,
        cancel=cancel,
    )


def _library(settings: Config) -> Library:
    config.prepare_environment()
    return open_library(config.models_settings(settings))
