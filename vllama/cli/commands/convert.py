"""`vllama convert`: make a GGUF of safetensors, or a smaller one of a large one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vllama import config
from vllama.base.units import format_bytes_decimal
from vllama.cli.context import change_models, load_settings, local_library, local_quantizer
from vllama.cli.options import AsJson, model_argument, option, yes_option
from vllama.cli.output import require_agreement, say, say_aside, show_json
from vllama.cli.progress import open_display, show_installer
from vllama.config.parse import whole_path
from vllama.models.types import Bundle

if TYPE_CHECKING:
    from vllama.models.convert.job import ConversionJob

EXAMPLES = """\
\b
Examples:
  vllama convert org/repo
  vllama convert ./my-finetune --quantize Q5_K_M --output mine
  vllama convert ./model-F16.gguf -q Q4_K_M --output ./model-Q4_K_M.gguf
"""

OutputType = Literal["f32", "f16", "bf16", "q8_0", "auto"]


def convert(
    context: typer.Context,
    model: Annotated[str, model_argument("Model on the Hugging Face hub, folder, or GGUF file.")],
    quantize: Annotated[str | None, option("--quantize -q QUANT", "Quantization. [Q4_K_M]")] = None,
    outtype: Annotated[
        OutputType | None,
        option(
            "--outtype",
            "Output type of the converter; also the final type without --quantize.",
            case_sensitive=False,
        ),
    ] = None,
    output: Annotated[
        str | None, option("--output -o NAME", "Name of the new model, or path of a .gguf file.")
    ] = None,
    mmproj: Annotated[
        bool | None,
        option("--mmproj/--no-mmproj", "Create an image projector. [if the model has vision]"),
    ] = None,
    trust_remote_code: Annotated[
        bool, option("--trust-remote-code", "Run code from the model's repository.")
    ] = False,
    update: Annotated[bool, option("--update", "Update the converter first.")] = False,
    yes: Annotated[bool, yes_option("Do not ask before downloads.")] = False,
    as_json: AsJson = False,
) -> None:
    """Convert safetensors to GGUF, or quantize a GGUF."""
    from vllama.engines.child_env import build_child_env
    from vllama.models.convert.job import ConversionOptions
    from vllama.models.convert.prepare import prepare
    from vllama.models.convert.tools import find_converter

    settings = load_settings()
    library = local_library(settings)
    wishes = ConversionOptions(
        quantize=quantize,
        outtype=outtype,
        output=output,
        projector=mmproj,
        trusted=trust_remote_code,
    )
    job = prepare(library, whole_path(model), wishes)
    if job.pulled_bytes or isinstance(job.result, str):
        context.with_resource(change_models(settings))
    quantizer = local_quantizer(settings) if job.needs_quantizer else None
    converts = job.via is not None and (update or find_converter(settings.data_dir) is None)
    agree_to_fetch(job.original.pull_name, job.pulled_bytes, converter=converts, yes=yes)
    try:
        with open_display() as display:
            kept = asyncio.run(
                job.run(
                    library,
                    quantizer,
                    env=build_child_env(config.environ()),
                    tell=display,
                    on_line=show_installer(display),
                    update=update,
                )
            )
    except KeyboardInterrupt:
        say_aside("interrupted; partial output was removed, and downloads are saved")
        raise typer.Abort from None
    told = _describe(kept, job)
    if as_json:
        show_json(told)
    else:
        say(f"converted '{model}' to '{told['name']}'")
        say_aside(f"  {told['quantization']}, {format_bytes_decimal(int(str(told['size'])))}")
        say_aside(f"  to serve it: vllama serve --model {told['name']}")


def agree_to_fetch(name: str, weights: int, *, converter: bool, yes: bool) -> None:
    """Announce a download (`weights` bytes of `name`), and go on if the user agrees.

    Raises Exit if not, ConfigError if nobody can be asked.
    """
    from vllama.models.convert.tools import FETCHED_BYTES, FETCHED_WITH_CUDA_BYTES

    if not weights and not converter:
        return
    say_aside("to download:")
    if weights:
        say_aside(f"  {name}: {format_bytes_decimal(weights)} of safetensors")
    if converter:
        more = f" ({format_bytes_decimal(FETCHED_WITH_CUDA_BYTES)} if torch comes with CUDA only)"
        say_aside(
            "  llama.cpp's converter and torch, in a separate environment: about "
            f"{format_bytes_decimal(FETCHED_BYTES)}{more if sys.platform == 'linux' else ''}"
        )
    require_agreement("Continue?", yes=yes, cannot="cannot confirm the download")


def _describe(kept: Bundle | Path, job: ConversionJob) -> dict[str, object]:
    """Describe the result, for `--json` as well."""
    if isinstance(kept, Path):
        beside = kept.with_name(f"mmproj-{kept.name}")
        projector = beside if beside.is_file() else None
        name, path, size = str(kept), kept, kept.stat().st_size
    else:
        name, path, size, projector = kept.name, kept.path, kept.size_bytes, kept.projector
    return {
        "name": name,
        "path": str(path),
        "projector": str(projector) if projector else None,
        "quantization": job.quant,
        "size": size,
    }
