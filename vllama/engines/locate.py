"""Search for installed engines. Imports nothing and starts no process.

All adapters look in the same order:

1. The path that the user gave (setting `engine_paths`): the folder of an environment, the program,
or a Python. Where one is given, nothing else is searched. 2. The engine's own environment below the
data folder, if it is complete. 3. The environment that runs vllama. 4. PATH.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from vllama.engines.base import Installation, Missing, Origin, SearchPaths
from vllama.engines.devices import Device
from vllama.machine.environments.layout import (
    find_chosen,
    find_existing,
    get_python,
    list_site_packages,
)

NOT_INSTALLED = "it is not installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageLocation:
    """An engine that was found.

    `python` belongs to its environment and `executable` is its program; at least one is set.
    `version` is empty where only the program itself could tell. `sites` are the folders of its
    environment's packages.
    """

    engine: str
    origin: Origin
    version: str = ""
    python: Path | None = None
    executable: Path | None = None
    sites: tuple[Path, ...] = ()

    def has(self, distribution: str) -> bool:
        """Tell whether another package (by its name on the index) is in its environment."""
        return bool(_read_version(self.sites, (distribution,)))

    def module_folder(self, module: str) -> Path | None:
        """Return the folder of a package in its environment, without importing it."""
        if self.origin is Origin.HERE:
            spec = importlib.util.find_spec(module)
        else:
            spec = PathFinder.find_spec(module, [str(site) for site in self.sites])
        return Path(spec.origin).parent if spec and spec.origin else None

    def installation(
        self,
        *,
        offloads: bool = False,
        backend: str = "",
        devices: Sequence[Device] = (),
        version: str = "",
        plugins: Sequence[str] = (),
    ) -> Installation:
        """Return the installation for the planner; `version` where only the adapter can tell it.

        With a `backend` it `offloads`; that of the first of `devices` is its name. `plugins` are
        packages that may be in its environment.
        """
        if devices:  # Metal's is called MTL0
            backend = devices[0].name.rstrip("0123456789").replace("MTL", "Metal")
        return Installation(
            engine=self.engine,
            version=version or self.version or "unknown",
            python=self.python,
            executable=self.executable,
            offloads=offloads or bool(backend),
            backend=backend,
            devices=tuple(devices),
            origin=self.origin,
            plugins=tuple(filter(self.has, plugins)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """An engine to look for: it is where a distribution is installed, or its program lies."""

    engine: str
    distributions: Sequence[str]
    executable: str | None

    def look_in_environment(self, folder: Path, origin: Origin) -> Iterator[PackageLocation]:
        """Yield it if it is in the environment `folder`, or `folder` holds its program."""
        sites = tuple(list_site_packages(folder))
        version = _read_version(sites, self.distributions)
        python = get_python(folder)
        programs = find_existing(folder) or folder / "bin"
        search = os.pathsep.join(map(str, (programs, folder / "bin", folder)))
        program = shutil.which(self.executable, path=search) if self.executable else None
        if version or program:
            yield PackageLocation(
                engine=self.engine,
                origin=origin,
                version=version,
                python=python if version and python.exists() else None,
                executable=Path(program) if program else None,
                sites=sites,
            )

    def look_here(self) -> Iterator[PackageLocation]:
        """Yield it if it is in the environment that runs vllama."""
        sites = tuple(Path(item) for item in sys.path if item)
        version = _read_version(sites, self.distributions)
        if version:
            program = Path(sys.executable).parent / self.executable if self.executable else None
            yield PackageLocation(
                engine=self.engine,
                origin=Origin.HERE,
                version=version,
                python=Path(sys.executable),
                executable=program if program and program.exists() else None,
                sites=sites,
            )

    def take_program(self, program: Path, origin: Origin) -> PackageLocation:
        """Return it for a program; a script of an environment (pipx, uv) has its version there."""
        home = program.resolve().parent.parent
        in_environment = (home / "pyvenv.cfg").exists()
        sites = tuple(list_site_packages(home)) if in_environment else ()
        return PackageLocation(
            engine=self.engine,
            origin=origin,
            version=_read_version(sites, self.distributions),
            python=get_python(home) if in_environment else None,
            executable=program,
            sites=sites,
        )

    def look_at(self, path: Path) -> Iterator[PackageLocation]:
        """Yield it for a path of the user: an environment, a folder, a Python or the program."""
        if path.is_dir():
            yield from self.look_in_environment(path, Origin.GIVEN)
        elif path.is_file() and path.name.startswith("python"):
            home = path.absolute().parent.parent  # resolving links would leave the environment
            yield from self.look_in_environment(home, Origin.GIVEN)
        elif path.is_file():
            yield self.take_program(path, Origin.GIVEN)

    def look_everywhere(self, search_paths: SearchPaths) -> Iterator[PackageLocation]:
        """Yield every place that has it, complete or not, in order."""
        if (given := search_paths.paths.get(self.engine)) is not None:
            yield from self.look_at(given)
            return
        if search_paths.environments and find_existing(
            own := find_chosen(search_paths.environments, self.engine)
        ):
            yield from self.look_in_environment(own, Origin.OWN)
        yield from self.look_here()
        search = search_paths.search
        folders = os.get_exec_path() if search is None else search.split(os.pathsep)
        for folder in folders:
            if self.executable and (program := shutil.which(self.executable, path=folder)):
                yield self.take_program(Path(program), Origin.PATH)


def find_package(
    search_paths: SearchPaths,
    engine: str,
    *,
    distributions: Sequence[str] = (),
    executable: str | None = None,
    needs: Sequence[str] = (),
    accepts: Callable[[Path], object] | None = None,
    hint: str = "",
) -> PackageLocation | Missing:
    """Look for `engine` everywhere, in order, and return the first that is complete.

    It is where one of `distributions` (names on the index) is installed, or else where its program
    `executable` lies. `needs` are modules that have to be there too, such as an optional server.
    `accepts` tells its program from namesakes. `hint` tells how to get it if its recipe does not.
    """
    wanted = _Wanted(engine=engine, distributions=distributions, executable=executable)
    hint = hint or "see how to install it: vllama engines"
    reason = NOT_INSTALLED
    for candidate in wanted.look_everywhere(search_paths):
        if accepts and candidate.executable and not accepts(candidate.executable):
            continue
        absent = [name for name in needs if candidate.module_folder(name) is None]
        if not absent:
            return candidate
        reason = f"it is installed without {', '.join(absent)} ({candidate.origin})"
    given = search_paths.paths.get(engine)
    if given is not None:
        names = " or ".join([*distributions, *([executable] if executable else [])])
        reason = f"no {names} at '{given}', which is set in engine_paths"
        hint = f"correct engine_paths, or remove {engine} from it"
    return Missing(engine=engine, reason=reason, hint=hint)


def _read_version(sites: Sequence[Path], distributions: Sequence[str]) -> str:
    """Return the version of the first of `distributions` that is installed; empty if none is."""
    path = [str(site) for site in sites]
    for name in distributions if path else ():
        for found in importlib.metadata.distributions(name=name, path=path):
            return found.version
    return ""
