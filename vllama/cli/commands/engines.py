"""`vllama engines`: list, install, remove and check engines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from vllama.base import audit
from vllama.base.errors import EngineMissing
from vllama.base.units import format_bytes_decimal
from vllama.cli.context import load_settings
from vllama.cli.options import AsJson, argument, complete_engine, option, yes_option
from vllama.cli.output import (
    require_agreement,
    say,
    say_aside,
    say_prose,
    show_json,
    show_table,
    show_warning,
)
from vllama.config import Config
from vllama.engines.base import Engine, Installation
from vllama.engines.registry import ask_preference, load_adapters, locate_engine, make_search_paths
from vllama.machine.types import Platform

if TYPE_CHECKING:
    from vllama.plan.engine_report import EngineRow

EXAMPLES = """\
\b
Examples:
  vllama engines
  vllama engines install llama-cpp-python
  vllama engines install llama-server --yes
  vllama engines install llama-server --version latest
  vllama engines install llama-server --compile
  vllama engines install llama-cpp-python -- --no-binary llama-cpp-python
  vllama engines remove llama-server
  vllama engines remove llama-server --version b11434
  vllama engines doctor
  vllama engines check my_package.adapter:ENGINE

Arguments after -- go to uv, the installer. The setting engine_paths lists engines
installed elsewhere.
"""

COLUMNS = ("NAME", "VERSION", "WHERE", "FORMATS", "ON THIS MACHINE", "TO INSTALL")
OPTIONAL_COLUMNS = ("FORMATS", "WHERE", "TO INSTALL", "VERSION")


Names: TypeAlias = Annotated[list[str], argument("ENGINES", "Engine names.", complete_engine)]


def list_engines(as_json: AsJson = False) -> None:
    """List engines: installed, suitable and available ones."""
    show_list(load_settings(), as_json=as_json)


def install(
    context: typer.Context,
    names: Names,
    yes: Annotated[bool, yes_option()] = False,
    upgrade: Annotated[bool, option("--upgrade", "Install newer versions.")] = False,
    compiled: Annotated[
        bool, option("--compile", "Build it from source for this machine's processor.")
    ] = False,
    version: Annotated[
        str | None, option("--version TAG", "Upstream release (b11434) or package version.")
    ] = None,
    plugins: Annotated[
        list[str] | None, option("--with PLUGIN", "Additional package for the engine.")
    ] = None,
) -> None:
    """Install engines; an interrupted installation resumes."""
    settings = load_settings()
    for name in names:
        install_one(
            settings,
            name,
            yes=yes,
            upgrade=upgrade,
            compiled=compiled,
            release=version,
            plugins=plugins or (),
            extra_args=context.obj or (),
        )


def remove_engines(
    names: Names,
    yes: Annotated[bool, yes_option()] = False,
    version: Annotated[str | None, option("--version TAG", "Remove only this version.")] = None,
) -> None:
    """Remove engines installed by vllama."""
    settings = load_settings()
    for name in names:
        remove_one(settings, name, yes=yes, release=version)


def examine_engines(as_json: AsJson = False) -> int:
    """Find problems that keep engines from running."""
    from vllama.cli.commands.doctor import examine

    return examine(load_settings(), engines_only=True, as_json=as_json)


def check(
    targets: Annotated[list[str], argument("ADAPTERS", "Adapters, as MODULE:OBJECT.")],
) -> int:
    """Check custom engine adapters."""
    return max(map(check_adapter, targets))


ACTIONS = {
    "list": list_engines, "install": install, "remove": remove_engines, "doctor": examine_engines,
    "check": check,
}  # fmt: skip


def show_list(settings: Config, *, as_json: bool) -> None:
    """Print all engines: which are installed, which suit, and how to get the others."""
    from vllama.plan.engine_report import report_engines
    from vllama.server.preflight import gather_facts

    told = report_engines(gather_facts(settings))
    if as_json:
        show_json({"platform": told.platform, "engines": told.engines})
        return
    show_table(COLUMNS, [table_cells(one) for one in told.engines], OPTIONAL_COLUMNS)
    say()
    say_prose(f"This machine: {told.platform}")
    say("To install one: vllama engines install NAME")
    if told.chosen:
        say_prose(f"Default for this machine: {told.chosen}")
        return
    say_prose(f"Default for this machine: none ({told.error})")
    if told.hint:
        say_prose(f"Hint: {told.hint}")


def table_cells(one: EngineRow) -> tuple[str, ...]:
    """Return the cells of one engine's row."""
    get = ""
    if not one.installed:
        if one.download_bytes is not None:
            size = format_bytes_decimal(one.download_bytes)
            get = f"vllama engines install {one.name} ({size})"
        else:
            get = one.hint or ""
    return (
        one.name,
        one.version or "-",
        one.where or "-",
        ", ".join(one.formats),
        f"suits: {one.reason}" if one.suits else one.reason,
        get,
    )


