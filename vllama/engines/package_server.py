"""What the adapters of plain servers have in common: found as a package, started by a command line.

An adapter says in tables and small pure functions what is its own: `command` and `environment`, its
traits, the lines by which it fails. The rest is here. Inherit from it in a package of your own too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vllama.chat.engine.traits import Traits
from vllama.engines.base import (
    FailurePattern,
    Installation,
    Missing,
    Mode,
    Overhead,
    Places,
    Settings,
)
from vllama.engines.child_env import child_environment
from vllama.engines.failures import diagnose
from vllama.engines.locate import Located, find_package
from vllama.engines.recipe import Recipe
from vllama.hardware.types import Platform
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.supervise.spec import Endpoint, Fault, Grace, HttpProbe, LaunchSpec, Work

GIB = 1024**3
# the options of Ollama by the names that vLLM gave them, and most servers took over
PARAMETERS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "stop": "stop",
    "max_tokens": "max_tokens",
}

PORT_TAKEN = FailurePattern(
    pattern=r"(?i)address already in use|port \d+ is already in use",
    cause="its port was taken by another program",
    hint="try again: vllama chooses another one each time",
    retryable=True,
    fault=Fault.PORT,
)
NO_MEMORY = FailurePattern(
    pattern=r"(?i)CUDA out of memory|OutOfMemoryError|MemoryError|Cannot allocate memory"
    r"|unable to mmap|can't allocate memory|\[metal::malloc\]",
    cause="the model and its context do not fit into memory",
    hint="use a smaller context (--ctx) or a smaller model, or free memory",
    fault=Fault.MEMORY,
)
NO_MODULE = FailurePattern(
    pattern=r"(?:ModuleNotFoundError|ImportError): (.+)",
    cause="its installation is not complete ({0})",
    hint="remove its environment and install it again",
    fault=Fault.MISMATCH,
)
BAD_FLAG = FailurePattern(
    pattern=r"(?i)(?:unrecognized arguments|no such option): (\S+)",
    cause="it does not know the argument {0}",
    hint="correct what stands after '--'",
)
COMMON_FAILURES = (PORT_TAKEN, NO_MEMORY, NO_MODULE, BAD_FLAG)


@dataclass(frozen=True, kw_only=True)
class Served(ABC):
    """An engine whose server is a Python package.

    `distributions` are the names that its package has at pip, `program` is its command (None: it is
    run by the Python that has it), `needs` are modules that must be there. `ready` is polled until
    it answers; `hopeless` see `LaunchSpec`. `first_work_path`: it listens before it can work, so
    that its first answer is waited for.
    """

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    formats: tuple[Format, ...] = (Format.SAFETENSORS,)
    modes: tuple[Mode, ...] = (Mode.CHAT,)
    overhead: Overhead = Overhead()
    failures: tuple[FailurePattern, ...] = COMMON_FAILURES
    install: Recipe = Recipe()
    distributions: tuple[str, ...]
    program: str | None = None
    needs: tuple[str, ...] = ()
    ready: HttpProbe = HttpProbe(path="/health")
    first_work_path: str | None = None
    hopeless: str | None = None
    grace: Grace = Grace(term_s=3.0, second_term_s=2.0, kill_s=10.0)

    # -- what an adapter says ------------------------------------------------------------------

    @abstractmethod
    def preference(self, platform: Platform) -> tuple[int, str]:
        """Return how well it suits `platform` (higher is better, 0: only by name) and why."""

    @abstractmethod
    def command(self, bundle: Bundle, settings: Settings, endpoint: Endpoint) -> Sequence[object]:
        """Return the arguments after the program, or after `python -P`."""

    @abstractmethod
    def traits(self, bundle: Bundle, settings: Settings) -> Traits:
        """Declare what a process launched like this takes and gives."""

    def environment(self, settings: Settings, endpoint: Endpoint) -> Mapping[str, str]:
        """Return the variables that it needs besides the harmless ones of the user."""
        return {}

    def supports(self, platform: Platform, info: ModelInfo) -> str | None:
        """Return None if it can serve a model like `info` here, else the reason why not."""
        return None

    def offloads(self, located: Located) -> bool:
        """Tell whether what was found can use an accelerator."""
        return False

    # -- what all do alike ---------------------------------------------------------------------

    def find(self, places: Places) -> Installation | Missing:
        """Look for it where all engines are looked for, without importing it."""
        found = find_package(
            places,
            self.name,
            distributions=self.distributions,
            executable=self.program,
            needs=self.needs,
        )
        if isinstance(found, Missing):
            return found
        return found.installation(offloads=self.offloads(found))

    def launch(
        self,
        bundle: Bundle,
        settings: Settings,
        installation: Installation,
        endpoint: Endpoint,
        environ: Mapping[str, str],
    ) -> LaunchSpec:
        """Build the start of one process."""
        start: tuple[object, ...] = (installation.executable,)
        if self.program is None or installation.executable is None:
            start = (installation.python, "-P")
        own = tuple(str(part) for part in (*start, *self.command(bundle, settings, endpoint)))
        extra = {**self.environment(settings, endpoint), **dict(settings.tuned_env)}
        return LaunchSpec(
            name=settings.alias,
            argv=(*own, *settings.tuned_args, *settings.extra_args),
            env=child_environment(environ, extra=extra),
            cwd=Path("/"),
            endpoint=endpoint,
            probe=self._probe(bundle, settings),
            grace=self.grace,
            stall_timeout_s=settings.stall_timeout_s,
            hopeless=self.hopeless,
            diagnose=diagnose(self.failures),
        )

    def _probe(self, bundle: Bundle, settings: Settings) -> HttpProbe:
        if self.first_work_path is None or settings.mode is not Mode.CHAT:
            return self.ready
        body = {
            "model": self.traits(bundle, settings).model_name or settings.alias,
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 1,
        }
        return HttpProbe(
            path=self.ready.path,
            ready_statuses=self.ready.ready_statuses,
            verify_path=self.ready.verify_path,
            first_work=Work(path=self.first_work_path, body=msgspec.json.encode(body)),
        )


def for_mlx_only(info: ModelInfo) -> str | None:
    """Return why an engine other than MLX cannot read a model's weights; None if it may."""
    if not (info.quant or "").startswith("MLX"):
        return None
    return "its weights are packed for Apple's MLX, which only that reads"


def torch_has_gpus(located: Located) -> bool:
    """Tell whether the torch beside an engine was built for GPUs: its version file names CUDA."""
    folder = located.module_folder("torch")
    if folder is None:
        return False
    try:
        text = (folder / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    lines = (line.partition("=") for line in text.splitlines())
    return any(
        name.split(":")[0].strip() in ("cuda", "hip") and value.strip() not in ("None", "")
        for name, _, value in lines
    )
