"""Checks that run before the server accepts work: hardware, engines, folders, the model."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

from vllama import private
from vllama.config import Config, environ, list_upstreams, places, preferences
from vllama.config.address import SCHEME_PORTS, leads_to
from vllama.engines.registry import discover_engines
from vllama.errors import ConfigError, ModelNotFound, VllamaError
from vllama.hardware.detect import detect
from vllama.hardware.visible import hide_gpus
from vllama.models.library import Library
from vllama.models.model_settings import ModelTables
from vllama.models.not_found import make_no_repository_error
from vllama.models.ref import Kind, ModelRef
from vllama.models.settings import ModelsSettings
from vllama.plan.choose import choose_engine
from vllama.plan.types import Facts
from vllama.server.records import open_draft_records
from vllama.spelling import find_similar


def gather_facts(config: Config) -> Facts:
    """Detect hardware and engines, in parallel."""
    options = {"upstreams": list_upstreams(config)}
    with ThreadPoolExecutor(max_workers=2) as pool:
        platform = pool.submit(detect)
        found = pool.submit(discover_engines, None, options, places(config))
        return Facts(
            platform=hide_gpus(platform.result(), environ()),
            found=found.result(),
            preferences=preferences(config),
            draft_speeds=open_draft_records(config).read(),
        )


def close_folders(config: Config) -> Iterator[str]:
    """Close folders to other users that an older vllama left open; yield what to report."""
    for folder in config.own_folders:
        if private.restrict(folder):
            yield f"'{folder}' could be read by other users of this machine; now it cannot"


def check_model(library: Library, name: str | None) -> None:
    """Raise what is wrong with the model to load, as far as this disk shows it.

    A name that can be downloaded may be missing.
    """
    if not name:
        return
    ref = ModelRef.parse(name)
    try:
        library.info(library.find(name))
    except ModelNotFound:
        if ref.kind is Kind.PATH:
            raise
        if ref.kind is Kind.LIBRARY and library.stored.find_alias(ref) is None:
            raise make_no_repository_error(ref) from None  # what a pull says, too


def with_preload(settings: ModelsSettings, name: str | None) -> ModelsSettings:
    """List a model that was named by its path too, so that clients find it."""
    ref = ModelRef.parse(name) if name else None
    if ref is None or ref.path is None:
        return settings
    return replace(settings, folders=(*settings.folders, ref.path))


def check_upstreams(config: Config) -> None:
    """Raise ConfigError for an upstream, or a link of a fallback, that is this server itself."""
    for upstream in list_upstreams(config):
        parts = urlsplit(upstream.root)
        port = parts.port or SCHEME_PORTS[parts.scheme]
        if port == config.port and leads_to(parts.hostname or "", config.host):
            raise ConfigError(
                f"cannot use '{upstream.root}' as an upstream or in a fallback: it is this server, "
                "and requests would go round in a loop",
                hint="name a model of this server by its name alone",
            )


def list_unknown_links(config: Config, library: Library) -> Iterator[str]:
    """Yield warnings of links in fallbacks that nothing is called by now; may ask upstreams.

    No error: a model may be pulled later, and the other links may do.
    """
    names = [upstream.name for upstream in config.upstreams if upstream.name]
    for link in ModelTables(config.models).list_links():
        prefix = link.partition(":")[0]
        if "://" in link or prefix in names:
            continue
        try:
            library.find(link)
        except VllamaError:
            near = find_similar(prefix, names)
            known = f"did you mean {near[0]}?" if near else f"upstreams: {', '.join(names) or '-'}"
            yield f"fallback '{link}' is neither a model here nor one of a named upstream; {known}"


def check_engine(facts: Facts) -> None:
    """Raise NoPlan if an engine named by the user, or every engine, is missing."""
    choose_engine(facts)