def install_one(
    settings: Config,
    name: str,
    *,
    yes: bool,
    upgrade: bool,
    compiled: bool,
    release: str | None,
    plugins: Sequence[str],
    extra_args: Sequence[str],
) -> None:
    """Install one engine, after saying what will be downloaded. Raises VllamaError.

    One that is already installed is started as a test, and reinstalled if that fails.
    """
    import asyncio

    from vllama.cli.engine_install import (
        describe_offer,
        install_first,
        measure_shown,
        read_releases_url,
    )
    from vllama.engines.install import check_installation, make_offers
    from vllama.machine.environments.layout import choose, find_chosen, find_existing
    from vllama.machine.environments.make import remove

    engine, platform, environments = find_engine(settings, name)
    find = partial(
        make_offers,
        engine,
        platform,
        environments,
        compiled=compiled,
        release=release,
        releases_url=read_releases_url(),
        plugins=plugins,
    )
    offers = find(extra_args=extra_args)
    if upgrade and offers[0].wheels.archive is None:
        offers = find(extra_args=("--upgrade", *extra_args))
    here = [] if upgrade else [each for each in offers if each.done]
    chosen = (*here, *offers)[0]
    problem = asyncio.run(check_installation(chosen)) if chosen.done else ""
    in_use = find_chosen(environments, engine.name)
    if chosen.done and not problem and chosen.folder != in_use:
        choose(chosen.folder)
        names = ({"in use": each.name} for each in (in_use, chosen.folder))
        audit.record(settings.data_dir, "engines use", engine.name, *names)
        say_prose(f"now using {engine.title} in {chosen.folder}")
        return
    if chosen.done and not problem:
        newer = "--upgrade" if chosen.wheels.archive is None else "--version latest"
        say_prose(f"{engine.title} is installed in {chosen.folder}; to update it: {newer}")
        return
    if problem:
        show_warning(problem)
    (shown,) = measure_shown([chosen])
    for line in describe_offer(shown):
        say_aside(line)
    require_agreement("Install it?", yes=yes)
    if problem:  # the installer counts a damaged package as installed
        remove(chosen.folder)
    is_first = find_existing(in_use) is None
    installation = install_first([shown, *offers[offers.index(chosen) + 1 :]], yes=yes)
    audit.record(settings.data_dir, "engines install", f"{engine.name} {installation.version}")
    say_prose(f"{engine.title} {installation.version} is installed in {chosen.folder}")
    if is_first:
        choose(chosen.folder)
    elif chosen.folder != in_use:
        both = f"{in_use.name},{chosen.folder.name}"
        say_prose(
            f"The one in {in_use} stays in use. Compare: vllama verify MODEL --engines {both}. "
            "To switch, run the same command again."
        )
    if not ask_preference(engine, platform)[0]:
        say_aside(f"to use it: vllama serve --engine {engine.name}")


def check_adapter(target: str) -> int:
    """Check the adapter MODULE:OBJECT and return 1 if it has a fault. Raises ConfigError."""
    from vllama.engines.testing import check_engine, load_object

    findings = check_engine(load_object(target))
    say(f"{target}: {len(findings)} problems" if findings else f"{target}: no problems")
    for finding in findings:
        say(f"  {finding}")
    return 1 if findings else 0


def remove_one(settings: Config, name: str, *, yes: bool, release: str | None) -> None:
    """Remove an engine's environment, or one `release` of it, if the user agrees.

    Raises VllamaError, Exit.
    """
    from vllama.engines.install import uninstall, uninstall_release

    engine, _, environments = find_engine(settings, name)
    folder = environments / engine.name
    what = f"{engine.title} {release}" if release else engine.title
    if folder.exists():
        require_agreement(f"Remove {what} from {folder}?", yes=yes)
    if release:
        used = uninstall_release(engine, environments, release)
        audit.record(settings.data_dir, "engines remove", f"{engine.name} {release}")
        say(f"removed {what}" + (f"; now using {used}" if used else ""))
        return
    if uninstall(engine, environments):
        audit.record(settings.data_dir, "engines remove", engine.name)
        say(f"removed {engine.title}")
        return

    found = locate_engine(engine, make_search_paths(settings))
    if isinstance(found, Installation):
        raise EngineMissing(
            f"cannot remove {engine.title}: vllama did not install it; it comes "
            f"from {found.origin}",
            hint=f"remove it yourself: {found.executable or found.python}",
        )
    raise EngineMissing(f"cannot remove {engine.title}: it is not installed")


def find_engine(settings: Config, name: str) -> tuple[Engine, Platform, Path]:
    """Return an engine by its name, this machine, and where environments are."""
    from vllama.engines.registry import find_engine
    from vllama.machine.detect import detect

    engines, broken = load_adapters()
    engine = find_engine(engines.values(), name, broken)
    return engine, detect(), settings.data_dir / "environments"
