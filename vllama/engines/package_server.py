"""Base class for the adapters of servers that are Python packages.

An adapter states in fields and small pure functions what is its own: arguments and environment,
traits, and the lines by which it fails. Packages outside vllama may inherit from it too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vllama.chat.engine.traits import Tokenizer
from vllama.engines.base import Engine, Installation, Missing, Mode, SearchPaths, Settings
from vllama.engines.child_env import build_child_env
from vllama.engines.failures import compile_failures
from vllama.engines.locate import PackageLocation, find_package
from vllama.models.types import Bundle, ModelInfo
from vllama.supervise.spec import Endpoint, Grace, HttpProbe, LaunchSpec, Work

GIB = 1024**3
MIB = 1024**2
# Ollama's options under the names that vLLM gave them and most servers took over
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
# routes of vLLM's server and of llama.cpp's, which upstreams have as well
PROMPT_TOKENIZER, LLAMACPP_TOKENIZER = (
    Tokenizer(
        tokenize_path="/tokenize",
        detokenize_path="/detokenize",
        input_field=field,
        text_field=field,
        special_field=special,
    )
    for field, special in (("prompt", None), ("content", "add_special"))
)
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""Variables that keep the hub's library off the network."""


@dataclass(frozen=True, kw_only=True)
class PackageServer(Engine):
    """An engine whose server is a Python package.

    `distributions` are the package's names on the index. `program` is its command; without one it
    is run by the Python that has the package. `needs` are modules that must be importable too.
    `ready` is polled until it answers. `hopeless` is a pattern of `LaunchSpec`. `first_work_path`
    is set for a server that listens before it can work: its first answer there is waited for.
    `always_offloads`: every build of it can use an accelerator.
    """

    distributions: tuple[str, ...]
    program: str | None = None
    needs: tuple[str, ...] = ()
    ready: HttpProbe = HttpProbe(path="/health")
    first_work_path: str | None = None
    hopeless: str | None = None
    always_offloads: bool = False
    grace: Grace = Grace(term_s=3.0, second_term_s=2.0, kill_s=10.0)

    # -- what each adapter states --------------------------------------------------------------

    @abstractmethod
    def build_arguments(
        self, bundle: Bundle, settings: Settings, endpoint: Endpoint
    ) -> Sequence[object]:
        """Return the arguments after the program, or after `python -P`. Pure."""

    def build_environment(self, settings: Settings, endpoint: Endpoint) -> Mapping[str, str]:
        """Return the variables that it needs besides the harmless ones of the user."""
        return {}

    def offloads(self, location: PackageLocation) -> bool:
        """Tell whether the installed build can use an accelerator."""
        return self.always_offloads

    # -- what they share -----------------------------------------------------------------------

    def find(self, search_paths: SearchPaths) -> Installation | Missing:
        """Look for the package without importing it."""
        found = find_package(
            search_paths,
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
            start = (installation.python, "-P")  # -P: no modules from the current folder
        own = (*start, *self.build_arguments(bundle, settings, endpoint))
        extra = self.build_environment(settings, endpoint)
        return LaunchSpec(
            name=settings.alias,
            argv=(*map(str, own), *settings.tuned_args, *settings.extra_args),
            env=build_child_env(environ, extra=extra),
            cwd=Path("/"),
            endpoint=endpoint,
            probe=self._build_probe(bundle, settings),
            grace=self.grace,
            stall_timeout_s=settings.stall_timeout_s,
            hopeless=self.hopeless,
            diagnose=compile_failures(self.failures),
        )

    def _build_probe(self, bundle: Bundle, settings: Settings) -> HttpProbe:
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


def explain_mlx_only(info: ModelInfo) -> str | None:
    """Return why an engine other than MLX cannot read a model's weights, None if it can."""
    if not (info.quant or "").startswith("MLX"):
        return None
    return "its weights are packed for Apple's MLX, which no other engine reads"


def explain_mistral_only(info: ModelInfo) -> str | None:
    """Return why an engine other than vLLM cannot read a model's weights, None if it can."""
    if not info.mistral_weights:
        return None
    return "its weights are in Mistral's own format (params.json), which only vLLM reads"


def has_gpu_torch(location: PackageLocation) -> bool:
    """Tell whether the torch in an engine's environment was built for GPUs."""
    folder = location.module_folder("torch")
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
