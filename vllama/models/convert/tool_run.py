"""Runs a tool to its end, and explains a failure.

The tool is a guarded child: it ends when vllama ends and when the conversion is cancelled. The
failure patterns are the words of llama.cpp's converter (`conversion/`, `convert_hf_to_gguf.py`), of
its quantiser (src/llama-quant.cpp) and of Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vllama.base.errors import BadModelFile, EngineStartFailed, VllamaError
from vllama.machine.environments.failures import Row, match_output
from vllama.machine.environments.make import GRACE, run_to_end
from vllama.supervise.logs import LogRing, Tailer
from vllama.supervise.process import Child

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
    return _last_error(output) or f"it ended with exit code {code}", None


def _last_error(output: Sequence[str]) -> str | None:
    """Return the message of the last line that names an error, else the last line."""
    for line in reversed(output):
        if match := re.match(r"(?:\w+\.)*\w*(?:Error|Exception): (.+)|ERROR:[^:]+:(.+)", line):
            return (match[1] or match[2]).strip().rstrip(".")
    return next((line.strip() for line in reversed(output) if line.strip()), None)


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
