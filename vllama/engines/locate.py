"""Where an engine is: one order of places for all adapters, nothing imported, no process started.

1. The path that the user gave (setting `engine_paths`): an environment's folder, the program, or a
   Python. If it is given, nothing else is looked at.
2. The engine's own environment below the data folder, if it is complete.
3. The environment that runs us.
4. PATH.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from vllama.engines.base import Installation, Missing, Origin, Places
from vllama.environments.place import existing, python_of, site_packages

NOT_INSTALLED = "it is not installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """An engine that was found.

    `python` is of its environment, `executable` its program: either may be None, not both.
    `version` is empty where only the program itself could tell. `sites` are its packages' folders.
    """

    engine: str
    origin: Origin
    version: str = ""
    python: Path | None = None
    executable: Path | None = None
    sites: tuple[Path, ...] = ()

    def has(self, distribution: str) -> bool:
        """Tell whether a package, by its name on the index, is installed beside it."""
        return bool(_version(self.sites, (distribution,)))

    def module_folder(self, module: str) -> Path | None:
        """Return where a package lies in its environment; nothing is imported."""
        if self.origin is Origin.HERE:
            spec = importlib.util.find_spec(module)
        else:
            spec = PathFinder.find_spec(module, [str(site) for site in self.sites])
        return Path(spec.origin).parent if spec and spec.origin else None

    def installation(self, *, offloads: bool, version: str = "") -> Installation:
        """Return it as what the planner works with; `version` where only the adapter knows it."""
        return Installation(
            engine=self.engine,
            version=version or self.version or "unknown",
            python=self.python,
            executable=self.executable,
            offloads=offloads,
            origin=self.origin,
        )


def find_package(
    places: Places,
    engine: str,
    *,
    distributions: Sequence[str] = (),
    executable: str | None = None,
    needs: Sequence[str] = (),
    hint: str = "",
) -> Located | Missing:
    """Look for `engine` in all places, in order, and return the first that is whole.

    It is there where one of `distributions` (names as pip writes them) is installed, or else its
    program `executable` lies. `needs` are modules that have to be there too: an optional part of a
    package, such as its server. `hint` says how to get it, where its recipe does not.
    """
    hint = hint or "see how to get it: vllama engines"
    reason = NOT_INSTALLED
    for candidate in _candidates(places, engine, distributions, executable):
        lacking = [name for name in needs if candidate.module_folder(name) is None]
        if not lacking:
            return candidate
        reason = f"it is installed without {', '.join(lacking)} ({candidate.origin})"
    given = places.paths.get(engine)
    if given is not None:
        wanted = " or ".join([*distributions, *([executable] if executable else [])])
        reason = f"there is no {wanted} at '{given}', which the settings name"
        hint = f"correct engine_paths, or take {engine} out of it"
    return Missing(engine=engine, reason=reason, hint=hint)


def _candidates(
    places: Places, engine: str, distributions: Sequence[str], executable: str | None
) -> Iterator[Located]:
    """Yield where it is, whole or not."""

    def look(folder: Path, origin: Origin) -> Iterator[Located]:
        yield from _in_environment(folder, engine, distributions, executable, origin)

    if (given := places.paths.get(engine)) is not None:
        yield from _given(given, engine, distributions, executable)
        return
    if places.environments and existing(own := places.environments / engine):
        yield from look(own, Origin.OWN)
    yield from _here(engine, distributions, executable)
    if executable and (found := shutil.which(executable, path=places.search)):
        yield from _program(Path(found), engine, distributions, Origin.PATH)


def _here(engine: str, distributions: Sequence[str], executable: str | None) -> Iterator[Located]:
    sites = tuple(Path(item) for item in sys.path if item)
    version = _version(sites, distributions)
    if version:
        program = Path(sys.executable).parent / executable if executable else None
        yield Located(
            engine=engine,
            origin=Origin.HERE,
            version=version,
            python=Path(sys.executable),
            executable=program if program and program.exists() else None,
            sites=sites,
        )


def _given(
    path: Path, engine: str, distributions: Sequence[str], executable: str | None
) -> Iterator[Located]:
    """Take an environment's folder, a folder with the program, a Python or the program itself."""
    if path.is_dir():
        yield from _in_environment(path, engine, distributions, executable, Origin.GIVEN)
    elif path.is_file() and path.name.startswith("python"):
        home = path.absolute().parent.parent  # not resolved: that would leave the environment
        yield from _in_environment(home, engine, distributions, executable, Origin.GIVEN)
    elif path.is_file():
        yield from _program(path, engine, distributions, Origin.GIVEN)


def _in_environment(
    folder: Path,
    engine: str,
    distributions: Sequence[str],
    executable: str | None,
    origin: Origin,
) -> Iterator[Located]:
    sites = tuple(site_packages(folder))
    version = _version(sites, distributions)
    python = python_of(folder)
    places = (folder / "bin", folder / "Scripts", folder)
    search = ":".join(map(str, places)) if sys.platform != "win32" else ";".join(map(str, places))
    program = shutil.which(executable, path=search) if executable else None
    if version or program:
        yield Located(
            engine=engine,
            origin=origin,
            version=version,
            python=python if version and python.exists() else None,
            executable=Path(program) if program else None,
            sites=sites,
        )


def _program(
    program: Path, engine: str, distributions: Sequence[str], origin: Origin
) -> Iterator[Located]:
    """Yield a program; a script of an environment (pipx, uv) has its version there."""
    home = program.resolve().parent.parent
    inside = (home / "pyvenv.cfg").exists()
    sites = tuple(site_packages(home)) if inside else ()
    yield Located(
        engine=engine,
        origin=origin,
        version=_version(sites, distributions),
        python=python_of(home) if inside else None,
        executable=program,
        sites=sites,
    )


def _version(sites: Sequence[Path], distributions: Sequence[str]) -> str:
    """Return the version of the first of `distributions` that is installed; empty if none is."""
    path = [str(site) for site in sites]
    for name in distributions if path else ():
        for found in importlib.metadata.distributions(name=name, path=path):
            return found.version
    return ""
