"""Progress of a load: the time since its engine was started, and the bytes of weights read.

Two sources tell of the bytes, and the larger number counts. On Linux, the kernel says how much of a
mapped file is in a process's memory, and how far it has read an open one: llama.cpp maps its files,
and logs nothing meanwhile. The log of vLLM, SGLang and transformers counts shards, which are taken
to be of one size. Where neither tells, as with llama.cpp on macOS, only the time is known.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from vllama.base import executors
from vllama.plan.types import Plan
from vllama.scheduler.hooks import LoadedBytes
from vllama.scheduler.instance import Instance
from vllama.supervise.tree import count_read

log = logging.getLogger(__name__)

LOOK_S = 0.5
REST = 19
"""Times as long as a look takes: the kernel walks the process's pages, in 10 ms for each GiB."""
LINES = 100
SHARDS = re.compile(r"[Ll]oading .*(?:shards|weights): +\d+%.*?\b(\d+)/(\d+)")


async def watch_load(instance: Instance, report: Callable[[Plan, LoadedBytes], None]) -> None:
    """Keep `instance.load` up to date until canceled, and report what has been read."""
    plan, process = instance.plan, instance.process
    assert plan is not None and process is not None
    bundle, mapped, pause_s = plan.bundle, 0, LOOK_S
    load = LoadedBytes(started_s=time.time(), total_bytes=bundle.size_bytes)
    try:
        while True:
            instance.load = load
            await asyncio.sleep(pause_s)
            looked_s = time.monotonic()
            if process.pid is not None:
                mapped = await executors.upkeep.run(count_read, process.pid, bundle.files)
            pause_s = max(LOOK_S, REST * (time.monotonic() - looked_s))
            ring = process.parts[0].output()
            logged = int(find_share(ring.tail(LINES)) * load.total_bytes) if ring else 0
            read = min(max(load.completed_bytes, mapped, logged), load.total_bytes)
            if read != load.completed_bytes:
                load = replace(load, completed_bytes=read)
                report(plan, load)
    except Exception:
        # boundary: what is shown of a load must not end it
        log.exception("%s: cannot determine the load progress", instance.key)
    finally:
        instance.load = None


def find_share(lines: Sequence[str]) -> float:
    """Return the share of the weights that was read by the newest line that tells it, else 0."""
    found = next((hit for line in reversed(lines) if (hit := SHARDS.search(line))), None)
    return int(found[1]) / max(1, int(found[2])) if found else 0.0
