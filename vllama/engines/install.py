"""Install an engine into an environment of its own, as its recipe says, and take it away again."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vllama.engines.base import Engine, Installation, Places
from vllama.engines.recipe import Wheels, recipe_of
from vllama.engines.registry import find
from vllama.environments.installer import choose_python, find_uv
from vllama.environments.make import OnLine, check, make_in_steps, remove
from vllama.environments.place import Step, arguments, existing, requirements
from vllama.errors import DiskFull, EngineMissing, EnvironmentFailed
from vllama.hardware.programs import how_to_install
from vllama.hardware.types import Platform
from vllama.units import format_bytes_decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What an installation would do, to be shown before it does it.

    `reason` says what the engine is good for on this machine, empty if it is no choice there.
    `python` is the interpreter to make the environment of, or a version for uv to get. `extra_args`
    are the user's own, for the installer. `done`: it is there already, from the same requirements.
    """

    engine: Engine
    folder: Path
    wheels: Wheels
    python: Path | str
    installer: str
    reason: str = ""
    extra_args: tuple[str, ...] = ()
    done: bool = False

    @property
    def steps(self) -> list[Step]:
        """The calls of the installer, the user's arguments in each."""
        return [
            replace(step, extra_args=(*step.extra_args, *self.extra_args))
            for step in self.wheels.steps
        ]


def offer(
    engine: Engine,
    platform: Platform,
    environments: Path,
    *,
    extra_args: Sequence[str] = (),
    search: str | None = None,
) -> Offer:
    """Choose what to install for this machine; fetches nothing.

    `search` is PATH for compilers and Pythons (None: PATH itself). Raises EngineMissing if there is
    nothing to install here, with how to get the engine by hand.
    """
    recipe = recipe_of(engine)
    by_hand = recipe.by_hand or None
    suiting = recipe.wheels_for(platform)
    if not suiting:
        what = "nothing for this machine" if recipe.wheels else "no package of it is known"
        raise EngineMissing(f"cannot install {engine.title}: {what}", hint=by_hand)
    buildable = [one for one in suiting if not lacking(one, search)]
    if not buildable:
        programs = lacking(suiting[-1], search)
        raise EngineMissing(
            f"cannot install {engine.title}: {' and '.join(programs)}, which it needs, "
            f"{'is' if len(programs) == 1 else 'are'} not on PATH",
            hint=how_to_install(programs, search),
        )
    wheels, uv = buildable[0], find_uv(search)
    python = choose_python(*wheels.python, uv=uv, search=search)
    if python is None:
        low, high = (".".join(map(str, version)) for version in wheels.python)
        raise EngineMissing(
            f"cannot install {engine.title}: it wants Python {low} to {high}, and none is here",
            hint="install uv, which gets one by itself, or such a Python",
        )
    suits, reason = engine.preference(platform)
    chosen = Offer(
        engine=engine,
        reason=reason if suits else "",
        folder=environments / engine.name,
        wheels=wheels,
        python=python,
        installer="uv" if uv else "pip",
        extra_args=tuple(extra_args),
    )
    wanted = requirements(chosen.steps), arguments(chosen.steps)
    return replace(chosen, done=existing(chosen.folder, *wanted) is not None)


def lacking(wheels: Wheels, search: str | None = None) -> list[str]:
    """Return the programs that have to be there and are not, by their first names."""
    return [
        names.split("|")[0]
        for names in wheels.programs
        if not any(shutil.which(name, path=search) for name in names.split("|"))
    ]


async def install(
    chosen: Offer, *, environ: Mapping[str, str] | None = None, on_line: OnLine | None = None
) -> Installation:
    """Carry it out, and return the engine as it is found from now on.

    A broken-off installation goes on where it was. Raises DiskFull before anything is fetched,
    EnvironmentFailed with the installer's cause, or if the new engine does not start.
    """
    refuse_without_space(chosen)
    await make_in_steps(
        chosen.folder,
        chosen.steps,
        python=chosen.python,
        environ=environ,
        extra_env=dict(chosen.wheels.env),
        trial=chosen.wheels.check,
        on_line=on_line,
    )
    found = find(chosen.engine, Places(environments=chosen.folder.parent))
    if isinstance(found, Installation):
        return found
    raise EnvironmentFailed(
        f"cannot use {chosen.engine.title} after its installation: {found.reason}",
        hint=f"remove it (vllama engines remove {chosen.engine.name}) and install it again",
    )


async def trouble(chosen: Offer, *, environ: Mapping[str, str] | None = None) -> str:
    """Try an engine that is installed; return why it does not start, empty if it does."""
    try:
        await check(chosen.folder, chosen.wheels.check, environ=environ)
    except EnvironmentFailed as error:
        return error.message
    return ""


def refuse_without_space(chosen: Offer) -> None:
    """Raise DiskFull if the disk has no room for it; what is there already is counted in."""
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
    """Remove the environment of an engine; False if it had none. Raises EnvironmentFailed."""
    folder = environments / engine.name
    if not folder.exists():
        return False
    remove(folder)
    return True
