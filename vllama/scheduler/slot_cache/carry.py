"""Slots in files for a moment: for other slots, or for the engine that replaces theirs.

Conversations for which the next engine has no slot are moved into its cache in RAM.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from secrets import token_hex

from vllama.base import executors
from vllama.base.errors import VllamaError
from vllama.chat.engine.traits import Slot, SlotRoutes, Traits
from vllama.net.upstream.pool import Upstream, Upstreams
from vllama.plan.types import Plan
from vllama.scheduler.slot_cache.cache import make_key
from vllama.scheduler.slot_cache.conversations import act_on_slot, list_slots
from vllama.scheduler.slot_cache.store import NEW
from vllama.supervise.spec import Endpoint

log = logging.getLogger(__name__)

FREE = 4  # a slot is saved where this many times its size is free


async def save_slot(upstream: Upstream, routes: SlotRoutes, plan: Plan, slot: Slot) -> Path | None:
    """Save a slot; None where the disk has little room for it. Raises VllamaError, OSError."""
    settings, folder = plan.settings, plan.settings.slot_dir
    assert folder is not None  # or its traits would name no routes
    disk = await executors.storage.run(shutil.disk_usage, folder)
    tokens = settings.context_length * (settings.parallel or 1)
    if disk.free < FREE * slot.tokens * (plan.memory.kv_bytes // tokens):
        return None
    path = folder / f"{NEW}{os.getpid()}-{make_key(plan, 0)}-{token_hex(8)}.slot"
    try:
        await act_on_slot(upstream, routes, slot.number, "save", path.name)
    except BaseException:  # also if the client leaves meanwhile
        remove_files([path])
        raise
    return path


async def save_slots(
    upstreams: Upstreams, plan: Plan, traits: Traits, endpoint: Endpoint
) -> Sequence[Path]:
    """Save what the slots of an engine hold, the least recently used first."""
    files, routes = list[Path](), traits.slots
    try:
        with upstreams.use_pool(endpoint) as upstream:
            slots = await list_slots(upstream, routes) if routes else ()
            for slot in sorted(slots, key=lambda each: each.last_task):
                if routes and slot.is_idle and slot.tokens:
                    path = await save_slot(upstream, routes, plan, slot)
                    files += [path] if path else []
    except (VllamaError, TimeoutError, OSError) as error:
        log.info("%s: cannot save its conversations: %s", plan.bundle.name, error)
    return files


async def restore_slots(
    upstreams: Upstreams, plan: Plan, traits: Traits, endpoint: Endpoint, files: Sequence[Path]
) -> None:
    """Restore what was saved of the engine before, and remove the files."""
    routes, slots = traits.slots, traits.max_concurrency
    try:
        with upstreams.use_pool(endpoint) as upstream:
            for number, path in enumerate(files):
                if routes and make_key(plan, 0) in path.name:
                    await executors.storage.run(routes.fit, path, slots)
                    await act_on_slot(upstream, routes, number % slots, "restore", path.name)
                    if number < len(files) - slots:
                        await upstream.fetch(routes.make_room)
    except (VllamaError, TimeoutError, OSError, ValueError) as error:
        log.info("%s: cannot restore all conversations: %s", plan.bundle.name, error)
    finally:
        remove_files(files)


def remove_files(files: Iterable[Path]) -> None:
    """Remove files in a thread."""
    for path in files:
        executors.storage.start(partial(path.unlink, missing_ok=True))
