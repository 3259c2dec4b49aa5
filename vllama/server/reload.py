"""Reads the settings again while the server runs: one assignment, then notices of what changed.

With `--watch` it notices changes of the config file, and of the files that it names: their metadata
are polled, by their names. This sees an atomic rename over a file, the swap of a symbolic link on
the way to it (Kubernetes replaces a ConfigMap so) and changes on network drives, which a watch on
the file itself would miss.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from vllama.accounts.keys.ring import KeyRing
from vllama.base import audit, executors, log_context
from vllama.base.errors import ConfigError, VllamaError
from vllama.config import Config, list_upstreams, models_settings, read_node_key
from vllama.config.report import Changes, compare_settings
from vllama.engines.registry import make_search_paths, reconfigure
from vllama.models.library import open_library
from vllama.net.http.listener import Certificate
from vllama.plan.types import Facts
from vllama.routes.catalog import Catalog
from vllama.routes.in_use import InUse, Setup
from vllama.scheduler.hooks import Limits
from vllama.scheduler.scheduler import Scheduler
from vllama.server.engine_hooks import Planner
from vllama.server.preflight import (
    check_engine,
    check_nodes,
    check_upstreams,
    list_unknown_links,
    with_preload,
)
from vllama.server.reporter import Reporter, ServiceNotice
from vllama.targets.monitor import UpstreamMonitor

POLL_S = 0.5

Signature = tuple[object, ...]


class FileWatch:
    """Compares files with what they were when they were read last."""

    def __init__(self, list_files: Callable[[], Iterable[Path]]) -> None:
        """Prepare; `list_files` returns the files of the settings in use."""
        self._list_files = list_files
        self._known = self._latest = self._read()

    async def run(self, changed: Callable[[], object]) -> None:
        """Call `changed` after each change, until canceled."""
        while True:
            await asyncio.sleep(POLL_S)
            if await executors.upkeep.run(self.check):
                changed()

    def check(self) -> bool:
        """Return whether a file has changed, and stayed the same since the check before.

        One that is still being written would be read in part.
        """
        before, self._latest = self._latest, self._read()
        if self._latest == self._known or self._latest != before:
            return False
        self._known = self._latest
        return True

    def _read(self) -> Signature:
        return tuple((str(path), _describe(path)) for path in self._list_files())


def _describe(path: Path) -> Signature | None:
    """Return a fingerprint of a file's state, None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


log = logging.getLogger(__name__)

LOADED_PER_GPU = 3


