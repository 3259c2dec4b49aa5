"""Find all engines: entry points → adapters → installations on this machine."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from vllama.engines.base import (
    Configurable,
    Engine,
    Found,
    Installation,
    Missing,
    Overhead,
    Places,
)
from vllama.errors import ConfigError

log = logging.getLogger(__name__)

GROUP = "vllama.engines"
WANTED = "an object with the attributes of vllama.engines.base.Engine (docs/engines.md)"
# what `Engine` demands
KINDS: Mapping[str, type | tuple[type, ...]] = {
    "name": str, "aliases": (tuple, list), "title": str, "formats": (tuple, list),
    "modes": (tuple, list), "overhead": Overhead, "failures": (tuple, list),
}  # fmt: skip
METHODS = ("find", "preference", "supports", "launch", "traits")
FIND_LIMIT_S = 10.0


def load_engines() -> dict[str, Engine]:
    """Load every adapter of the entry-point group, by name; a broken one is left out."""
    engines, broken = load_adapters()
    for name, reason in broken.items():
        log.warning("the adapter of engine '%s' is left out: %s", name, reason)
    return engines


def load_adapters() -> tuple[dict[str, Engine], dict[str, str]]:
    """Load every adapter of the entry-point group: those that work, and why others do not."""
    engines: dict[str, Engine] = {}
    broken: dict[str, str] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda item: item.name):
        try:
            engine = point.load()
            wrong = faults(engine)
        except Exception as error:  # somebody else's code: it must not take the others down
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            broken[point.name] = f"{package_of(point)}: {wrong}"
        else:
            engines[engine.name] = cast("Engine", engine)
    return engines, broken


def package_of(point: EntryPoint) -> str:
    """Return the package that an entry point is from, and its version."""
    return f"package {point.dist.name} {point.dist.version}" if point.dist else point.value


def faults(adapter: object) -> str:
    """Return what keeps an object from being an engine's adapter, empty if nothing does."""
    if isinstance(adapter, type):
        return f"{adapter.__name__} is a class, and the entry point has to name {WANTED}"
    names = (*KINDS, *METHODS)
    if lacking := [name for name in names if not hasattr(adapter, name)]:
        return f"it lacks {', '.join(lacking)}; the entry point has to name {WANTED}"
    wrong = [name for name, kind in KINDS.items() if not isinstance(getattr(adapter, name), kind)]
    wrong += [name for name in METHODS if not callable(getattr(adapter, name))]
    return f"these are not of the type that they should be: {', '.join(wrong)}" if wrong else ""


def discover(
    engines: Mapping[str, Engine] | None = None,
    options: Mapping[str, object] | None = None,
    places: Places | None = None,
) -> Found:
    """Look for all engines in parallel; `options` are settings that some of them want.

    Raises ConfigError if `places` has the path of an engine that there is not.
    """
    known = load_engines() if engines is None else dict(engines)
    for name, engine in known.items():
        if isinstance(engine, Configurable):
            known[name] = engine.configured(options or {})
    where = by_name(places or Places(), known.values())
    answers = _ask_all(known, where)
    return Found(
        engines=known,
        installations={k: v for k, v in answers.items() if isinstance(v, Installation)},
        missing={k: v for k, v in answers.items() if isinstance(v, Missing)},
    )


def _ask_all(engines: Mapping[str, Engine], places: Places) -> dict[str, Installation | Missing]:
    """Ask all at once, in daemon threads: one that hangs is left behind and counts as missing."""
    answers: dict[str, Installation | Missing] = {}

    def ask(name: str, engine: Engine) -> None:
        answers[name] = find(engine, places)

    threads = {
        name: threading.Thread(target=ask, args=(name, engine), name=f"find-{name}", daemon=True)
        for name, engine in engines.items()
    }
    deadline_s = time.monotonic() + FIND_LIMIT_S
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, deadline_s - time.monotonic()))
    late = f"looking for it took more than {FIND_LIMIT_S:g} s"
    hint = "run 'vllama doctor', which looks at the machine"
    return {
        name: answers.get(name) or Missing(engine=name, reason=late, hint=hint) for name in engines
    }


def find(engine: Engine, places: Places) -> Installation | Missing:
    """Let an engine look for itself; one that knows by itself where to look takes no places."""
    try:
        if inspect.signature(engine.find).parameters:
            return engine.find(places)
        return cast("Callable[[], Installation | Missing]", engine.find)()
    except Exception as error:  # somebody else's code: it must not take the others down
        log.debug("looking for %s failed", engine.name, exc_info=True)
        reason = f"looking for it failed ({type(error).__name__}: {error})"
        return Missing(engine=engine.name, reason=reason, hint="report it to the adapter's author")


def by_name(places: Places, engines: Iterable[Engine]) -> Places:
    """Return `places` with its paths under the engines' own names. Raises ConfigError."""
    known = list(engines)
    paths: dict[str, Path] = {
        engine_named(known, name).name: path for name, path in places.paths.items()
    }
    return replace(places, paths=paths)


def engine_named(engines: Iterable[Engine], wanted: str) -> Engine:
    """Return the engine with that name or alias, in any case. Raises ConfigError."""
    known = list(engines)
    folded = wanted.strip().casefold()
    for engine in known:
        if folded in (engine.name.casefold(), *(alias.casefold() for alias in engine.aliases)):
            return engine
    names = ", ".join(sorted(engine.name for engine in known))
    raise ConfigError(
        f"cannot use engine '{wanted}': no such engine", hint=f"choose one of {names}"
    )
