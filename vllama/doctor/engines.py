"""Engines: which one would serve, whether it uses the GPU, installations that are not whole."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping

from vllama.base.errors import NoPlan
from vllama.doctor.check import Finding, failure, ok, skip, warning
from vllama.engines.base import Installation, Origin, SearchPaths
from vllama.engines.child_env import build_child_env
from vllama.engines.install import find_missing_programs
from vllama.engines.locate import NOT_INSTALLED
from vllama.machine.environments.layout import MARKER, find_existing, get_python
from vllama.machine.probe import run_command
from vllama.plan.choose import choose_engine, is_obtainable, rank_engines, write_advice
from vllama.plan.choose import find_lack as falls_short
from vllama.plan.types import Choice, Facts
from vllama.supervise.probe import find_trouble

START_LIMIT_S = 90.0
UPSTREAM_LIMIT_S = 3.0


def check_choice(facts: Facts) -> Iterator[Finding]:
    """Tell which engine would serve here, and what would serve better."""
    found = facts.found
    try:
        choice = choose_engine(facts)
    except NoPlan as error:
        yield failure(error.message, error.hint)
        return
    engine, installation = found.engines[choice.engine], choice.installation
    program = f" ({installation.executable})" if installation.executable else ""
    where = "" if engine.attaches else f", from {installation.origin}{program}"
    seen, unused = engine.install.needs.see(facts.platform, installation.version)
    yield ok(f"{engine.title} {installation.version}{where}{unused and f'; {unused}'}")
    for better, _, reason in rank_engines(facts):
        if better.name == choice.engine or facts.settings.engine:
            break
        absent = found.missing.get(better.name)
        if absent and is_obtainable(facts, absent) and not falls_short(better, facts, None, None):
            yield warning(
                f"{better.title} would be preferred here ({reason}), but {absent.reason}",
                write_advice(facts, absent),
            )
    if seen.accelerators and not installation.offloads:
        yield warning(
            f"this build of {engine.title} has no GPU support: "
            f"{facts.platform.accelerators[0].name} is not used",
            gpu_build(facts, choice),
        )


def upstreams(facts: Facts) -> Iterator[Finding]:
    """Tell which of the servers that somebody else started can serve."""
    there = [facts.found.engines[name] for name in facts.found.installations]
    asked = False
    for engine in there:
        if not engine.attaches:
            continue
        endpoints, path = engine.attach()
        for endpoint in endpoints:
            asked = True
            if why := asyncio.run(find_trouble(endpoint, path, timeout_s=UPSTREAM_LIMIT_S)):
                yield failure(
                    f"upstream {endpoint.url} is not available: {why}",
                    "start that server, or correct its address in the settings",
                )
            else:
                yield ok(f"upstream {endpoint.url} responds")
    if not asked:
        yield skip("no upstream is set")


def gpu_build(facts: Facts, choice: Choice) -> str:
    """Return how to get a build of the engine that uses the GPU, as far as its recipe knows one."""
    suiting = facts.found.engines[choice.engine].install.wheels_for(facts.platform)
    if not suiting:
        return "install a build of it with GPU support, and set its path in engine_paths"
    install = f"vllama engines install {choice.engine}"
    if suiting[0].archive is not None and choice.installation.python is None:
        return "install the GPU's Vulkan driver (NVIDIA's is in libnvidia-gl)"
    if choice.installation.origin is Origin.OWN:
        install = f"vllama engines remove {choice.engine}; {install}"
    programs = " and ".join(find_missing_programs(suiting[0]))
    return f"add {programs} to PATH, then: {install}" if programs else f"rebuild it: {install}"


def unusable(facts: Facts) -> Iterator[Finding]:
    """Report adapters that cannot be used, and engines that are installed incompletely."""
    for reason in facts.found.broken.values():
        yield failure(reason, "update or remove that package")
    for name, absent in facts.found.missing.items():
        engine = facts.found.engines[name]
        if absent.reason != NOT_INSTALLED and not engine.attaches:
            yield warning(f"{engine.title}: {absent.reason}", absent.hint)


def environments(places: SearchPaths, names: Collection[str]) -> Iterator[Finding]:
    """Tell environments that are half-made, or whose Python has gone; `names` are the engines'."""
    for folder in sorted(places.environments.glob("*/") if places.environments else ()):
        if find_existing(folder) is not None:
            continue
        again, away = (
            f"vllama engines install {folder.name}",
            f"vllama engines remove {folder.name}",
        )
        if folder.name not in names:  # a tool's, made by the command that wants it
            again, away = "run that command again", f"remove the folder '{folder}'"
        if not (folder / MARKER).exists():
            yield warning(
                f"the installation of {folder.name} was interrupted",
                f"resume it ({again}), or remove it ({away})",
            )
        else:
            is_python = (folder / "pyvenv.cfg").exists()
            lost = f"its Python ({get_python(folder).resolve()})" if is_python else "its programs"
            yield failure(
                f"the environment of {folder.name} is missing {lost}",
                f"recreate it: {away}, then {again}",
            )


def start(facts: Facts, name: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Try whether an installed engine starts at all."""
    engine, installation = facts.found.engines[name], facts.found.installations[name]
    argv = check_command(facts, name, installation)
    if not argv:
        return
    limit_s = START_LIMIT_S - 5.0  # so that it is this that ends it, and not who waits for us
    out = run_command(argv, timeout_s=limit_s, env=build_child_env(environ))
    if out.status == 0:
        yield ok(f"{engine.title} {installation.version} starts")
        return
    last = next((line for line in reversed(out.text.splitlines()) if line.strip()), "no output")
    yield failure(
        f"{engine.title} does not start: {out.problem or last.strip()}",
        f"to reinstall it: vllama engines install {name}",
    )


def check_command(facts: Facts, name: str, installation: Installation) -> list[str]:
    """Return the command that shows whether it starts: the recipe's, else `--version`."""
    for wheels in facts.found.engines[name].install.wheels_for(facts.platform):
        if not wheels.check:
            continue
        program, *rest = wheels.check
        if program == "python" and installation.python:
            return [str(installation.python), *rest]
        if installation.executable and installation.executable.name == program:
            return [str(installation.executable), *rest]
    return [str(installation.executable), "--version"] if installation.executable else []
