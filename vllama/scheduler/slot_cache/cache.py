"""The saved conversations of all engines of a server."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from vllama.accounts.keys.key import ApiKey
from vllama.base import executors
from vllama.base.clock import Clock
from vllama.base.errors import VllamaError
from vllama.chat.request import Call, Usage
from vllama.models.types import Bundle
from vllama.net.upstream.pool import Upstream, Upstreams
from vllama.observe.metrics.server_metrics import Metrics
from vllama.plan.types import Plan
from vllama.scheduler.instance import Lease
from vllama.scheduler.slot_cache.blocks import remove_blocks
from vllama.scheduler.slot_cache.conversations import Conversations
from vllama.scheduler.slot_cache.store import SlotStore
from vllama.supervise.spec import Endpoint

log = logging.getLogger(__name__)

SILENT_S = 10.0
LOOK_S = 1.0
TRIM_S = 10.0
END_LIMIT_S = 10.0
"""How long the end of an engine may wait for its conversations."""


class SlotCache:
    """Restores conversations for requests, and saves them when engines are silent or end."""

    def __init__(
        self, store: SlotStore, upstreams: Upstreams, metrics: Metrics, clock: Clock
    ) -> None:
        self.store = store
        self._upstreams, self._metrics, self._clock = upstreams, metrics, clock
        self._engines: dict[Endpoint, Conversations] = {}

    def find(self, lease: Lease) -> Conversations | None:
        """Return the conversations of a lease's engine, None if it cannot save any."""
        routes, plan = lease.traits.slots, lease.instance.plan
        if routes is None or plan is None or not plan.settings.keeps_conversations:
            return None
        found = self._engines.get(lease.endpoint)
        if found is not None:
            return found
        self._forget_ended(lease)
        slots = lease.traits.max_concurrency
        try:
            key = make_key(plan, slots)
        except OSError:  # the model's files are gone, which a loaded engine survives
            return None
        token_bytes = -(-plan.memory.kv_bytes // max(1, plan.settings.context_length * slots))
        name = plan.bundle.name
        made = self._engines[lease.endpoint] = Conversations(
            self.store, key, name, routes, token_bytes
        )
        return made

    def set_share(self, bundle: Bundle) -> None:
        """Take over what the settings of a model allow it, before it is started."""
        own = bundle.settings.cache_disk
        self.store.set_share(bundle.name, None if isinstance(own, bool) else own)

    def _forget_ended(self, lease: Lease) -> None:
        """Forget the processes of a model that its lease's has followed."""
        process, name = lease.instance.process, lease.instance.bundle.name
        here = process.endpoints if process is not None else ()
        for endpoint, each in list(self._engines.items()):
            if each.model == name and endpoint not in here and not each.running:
                del self._engines[endpoint]

    async def run(self) -> None:
        """Save what silent engines have, and bound what others write, until canceled."""
        trimmed_s = 0.0
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = self._clock.monotonic()
            if now_s - trimmed_s >= TRIM_S:
                trimmed_s = now_s
                with suppress(OSError):  # nothing is saved then, which is told
                    await executors.storage.run(self.store.trim_blocks)
            for endpoint, each in list(self._engines.items()):
                if each.running or now_s - each.silent_since_s < SILENT_S or not each.has_unsaved:
                    continue
                each.silent_since_s = now_s  # what cannot be saved is not tried all the time
                await self._save(endpoint, each)

    async def end(self, endpoints: Sequence[Endpoint]) -> None:
        """Save what the engines at `endpoints` have, which are about to end."""
        for endpoint in endpoints:
            if (each := self._engines.pop(endpoint, None)) is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(END_LIMIT_S):
                        await self._save(endpoint, each, is_ending=True)

    async def _save(
        self, endpoint: Endpoint, each: Conversations, *, is_ending: bool = False
    ) -> None:
        try:
            with self._upstreams.use_pool(endpoint) as upstream:
                written = await each.save(upstream, is_ending=is_ending)
        except (VllamaError, TimeoutError) as error:
            log.info("cannot save conversations: %s", error)
            self._engines.pop(endpoint, None)  # it has ended
            return
        if written:
            self._metrics.slot_cache_written.add((), written)

    async def forget(self, *, model: str | None = None, owner: str = "") -> None:
        """Remove the conversations of a model, or those of an API key."""
        await executors.storage.run(
            self.store.drop_where,
            lambda each: each.model == model if model is not None else each.owner == owner,
        )
        if model is not None:
            await executors.storage.run(remove_blocks, self.store.folder, model)

    def begin(self, text: str, access: ApiKey | None) -> CachedTurn:
        """Begin a request of `access` whose prompt is `text`."""
        return CachedTurn(self, text, access)

    def count_restored(self, model: str) -> None:
        """Count a conversation that was restored."""
        self._metrics.slot_cache_restored.add((model,))

    @property
    def now_s(self) -> float:
        """The time, on a clock that never goes back."""
        return self._clock.monotonic()


class CachedTurn:
    """One request on its way: its conversation is restored before it is sent, and noted after."""

    def __init__(self, cache: SlotCache, text: str, access: ApiKey | None) -> None:
        """`text` is the prompt; `access` the key whose conversation it is."""
        self._cache, self._text = cache, text
        self._each: Conversations | None = None
        self._mark: int | None = None
        self._owner, self._key_name = (access.identity, access.name) if access else ("", "")

    async def prepare(
        self, lease: Lease, upstream: Upstream, call: Call, *, restores: bool
    ) -> Call:
        """Return the call with its mark, and with the slot that has its conversation now.

        Without `restores` it stays in the slot that the engine chooses.
        """
        self._leave()
        each = self._each = self._cache.find(lease)
        if each is None:
            return call
        each.running += 1
        restored = None
        if restores:
            restored = await each.restore(upstream, call, self._text, self._owner)
        if restored is not None:
            self._cache.count_restored(lease.instance.bundle.name)
        call, self._mark = each.mark(restored or call)
        return call

    def end(self, said: str | None, usage: Usage) -> None:
        """Note the end of the answer; `said` is its text as the engine made it, None if cut."""
        if self._each is not None and self._mark is not None and said is not None:
            tokens = usage.prompt_tokens + usage.completion_tokens
            self._each.note(self._mark, self._text + said, tokens, self._owner, self._key_name)
        self._leave()

    def _leave(self) -> None:
        if self._each is not None:
            self._each.running -= 1
            self._each.silent_since_s = self._cache.now_s
            self._each = None


def make_key(plan: Plan, slots: int) -> str:
    """Return the inputs of a saved conversation beside its text. Raises OSError."""
    bundle, settings = plan.bundle, plan.settings
    files = (*bundle.files, *bundle.adapters)
    stats = [(path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]
    parts = (
        bundle.digest,
        stats,
        (plan.installation.engine, plan.installation.version, plan.installation.backend),
        (settings.kv_cache_type, settings.flash_attention, slots),
        (settings.gpu_layers, *settings.tuned_args, *settings.extra_args),
    )
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()
