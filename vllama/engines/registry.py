"""Find all engines: entry points, then adapters, then installations on this machine."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import wait
from dataclasses import replace
from importlib.metadata import EntryPoint, distributions
from pathlib import Path

from vllama.base.errors import ConfigError
from vllama.base.spelling import suggest
from vllama.base.threads import begin
from vllama.config import Config
from vllama.engines.base import DiscoveredEngines, Engine, Installation, Missing, SearchPaths
from vllama.engines.contract import AdapterError, describe_error, guard, validate_adapter
from vllama.machine.types import Platform
from vllama.models.types import ModelInfo

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
    order = sorted(
        (not point.value.startswith(BUILT_IN), point.name, package, point)
        for point, package in list_points().items()
    )
    for _, _, package, point in order:
        try:
            engine = validate_adapter(point.load())
            if not point.value.startswith(BUILT_IN):
                engine = guard(engine)
            names = {name.casefold() for name in (engine.name, *engine.aliases)}
            if taken := sorted(names & owners.keys()):
                raise AdapterError(
                    f"the name '{taken[0]}' belongs to {owners[taken[0]]}; choose another one"
                )
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too: other engines go on without this one
            reason = str(error) if isinstance(error, AdapterError) else describe_error(error)
            key = point.name if point.name not in broken else f"{point.name} ({package})"
            broken[key] = f"cannot use engine '{point.name}' of {package}: {reason}"
            continue
        engines[engine.name] = engine
        owners |= dict.fromkeys(names, package)
    return engines, broken


def list_points() -> dict[EntryPoint, str]:
    """Return the entry points of all packages whose files can be read, and their packages."""
    found: dict[EntryPoint, str] = {}
    for package in distributions():
        try:
            points = package.entry_points.select(group=GROUP)
            found = {point: _describe_package(point) for point in points} | found
        except Exception as error:
            where = package.locate_file("")
            log.warning("cannot read a package in '%s': %s", where, describe_error(error))
    return found


def _describe_package(point: EntryPoint) -> str:
    if point.value.startswith(BUILT_IN):
        return "vllama itself"
    return f"package {point.dist.name} {point.dist.version}" if point.dist else point.value


def make_search_paths(config: Config) -> SearchPaths:
    """Return where the settings say that engines may be."""
    return SearchPaths(
        environments=config.data_dir / "environments", paths=dict(config.engine_paths)
    )


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
    known = {name: configure(engine, options or {}) for name, engine in engines.items()}
    where = resolve_engine_paths(search_paths or SearchPaths(), known.values(), broken)
    return _take(DiscoveredEngines(engines=known, broken=broken), _locate_all(known, where))


def _take(
    found: DiscoveredEngines, answers: Mapping[str, Installation | Missing]
) -> DiscoveredEngines:
    """Return the engines with these answers of their adapters."""
    return replace(
        found,
        installations={k: v for k, v in answers.items() if isinstance(v, Installation)},
        missing={k: v for k, v in answers.items() if isinstance(v, Missing)},
    )


def suppose_installed(found: DiscoveredEngines, platform: Platform) -> DiscoveredEngines:
    """Return the engines as if each that can be installed on `platform` were."""
    installed = dict(found.installations)
    for name, engine in found.engines.items():
        if wheels := engine.install.wheels_for(platform):
            installed[name] = Installation(
                engine=name,
                version=wheels[0].oldest_version,
                executable=Path(name),
                offloads=bool(engine.install.needs.see(platform)[0].accelerators),
            )
    missing = {name: why for name, why in found.missing.items() if name not in installed}
    return replace(found, installations=installed, missing=missing)


def reconfigure(
    found: DiscoveredEngines, options: Mapping[str, object], search_paths: SearchPaths
) -> DiscoveredEngines:
    """Return the engines with other settings; only those that settings configure are looked for.

    Raises ConfigError.
    """
    engines = {name: configure(engine, options) for name, engine in found.engines.items()}
    changed = {name: new for name, new in engines.items() if new is not found.engines[name]}
    answers = {name: locate_engine(engine, search_paths) for name, engine in changed.items()}
    known: dict[str, Installation | Missing] = {**found.installations, **found.missing}
    return _take(replace(found, engines=engines), known | answers)


def _locate_all(
    engines: Mapping[str, Engine], search_paths: SearchPaths
) -> dict[str, Installation | Missing]:
    """Ask all adapters at once: one that hangs is abandoned and counts as missing."""
    asked = {name: begin(locate_engine, engine, search_paths) for name, engine in engines.items()}
    wait(asked.values(), FIND_LIMIT_S)
    reason = f"detection took more than {FIND_LIMIT_S:g} s"
    hint = "run 'vllama doctor' to check the machine"
    return {
        name: one.result() if one.done() else Missing(engine=name, reason=reason, hint=hint)
        for name, one in asked.items()
    }


def configure(engine: Engine, options: Mapping[str, object]) -> Engine:
    """Return the engine with other settings, as it is if its adapter raises. Raises ConfigError."""
    try:
        return engine.configure(options)
    except ConfigError:
        raise
    except Exception as error:
        log.warning("cannot configure engine '%s': %s", engine.name, describe_error(error))
        return engine


def ask_preference(
    engine: Engine, platform: Platform, here: Installation | None = None
) -> tuple[int, str]:
    """Return how well an engine suits the GPUs that it can use, and why; 0 if its adapter raises.

    The reason names the GPUs that it cannot use.
    """
    try:
        seen, unused = engine.install.needs.see(platform, here.version if here else "")
        score, reason = engine.preference(seen)
        return int(score), "; ".join(filter(None, (str(reason), unused)))
    except Exception as error:
        return 0, f"its adapter failed ({describe_error(error)})"


def ask_refusal(engine: Engine, platform: Platform, info: ModelInfo) -> str | None:
    """Return why an engine cannot serve a model; an adapter that raises cannot."""
    try:
        return engine.refuses(platform, info)
    except Exception as error:
        return f"its adapter failed ({describe_error(error)})"


def locate_engine(engine: Engine, search_paths: SearchPaths) -> Installation | Missing:
    """Return where an engine is installed; an adapter that raises counts as missing."""
    try:
        return engine.find(search_paths)
    except BaseException as error:  # as above; this is not the thread that Ctrl-C interrupts
        log.debug("cannot detect %s", engine.name, exc_info=True)
        reason = f"detection failed ({describe_error(error)})"
        return Missing(engine=engine.name, reason=reason, hint="report it to the adapter's author")


def resolve_engine_paths(
    search_paths: SearchPaths, engines: Iterable[Engine], broken: Mapping[str, str] | None = None
) -> SearchPaths:
    """Return `search_paths` with aliases replaced by the engines' names. Raises ConfigError."""
    known, given = list(engines), search_paths.paths.items()
    paths = {find_engine(known, name, broken).name: path for name, path in given}
    return replace(search_paths, paths=paths)


def find_engines(
    engines: Iterable[Engine], wanted: str, broken: Mapping[str, str] | None = None
) -> list[Engine]:
    """Return the engines of a family, such as `llama.cpp`, or what `find_engine` returns."""
    known, folded = list(engines), wanted.strip().casefold()
    family = [engine for engine in known if folded in engine.family_names]
    return family or [find_engine(known, wanted, broken)]


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
    names = sorted(engine.name for engine in known)
    aliases = [alias for engine in known for alias in engine.aliases]
    raise ConfigError(
        f"cannot use engine '{wanted}': no such engine",
        hint=suggest(wanted.strip(), [*names, *aliases], f"choose one of {', '.join(names)}"),
    )