@dataclass(slots=True, kw_only=True, eq=False)
class Reloader:
    """Swaps the settings in use for those of now, all or none, whenever it is asked to."""

    in_use: InUse
    read: Callable[[], Config]
    keys: KeyRing
    catalog: Catalog
    scheduler: Scheduler
    watch: UpstreamMonitor
    certificate: Certificate | None
    planner: Planner
    reporter: Reporter
    service: ServiceNotice
    on_reload: Callable[[], None] = lambda: None
    """Called when the settings have been read again."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, wanted: asyncio.Event) -> None:
        """Read settings and certificate again whenever `wanted` is set, until canceled."""
        while True:
            await wanted.wait()
            wanted.clear()
            await self.reload()

    async def reload(self) -> None:
        """Read settings and certificate again; why that failed is in the snapshot then."""
        async with self._lock:
            self.service.reloading()
            if self.certificate is not None:
                try:
                    await executors.upkeep.run(self.certificate.reload)
                    log.info("certificate read again, for new connections")
                except ConfigError as error:
                    log.error("the certificate stays as it was: %s", error.sentence())
            try:
                await self._reload()
                await warn_of_links(self.in_use)
            except VllamaError as error:
                log.error("the settings stay as they were: %s", error.sentence())
                self.in_use.now = replace(self.in_use.now, refused=error.sentence())
            except Exception:
                # boundary: nothing in a file may end a running server
                log.exception("the settings stay as they were: unexpected error")
            self.service.ready("settings read again")

    async def _reload(self) -> None:
        """Swap the snapshot in use. Raises VllamaError if the settings cannot be used.

        Running requests and loaded models stay as they are; see `config.report`.
        """
        old, exposed = self.in_use.now, self.in_use.config.exposure
        read = await executors.upkeep.run(self.read)
        self.keys.refresh()
        named_keys = self.keys.stays_required
        found = compare_settings(old.config, read, named_keys=named_keys)
        new = self._derive(found.config)
        # nothing is awaited, nothing fails from here on
        self.in_use.now = new
        self._notify(old)
        for line in read.notes:
            log.warning("%s", line)
        log_changes(found)
        if new.config.exposure != exposed:
            warn_of_exposure(new.config, self.reporter)
        before, after = ({row.key: row.text for row in one.report.settings} for one in (old, new))
        if before != after:
            folder = new.config.data_dir
            await executors.upkeep.run(audit.record, folder, "config change", "", before, after)
        log.info("settings read again: %s", "; ".join(found.taken) or "nothing new")

    def _derive(self, config: Config) -> Setup:
        """Return the snapshot for other settings. Raises VllamaError if it cannot work."""
        old, facts, library = self.in_use.config, self.in_use.facts, self.in_use.library
        engines, upstreams = facts.found, list_upstreams(config)
        if upstreams != list_upstreams(old):
            engines = reconfigure(engines, {"upstreams": upstreams}, make_search_paths(config))
            check_upstreams(config)
        if config.nodes != old.nodes:
            check_nodes(config)
            read_node_key(config)
        facts = replace(facts, found=engines, settings=config)
        check_engine(config, facts)
        settings = models_settings(config)
        if settings != models_settings(old):
            library = open_library(with_preload(settings, config.model))
        return Setup(config=config, facts=facts, library=library)

    def _notify(self, old: Setup) -> None:
        """Notify the parts that have to act on new settings, not only read them."""
        config, library = self.in_use.config, self.in_use.library
        facts, scheduler = self.in_use.facts, self.scheduler
        moved = old.facts is None or facts.found is not old.facts.found
        self.keys.use_plain(config.api_key)
        self.on_reload()
        self.catalog.forget()
        for bundle in [instance.bundle for instance in scheduler.list_instances()]:
            now, before = library.renew(bundle).settings, bundle.settings
            if bundle.upstream is not None and (moved or now.traits != before.traits):
                scheduler.unload(bundle, "the upstreams have changed")
            elif now.draft != before.draft:
                # requests no longer reach it: another draft model is another instance
                scheduler.unload(bundle, "its draft model has changed")
        scheduler.set_limits(make_limits(facts), library.renew)
        if moved:
            self.watch.use(*facts.found.find_servers())
        self.planner.forget()
        log_context.set_level(debug=config.debug)


def log_changes(found: Changes) -> None:
    """Log the settings that take effect later."""
    for line in found.kept:
        log.warning("%s: needs a restart, the old one stays", line)
    for line in found.loaded:
        log.info("%s: holds when a model is loaded the next time", line)


def warn_of_exposure(config: Config, reporter: Reporter) -> None:
    """Warn if others can reach the server, and need no key."""
    if warning := config.exposure:
        reporter.warn(warning)


async def warn_of_links(in_use: InUse) -> None:
    """Warn of fallbacks that cannot answer now."""
    links = list_unknown_links(in_use.config, in_use.library)
    for warning in await executors.upkeep.run(list, links):
        log.warning("%s", warning)


def make_limits(facts: Facts) -> Limits:
    """Return the limits of the scheduler."""
    settings, gpus = facts.settings, len(facts.platform.accelerators)
    return Limits(
        keep_alive_s=settings.keep_alive_s,
        max_loaded=settings.max_loaded_models or LOADED_PER_GPU * max(1, gpus),
        max_queue=settings.max_queue,
        hang_s=settings.hang_timeout_s or math.inf,
    )
