"""One tool, run to its end as a guarded child: gone when we are gone, ended on cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vllama.errors import BadModelFile, EngineStartFailed, VllamaError
from vllama.models.convert.causes import cause_of
from vllama.supervise.aio import finish
from vllama.supervise.logs import LogRing, Tailer
from vllama.supervise.process import Child
from vllama.supervise.spec import Grace

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
    """Run `argv` in `folder` with exactly `env`; `on_line` is told the newest line, bars too.

    Raises BadModelFile ("cannot <task>: <the tool's cause>"), VllamaError if it cannot be run.
    """
    log = folder / "output.log"
    log.write_bytes(b"")
    try:
        child = await Child.spawn(argv, env=env, log_path=log, cwd=folder, grace=GRACE)
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
        cause, hint = cause_of(ring.tail(OUTPUT_LINES), code)
        raise BadModelFile(f"cannot {task}: {cause}", hint=hint)


async def _end(child: Child) -> None:
    """TERM, then KILL what is left of the tool and of all below it."""
    if not child.gone.done():
        await child.terminate()
        await asyncio.wait({child.gone}, timeout=GRACE.term_s)
    await child.kill_tree(GRACE.kill_s)
