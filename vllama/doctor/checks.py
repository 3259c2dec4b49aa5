"""The list of checks, put together from the settings."""

from __future__ import annotations

import platform as python_platform
import sys
from collections.abc import Iterator

from vllama import __version__, config
from vllama.config import Config, removed
from vllama.doctor import engines, machine, storage
from vllama.doctor.check import Check, Finding, Once, ok, warning
from vllama.engines.registry import make_search_paths
from vllama.machine.nvidia import find_driver_cuda, list_gpu_processes
from vllama.plan.types import Facts

SLOW_S = 25.0
"""For checks that need the facts of the machine: a sleeping driver takes seconds per GPU."""


def all_checks(loaded: Config, facts: Once[Facts]) -> list[Check]:
    """Return every check, in the order of the report."""
    cuda = Once(find_driver_cuda)
    folders = {"data": loaded.data_dir, "logs": loaded.log_dir, "run files": loaded.run_dir}
    stored = {"the hub's models": loaded.hf_cache_dir, "Ollama's models": loaded.models_dir}
    unused = {loaded.data_dir / name: content for name, content in removed.LEFTOVERS.items()}
    unused[loaded.log_dir / removed.REQUEST_LOG] = "logged requests"
    return [
        Check(name="versions", ask=versions),
        Check(name="settings", ask=lambda: settings(loaded)),
        Check(name="GPU", ask=lambda: machine.driver(facts().platform, cuda()), limit_s=SLOW_S),
        Check(name="Vulkan", ask=lambda: machine.vulkan(facts().platform), limit_s=SLOW_S),
        Check(
            name="CUDA",
            ask=lambda: machine.cuda_against_wheels(facts().platform, facts().found, cuda()),
            limit_s=SLOW_S,
        ),
        Check(name="memory", ask=lambda: machine.ram(facts().platform), limit_s=SLOW_S),
        Check(
            name="GPU memory",
            ask=lambda: machine.gpu_memory(facts().platform, list_gpu_processes),
            limit_s=SLOW_S,
        ),
        Check(name="engine", ask=lambda: engines.check_choice(facts()), limit_s=SLOW_S),
        Check(name="upstreams", ask=lambda: engines.upstreams(facts()), limit_s=SLOW_S),
        Check(name="installations", ask=lambda: installations(loaded, facts()), limit_s=SLOW_S),
        Check(name="leftovers", ask=lambda: storage.leftovers(loaded.run_dir)),
        Check(name="unused files", ask=lambda: storage.find_unused(unused)),
        Check(name="port", ask=lambda: storage.port(loaded.host, loaded.port)),
        Check(name="folders", ask=lambda: storage.writable(folders)),
        Check(name="disk", ask=lambda: storage.disks(stored | folders)),
        Check(name="usage", ask=lambda: storage.usage(loaded.data_dir / "usage")),
        Check(name="models", ask=lambda: models(loaded)),
        Check(
            name="hub",
            ask=lambda: machine.hub(loaded.hf_endpoint, loaded.hf_token, offline=loaded.hf_offline),
        ),
    ]


def engine_checks(loaded: Config, facts: Once[Facts]) -> list[Check]:
    """Return the checks of the engines, each of which is started to see whether it does."""
    environ = config.environ()
    names = facts().found.installations
    return [
        Check(name="engine", ask=lambda: engines.check_choice(facts())),
        Check(name="installations", ask=lambda: installations(loaded, facts())),
        *(
            Check(
                name="start",
                ask=lambda name=name: engines.start(facts(), name, environ),  # type: ignore[misc]
                limit_s=engines.START_LIMIT_S,
            )
            for name in names
        ),
    ]


def versions() -> Iterator[Finding]:
    """Report the versions of vllama and Python."""
    python = python_platform.python_version()
    system = f"{python_platform.system()} {python_platform.release()} {python_platform.machine()}"
    yield ok(f"vllama {__version__}, Python {python} ({sys.executable}), {system}")


def settings(loaded: Config) -> Iterator[Finding]:
    """Yield defects of the settings that did not prevent reading them."""
    notes = [*loaded.notes, *([loaded.exposure] if loaded.exposure else [])]
    for note in notes:
        yield warning(note)
    if not notes:
        yield ok(f"read from {loaded.config_file}" if loaded.config_file else "no config file")


def installations(loaded: Config, facts: Facts) -> Iterator[Finding]:
    """Tell which engines are here only in part."""
    bad = [
        *engines.unusable(facts),
        *engines.environments(make_search_paths(loaded), facts.found.engines),
    ]
    names = ", ".join(facts.found.installations)
    yield from bad or [ok(f"installed: {names}" if names else "no engine is installed")]


def models(loaded: Config) -> Iterator[Finding]:
    """Open the library and read it."""
    from vllama.models.library import open_library

    yield from storage.models(open_library(config.models_settings(loaded)))
