"""Models that share an engine: names of the same files, and LoRA adapters, loaded on demand.

Each is a model of its own to clients, keys, limits and counts; to the engine an adapter is another
name in `model`, which differs for other weights, because engines cache prompts by it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.base import executors
from vllama.base.errors import BadModelFile, BadRequest, ModelNotFound, VllamaError
from vllama.chat.engine.refusals import clean_engine_error
from vllama.chat.engine.traits import Traits
from vllama.chat.request import Call
from vllama.models.headers.lora import WEIGHTS
from vllama.models.stores.folder import FolderStore
from vllama.models.types import Bundle
from vllama.net.upstream.pool import Upstream
from vllama.scheduler.instance import Instance, Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

Use = Callable[[Lease, Upstream], Awaitable[None]]


def with_adapter(adapter: Path, use: Use) -> Use:
    """Return `use` for requests to an adapter: they name it to the engine, which has loaded it."""

    async def use_adapter(lease: Lease, upstream: Upstream) -> None:
        name = upstream.adapters.get(adapter) or await _load(adapter, lease.traits, upstream)
        lease.traits = replace(lease.traits, model_name=name)
        await use(lease, upstream)

    return use_adapter


async def _load(adapter: Path, traits: Traits, upstream: Upstream) -> str:
    """Load an adapter into an engine; return its name there. Raises BadRequest and kin."""
    assert traits.adapter_paths is not None  # `Instance.fits`
    try:
        changed = (await executors.disk.run((adapter / WEIGHTS).stat)).st_mtime_ns
    except OSError as gone:
        raise BadModelFile(f"cannot load the adapter '{adapter}': {gone.strerror}") from gone
    digest = hashlib.sha256(f"{adapter} {changed}".encode()).hexdigest()
    name = f"{adapter.name[:40]}-{digest[:12]}"
    fields = {"lora_name": name, "lora_path": str(adapter)}
    answer = await upstream.fetch(Call(path=traits.adapter_paths[0], fields=fields))
    if answer.status != 200 and b"already been loaded" not in answer.body:
        error = clean_engine_error(answer.status, answer.body, answer.headers)
        raise BadRequest(f"cannot load the adapter '{adapter}': {error.message}")
    upstream.adapters[adapter] = name
    return name


async def unload(gateway: Gateway, bundle: Bundle, reason: str) -> None:
    """Unload a model; of an adapter whose engine others use, too, only the adapter itself."""
    found = [one for one in gateway.scheduler.list_instances() if one.key.model == bundle.key]
    if bundle.lora is None or all(one.names.keys() <= {bundle.name} for one in found):
        gateway.scheduler.unload(bundle, reason)
        return
    for one in found:
        await drop_name(gateway, one, bundle)


async def drop_name(gateway: Gateway, instance: Instance, bundle: Bundle) -> None:
    """Let a model leave the engine that it shares; the last one ends it."""
    gateway.scheduler.drop_name(instance, bundle.name)
    paths = instance.traits.adapter_paths if instance.names and instance.traits else None
    for endpoint in instance.process.endpoints if instance.process and paths else ():
        with gateway.upstreams.use_pool(endpoint) as upstream:
            lora = bundle.lora and upstream.adapters.pop(bundle.lora, None)
            if paths and lora:
                await upstream.fetch(Call(path=paths[1], fields={"lora_name": lora}))


async def keep_names(gateway: Gateway) -> None:
    """Drop names as they go, until canceled."""
    while True:
        await drop_old_names(gateway)
        await asyncio.sleep(1.0)


async def see_changes(gateway: Gateway, removed: Iterable[str]) -> None:
    """Look at all names again; forget what belongs to removed models."""
    gateway.catalog.forget()
    await drop_old_names(gateway)
    for name in removed:
        # scraped once more by then, and its running requests have been counted
        asyncio.get_running_loop().call_later(60.0, gateway.metrics.forget, name)
        if gateway.slot_cache is not None:
            await gateway.slot_cache.forget(model=name)


async def drop_old_names(gateway: Gateway) -> None:
    """Drop the names of loaded and failed models that are gone or mean another model."""
    scheduler = gateway.scheduler
    named = [(one, bundle) for one in scheduler.list_instances() for bundle in one.names.values()]
    failed = [(None, failure.bundle) for failure in scheduler.list_failures()]
    for instance, bundle in (*named, *failed):
        with suppress(VllamaError):  # of a busy disk, or an engine: the next look will tell
            if await _is_here(gateway, bundle):
                continue
            if instance and instance.names.get(bundle.name) is bundle:
                await drop_name(gateway, instance, bundle)
            elif not scheduler.is_loaded(bundle):
                scheduler.unload(bundle)


async def _is_here(gateway: Gateway, bundle: Bundle) -> bool:
    """Return whether a model still has its name; one in no store is found by its path only."""
    paths = [str(bundle.path)] if bundle.store == FolderStore.name else []
    for name in [bundle.name, *paths] if bundle.upstream is None else ():
        with suppress(ModelNotFound, BadModelFile, BadRequest):
            found = (await gateway.catalog.find(name, trusted=True)).bundle
            return found.key == bundle.key or found.upstream is not None
    return bundle.upstream is not None
