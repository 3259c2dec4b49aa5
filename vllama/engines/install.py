"""Install an engine into an environment of its own, as its recipe says, and remove it again."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vllama.base.errors import DiskFull, EngineMissing, EnvironmentFailed
from vllama.base.units import format_bytes_decimal
from vllama.engines.base import Engine, Installation, SearchPaths
from vllama.engines.recipe import Wheels, format_install_command, get_recipe
from vllama.engines.registry import ask_preference, locate_engine
from vllama.machine.environments.installer import choose_python
from vllama.machine.environments.layout import (
    Step,
    find_existing,
    list_arguments,
    list_requirements,
)
from vllama.machine.environments.make import OnLine, install_steps, remove, try_command
from vllama.machine.probe import make_install_hint
from vllama.machine.types import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What an installation would do, to show it to the user first.

    `reason` says why the engine suits this machine, empty if it does not. `python` is the
    interpreter of the new environment, or a version for uv to fetch. `extra_args` are the user's
    own, for the installer. `faster` says how to get a build that is faster on this machine, empty
    if this one is. `done`: it is installed already, from the same requirements.
    """

    engine: Engine
    folder: Path
    wheels: Wheels
    python: Path | str
    reason: str = ""
    extra_args: tuple[str, ...] = ()
    faster: str = ""
    done: bool = False

    @property
    def steps(self) -> list[Step]:
        """The calls of the installer, each with the user's arguments."""
        return [
            replace(step, extra_args=(*step.extra_args, *self.extra_args))
            for step in self.wheels.steps
        ]


def make_offer(
    engine: Engine,
    platform: Platform,
    environments: Path,
    *,
    compiled: bool = False,
    extra_args: Sequence[str] = (),
    search: str | None = None,
) -> Offer:
    """Choose what to install on this machine, without fetching anything.

    `compiled`: only what is built from source for this machine. `search` is PATH for compilers and
    Pythons (None: PATH itself). Raises EngineMissing, with how to get the engine by hand, if
    nothing can be installed here.
    """
    recipe = get_recipe(engine)
    by_hand = recipe.by_hand or None
    suiting = recipe.wheels_for(platform)
    if compiled and suiting and not any(one.compiled for one in suiting):
        raise EngineMissing(
            f"cannot compile {engine.title}: its packages come ready-made",
            hint=f"leave out --compile: {format_install_command(engine.name)}",
        )
    if compiled:
        suiting = tuple(one for one in suiting if one.compiled)
    if not suiting:
        what = "nothing for this machine" if recipe.wheels else "no package of it is known"
        raise EngineMissing(f"cannot install {engine.title}: {what}", hint=by_hand)
    buildable = [one for one in suiting if not find_missing_programs(one, search)]
    if not buildable:
        programs = find_missing_programs(suiting[-1], search)
        raise EngineMissing(
            f"cannot install {engine.title}: {' and '.join(programs)}, which it needs, "
            f"{'is' if len(programs) == 1 else 'are'} not on PATH",
            hint=make_install_hint(programs, search),
        )
    wheels = buildable[0]
    python = choose_python(*wheels.python, search=search)
    suits, reason = ask_preference(engine, platform)
    chosen = Offer(
        engine=engine,
        reason=reason if suits else "",
        folder=environments / engine.name,
        wheels=wheels,
        python=python,
        extra_args=tuple(extra_args),
        faster=suggest_compilation(engine, wheels, buildable, platform),
    )
    wanted = list_requirements(chosen.steps), list_arguments(chosen.steps)
    return replace(chosen, done=find_existing(chosen.folder, *wanted) is not None)


def make_offers(
    engine: Engine, platform: Platform, environments: Path, *, search: str | None = None
) -> list[Offer]:
    """Return the ways to install an engine on this machine, the fastest engine first.

    Where a build from source gains speed it comes before the one that is ready-made, although it
    takes minutes: it is made once, and serves every request. Raises EngineMissing as `make_offer`.
    """
    found = make_offer(engine, platform, environments, search=search)
    if not found.faster:
        return [found]
    built = make_offer(engine, platform, environments, compiled=True, search=search)
    return [built, found]


def suggest_compilation(
    engine: Engine, wheels: Wheels, buildable: Sequence[Wheels], platform: Platform
) -> str:
    """Return the sentence that offers a build for this processor, empty if it gains nothing."""
    unused = [name.upper() for name in wheels.unused_features if name in platform.cpu_features]
    if not unused or not any(one.compiled for one in buildable):
        return ""
    command = f"{format_install_command(engine.name)} --compile"
    return f"this build does not use {', '.join(unused)}, which this processor has: {command}"


def find_missing_programs(wheels: Wheels, search: str | None = None) -> list[str]:
    """Return the programs that are needed and not on PATH, by their first names."""
    return [
        names.split("|")[0]
        for names in wheels.programs
        if not any(shutil.which(name, path=search) for name in names.split("|"))
    ]


async def install(
    chosen: Offer, *, environ: Mapping[str, str] | None = None, on_line: OnLine | None = None
) -> Installation:
    """Carry out an installation and return the engine as it is found from now on.

    An interrupted installation continues where it stopped. Raises DiskFull before anything is
    fetched, EnvironmentFailed with the installer's cause, or if the new engine does not start.
    """
    check_disk_space(chosen)
    await install_steps(
        chosen.folder,
        chosen.steps,
        python=chosen.python,
        environ=environ,
        extra_env=dict(chosen.wheels.env),
        trial=chosen.wheels.check,
        on_line=on_line,
    )
    found = locate_engine(chosen.engine, SearchPaths(environments=chosen.folder.parent))
    if isinstance(found, Installation):
        return found
    raise EnvironmentFailed(
        f"cannot use {chosen.engine.title} after its installation: {found.reason}",
        hint=f"remove it (vllama engines remove {chosen.engine.name}) and install it again",
    )


async def check_installation(chosen: Offer, *, environ: Mapping[str, str] | None = None) -> str:
    """Return why an installed engine does not start, empty if it does."""
    try:
        await try_command(chosen.folder, chosen.wheels.check, environ=environ)
    except EnvironmentFailed as error:
        return error.message
    return ""


def check_disk_space(chosen: Offer) -> None:
    """Raise DiskFull if it does not fit on the disk; what is installed already counts as space."""
    home = next(path for path in (chosen.folder, *chosen.folder.parents) if path.exists())
    there = sum(path.lstat().st_size for path in chosen.folder.rglob("*") if not path.is_dir())
    free, wanted = shutil.disk_usage(home).free, chosen.wheels.disk_bytes - there
    if free < wanted:
        raise DiskFull(
            f"cannot install {chosen.engine.title}: it takes {format_bytes_decimal(wanted)}, and "
            f"{format_bytes_decimal(free)} are free at '{home}'",
            hint="free some space, or set data_dir to another disk",
        )


def uninstall(engine: Engine, environments: Path) -> bool:
    """Remove an engine's environment and tell whether it had one. Raises EnvironmentFailed."""
    folder = environments / engine.name
    if not folder.exists():
        return False
    remove(folder)
    return True
