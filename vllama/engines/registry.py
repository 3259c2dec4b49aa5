"""Find all engines: entry points → adapters → installations on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from typing import cast

from vllama.engines.base import Configurable, Engine, Found, Installation, Missing
from vllama.errors import ConfigError

GROUP = "vllama.engines"
FIND_LIMIT_S = 10.0


def load_engines() -> dict[str, Engine]:
    """Load every adapter of the entry-point group, by name; a broken one is left out."""
    engines: dict[str, Engine] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda item: item.name):
        engine = cast("Engine", point.load())
        engines[engine.name] = engine
    return engines


def discover(
    engines: Mapping[str, Engine] | None = None, options: Mapping[str, object] | None = None
) -> Found:
    """Look for all engines in parallel; `options` are settings that some of them want."""
    known = load_engines() if engines is None else dict(engines)
    for name, engine in known.items():
        if isinstance(engine, Configurable):
            known[name] = engine.configured(options or {})
    installations: dict[str, Installation] = {}
    missing: dict[str, Missing] = {}
    with ThreadPoolExecutor(max_workers=max(1, len(known))) as pool:
        futures = {name: pool.submit(engine.find) for name, engine in known.items()}
        for name, future in futures.items():
            found = future.result(timeout=FIND_LIMIT_S)
            if isinstance(found, Installation):
                installations[name] = found
            else:
                missing[name] = found
    return Found(engines=known, installations=installations, missing=missing)


def engine_named(engines: Iterable[Engine], wanted: str) -> Engine:
    """Return the engine with that name or alias, in any case. Raises ConfigError."""
    known = list(engines)
    folded = wanted.strip().casefold()
    for engine in known:
        if folded in (engine.name.casefold(), *(alias.casefold() for alias in engine.aliases)):
            return engine
    names = ", ".join(sorted((*engine.aliases, engine.name)[0] for engine in known))
    raise ConfigError(
        f"cannot use engine '{wanted}': no such engine", hint=f"choose one of {names}"
    )
