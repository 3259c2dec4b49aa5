"""Runs a tool to its end, and explains a failure.

The tool is a guarded child: it ends when vllama ends and when the conversion is cancelled. The
failure patterns are the words of llama.cpp's converter (`conversion/`, `convert_hf_to_gguf.py`), of
its quantiser (src/llama-quant.cpp) and of Python.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllama.errors import BadModelFile, EngineStartFailed, VllamaError
from vllama.supervise.aio import finish
from vllama.supervise.logs import LogRing, Tailer
from vllama.supervise.process import Child
from vllama.supervise.spec import Grace

_UPDATE = "a newer converter may know it: add --update"


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Searched in all of the output; `cause` may use the groups as `{0}`."""

    pattern: str
    cause: str
    hint: str | None = None


PATTERNS = (
    _Pattern(
        r"No space left on device|Errno 28",
        "no space is left on the disk",
        "free some space: vllama rm, or --output on a larger disk",
    ),
    _Pattern(
        r"MemoryError|std::bad_alloc|DefaultCPUAllocator: can't allocate|failed to allocate",
        "the memory does not suffice",
        "close other programs, or convert it on a larger machine",
    ),
    _Pattern(
        r"Model (\S+) is not supported|Architecture '?(\w+)'? not supported",
        "the converter does not know the architecture {0}",
        _UPDATE,
    ),
    _Pattern(
        r"Failed to detect model architecture",
        "its config.json does not name an architecture",
    ),
    _Pattern(
        r"Quant method is not yet supported: '([^']+)'",
        "its weights are quantised with {0}, which the converter cannot undo",
        "convert the model that it was made from",
    ),
    _Pattern(
        r"(Quant format '[^']+' for method '[^']+' is not yet supported"
        r"|Can't handle multiple config groups for compressed-tensors yet"
        r"|3-bit gptq dequantization is not yet implemented)",
        "its weights are quantised in a way that the converter cannot undo ({0})",
        "convert the model that it was made from",
    ),
    _Pattern(
        r"BPE pre-tokenizer was not recognized",
        "the converter does not know its tokenizer",
        _UPDATE,
    ),
    _Pattern(
        r"File not found: \S*?([\w.-]*token[\w.-]*)|Can't load tokenizer for|Cannot find tokenizer"
        r"|Couldn't instantiate the backend tokenizer",
        "its tokenizer is missing or incomplete ({0})",
        "fetch the model again, tokenizer files included",
    ),
    _Pattern(
        r"Unrecognized (?:model|configuration class)|Tokenizer class (\S+) does not exist"
        r"|The checkpoint you are trying to load has model type `([^`]+)`",
        "the converter's transformers does not know it ({0})",
        "if it brings code of its own, look at that and add --trust-remote-code; "
        "or fetch a newer converter: --update",
    ),
    _Pattern(
        r"does not appear to have a file named (\S+\.py)"
        r"|(?:requires|contains custom code|custom code which must be)[^\n]*execut",
        "it brings program code of its own ({0}), which is not run unless you say so",
        "look at the code, then add --trust-remote-code",
    ),
    _Pattern(
        r"Missing or incomplete model files: (.*)", "weights are missing: {0}", "fetch it again"
    ),
    _Pattern(
        r"Can not map tensor '([^']+)'", "the converter does not know its tensor {0}", _UPDATE
    ),
    _Pattern(
        r"does not support multimodal|vision_config / audio_config not found"
        r"|must have either vision or audio encoder",
        "it has no projector",
    ),
    _Pattern(
        r"No module named '?([\w.]+)'?|requires (?:the )?[`']?(mistral[-_]common)",
        "the converter lacks the module {0}",
        "install it into the converter's environment, or add --update",
    ),
    _Pattern(
        r"unknown model architecture: '([^']*)'",
        "this llama.cpp does not know the architecture '{0}'",
        "update the engine",
    ),
    _Pattern(
        r"(?:failed to quantize|llama_model_quantize: failed)[^:\n]*: (.+)",
        "{0}",
    ),
)


def find_cause(output: Sequence[str], code: int) -> tuple[str, str | None]:
    """Return (cause, hint) for a tool that ended with `code` (negative: by a signal)."""
    if code == -9:
        return "it was killed, as the system does when memory is short", None
    if code < 0:
        return f"it was ended by signal {-code}", None
    text = "\n".join(output)
    for one in PATTERNS:
        if match := re.search(one.pattern, text):
            groups = [group for group in match.groups() if group]
            cause = one.cause.format(*groups) if groups else _without_gap(one.cause)
            return cause, one.hint
    return _last_error(output) or f"it ended with exit code {code}", None


def _without_gap(cause: str) -> str:
    return re.sub(r" ?\(?\{0\}\)?", "", cause)


def _last_error(output: Sequence[str]) -> str | None:
    """Return the message of the last line that names an error, else the last line."""
    for line in reversed(output):
        if match := re.match(r"(?:\w+\.)*\w*(?:Error|Exception): (.+)|ERROR:[^:]+:(.+)", line):
            return (match[1] or match[2]).strip().rstrip(".")
    return next((line.strip() for line in reversed(output) if line.strip()), None)


GRACE = Grace(term_s=1.0, second_term_s=1.0, kill_s=5.0)
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
    tailer = Tailer(log, ring, on_line=on_line)
    tailing = asyncio.ensure_future(tailer.run())
    try:
        code = await child.wait()
    finally:
        tailing.cancel()
        await finish(_end(child))
        await asyncio.wait({tailing})
    tailer.finish()
    if code != 0:
        cause, hint = find_cause(ring.tail(OUTPUT_LINES), code)
        raise BadModelFile(f"cannot {task}: {cause}", hint=hint)


async def _end(child: Child) -> None:
    """TERM, then KILL what is left of the tool and of all below it."""
    if not child.gone.done():
        await child.terminate()
        await asyncio.wait({child.gone}, timeout=GRACE.term_s)
    await child.kill_tree(GRACE.kill_s)
