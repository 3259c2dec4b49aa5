"""Find all engines: entry points, then adapters, then installations on this machine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from vllama.engines.base import DiscoveredEngines, Engine, Installation, Missing, SearchPaths
from vllama.engines.capabilities import Configurable
from vllama.engines.contract import AdapterError, validate_adapter
from vllama.errors import ConfigError

log = logging.getLogger(__name__)

GROUP = "vllama.engines"
BUILT_IN = "vllama.engines."
"""How the modules of built-in adapters begin."""
FIND_LIMIT_S = 10.0


def load_engines() -> dict[str, Engine]:
    """Load every usable adapter, by name; the others are logged and left out."""
    engines, broken = load_adapters()
    for reason in broken.values():
        log.warning("%s", reason)
    return engines


def load_adapters() -> tuple[dict[str, Engine], dict[str, str]]:
    """Load every adapter of the entry-point group.

    Returns those that can be used, by their own names, and why others cannot, by the names of
    their entry points. A built-in engine never gives way to one of the same name, and of two other
    packages that claim one name the first (in alphabetical order) has it.
    """
    engines: dict[str, Engine] = {}
    broken: dict[str, str] = {}
    owners: dict[str, str] = {}  # every name and alias, and the package that has it
    for point in sorted(entry_points(group=GROUP), key=_load_order):
        package = _describe_package(point)
        try:
            engine = validate_adapter(point.load())
            names = {name.casefold() for name in (engine.name, *engine.aliases)}
            if taken := sorted(names & owners.keys()):
                raise AdapterError(
                    f"the name '{taken[0]}' belongs to {owners[taken[0]]}; choose another one"
                )
        except Exception as error:  # another package's code must not take the other engines down
            reason = str(error) if isinstance(error, AdapterError) else _name_error(error)
            key = point.name if point.name not in broken else f"{point.name} ({package})"
            broken[key] = f"cannot use engine '{point.name}' of {package}: {reason}"
            continue
        engines[engine.name] = engine
        owners |= dict.fromkeys(names, package)
    return engines, broken


def _load_order(point: EntryPoint) -> tuple[bool, str, str]:
    """Sort built-in adapters first."""
    return (not point.value.startswith(BUILT_IN), point.name, _describe_package(point))


def _describe_package(point: EntryPoint) -> str:
    if point.value.startswith(BUILT_IN):
        return "vllama itself"
    return f"package {point.dist.name} {point.dist.version}" if point.dist else point.value


def _name_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def discover_engines(
    engines: Mapping[str, Engine] | None = None,
    options: Mapping[str, object] | None = None,
    search_paths: SearchPaths | None = None,
) -> DiscoveredEngines:
    """Look for all engines at once; `options` are the settings that configure some of them.

    Raises ConfigError if `search_paths` has a path for an engine that does not exist.
    """
    broken: Mapping[str, str] = {}
    if engines is None:
        engines, broken = load_adapters()
        for reason in broken.values():
            log.warning("%s", reason)
    known = {
        name: engine.configured(options or {}) if isinstance(engine, Configurable) else engine
        for name, engine in engines.items()
    }
    where = resolve_engine_paths(search_paths or SearchPaths(), known.values(), broken)
    answers = _locate_all(known, where)
    return DiscoveredEngines(
        engines=known,
        installations={k: v for k, v in answers.items() if isinstance(v, Installation)},
        missing={k: v for k, v in answers.items() if isinstance(v, Missing)},
        broken=broken,
    )


def reconfigure(
    found: DiscoveredEngines, options: Mapping[str, object], search_paths: SearchPaths
) -> DiscoveredEngines:
    """Return the engines with other settings; only those that settings configure are looked for.

    Raises ConfigError.
    """
    engines, installations = dict(found.engines), dict(found.installations)
    missing = dict(found.missing)
    for name, engine in found.engines.items():
        if isinstance(engine, Configurable):
            engines[name] = engine.configured(options)
            installations.pop(name, None)
            missing.pop(name, None)
            answer = locate_engine(engines[name], search_paths)
            if isinstance(answer, Installation):
                installations[name] = answer
            else:
                missing[name] = answer
    return replace(found, engines=engines, installations=installations, missing=missing)


def _locate_all(
    engines: Mapping[str, Engine], search_paths: SearchPaths
) -> dict[str, Installation | Missing]:
    """Ask all adapters in daemon threads: one that hangs is abandoned and counts as missing."""
    answers: dict[str, Installation | Missing] = {}

    def ask(name: str, engine: Engine) -> None:
        answers[name] = locate_engine(engine, search_paths)

    threads = {
        name: threading.Thread(target=ask, args=(name, engine), name=f"find-{name}", daemon=True)
        for name, engine in engines.items()
    }
    deadline_s = time.monotonic() + FIND_LIMIT_S
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, deadline_s - time.monotonic()))
    reason = f"looking for it took more than {FIND_LIMIT_S:g} s"
    hint = "run 'vllama doctor', which looks at the machine"
    return {
        name: answers.get(name) or Missing(engine=name, reason=reason, hint=hint)
        for name in engines
    }


def locate_engine(engine: Engine, search_paths: SearchPaths) -> Installation | Missing:
    """Return where an engine is installed; an adapter that raises counts as missing."""
    try:
        return engine.find(search_paths)
    except Exception as error:  # another package's code must not take the other engines down
        log.debug("looking for %s failed", engine.name, exc_info=True)
        reason = f"looking for it failed ({_name_error(error)})"
        return Missing(engine=engine.name, reason=reason, hint="report it to the adapter's author")


def resolve_engine_paths(
    search_paths: SearchPaths, engines: Iterable[Engine], broken: Mapping[str, str] | None = None
) -> SearchPaths:
    """Return `search_paths` with aliases replaced by the engines' names. Raises ConfigError."""
    known = list(engines)
    paths: dict[str, Path] = {
        find_engine(known, name, broken).name: path for name, path in search_paths.paths.items()
    }
    return replace(search_paths, paths=paths)


def find_engine(
    engines: Iterable[Engine], wanted: str, broken: Mapping[str, str] | None = None
) -> Engine:
    """Return the engine with that name or alias, in upper or lower case.

    Raises ConfigError, with the reason if the adapter is among the `broken` ones.
    """
    known = list(engines)
    folded = wanted.strip().casefold()
    for engine in known:
        if folded in (engine.name.casefold(), *(alias.casefold() for alias in engine.aliases)):
            return engine
    for name, reason in (broken or {}).items():
        if folded == name.casefold():
            raise ConfigError(reason, hint="update or remove that package")
    names = ", ".join(sorted(engine.name for engine in known))
    raise ConfigError(
        f"cannot use engine '{wanted}': no such engine", hint=f"choose one of {names}"
    )
