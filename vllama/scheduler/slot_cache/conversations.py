"""The conversations of one engine's process: which slot has which, what is saved and restored.

The engine chooses the slot of a request. Each request has a mark of its own, which the engine tells
of a slot's last request; that and the number of tokens say which conversation a slot has. A request
names a slot only if a conversation was restored into it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vllama.base import executors
from vllama.base.errors import VllamaError
from vllama.chat.engine.traits import Slot, SlotRoutes
from vllama.chat.request import Call
from vllama.net.upstream.pool import Upstream
from vllama.scheduler.slot_cache.store import (
    Saved,
    SlotStore,
    StoreFull,
    count_common,
    hash_blocks,
)

log = logging.getLogger(__name__)

LEAST_TOKENS = 512
"""Fewer are read again sooner than they are restored."""
GROWN_SHARE, GROWN_TOKENS = 0.25, 1000
"""By how much a conversation has to have grown to be saved again while its engine is silent."""
LAST_TOKENS = 50
"""The same before its engine ends: fewer are read again about as soon as the whole is written."""
LIMIT_S = 30.0
FIRST_MARK = 1000
"""No value that clients use for the field."""
SLACK_TOKENS = 3
"""The last token of an answer is in no slot, and what ends it may be."""
MOST_KEPT = 256


@dataclass(slots=True, eq=False, kw_only=True)
class Conversation:
    """One that the engine has answered; `mark` is that of the last request."""

    mark: int
    tokens: int
    blocks: tuple[str, ...]
    owner: str
    key_name: str
    saved_tokens: int = 0


class Conversations:
    """The contents of one engine's slots and memory since its start."""

    def __init__(
        self, store: SlotStore, key: str, model: str, routes: SlotRoutes, token_bytes: int
    ) -> None:
        """`key`: see `Saved`. `token_bytes`: what a token takes in a slot, at most."""
        self._store, self._key, self.model = store, key, model
        self._routes, self._token_bytes = routes, token_bytes
        self._known: deque[Conversation] = deque(maxlen=MOST_KEPT)
        self._marks = itertools.count(FIRST_MARK)
        self._acting = asyncio.Lock()
        self.running = 0  # requests
        self.silent_since_s = 0.0

    @property
    def has_unsaved(self) -> bool:
        """True if something has grown enough to be saved while the engine is silent."""
        return any(map(_is_grown, self._known))

    def mark(self, call: Call) -> tuple[Call, int | None]:
        """Return a call with its mark, and that; None if the client uses the field."""
        if call.fields.get("dry_multiplier"):
            return call, None
        mark = next(self._marks)
        return call.put(**{self._routes.mark_field: mark}), mark

    def note(self, mark: int, text: str, tokens: int, owner: str, key_name: str) -> None:
        """Note an answer that has ended; `text` is that of prompt and answer."""
        blocks = hash_blocks(text)
        if not blocks:
            return
        saved_tokens = 0
        for each in list(self._known):
            if each.owner == owner and blocks[: len(each.blocks)] == each.blocks:
                saved_tokens = max(saved_tokens, each.saved_tokens)
                self._known.remove(each)  # this one goes on from it
        self._known.append(
            Conversation(
                mark=mark,
                tokens=tokens,
                blocks=blocks,
                owner=owner,
                key_name=key_name,
                saved_tokens=saved_tokens,
            )
        )

    async def restore(self, upstream: Upstream, call: Call, text: str, owner: str) -> Call | None:
        """Restore what is saved of a prompt; return the call with the slot that has it now.

        None if nothing better is saved than what the engine has, or it cannot be restored.
        """
        blocks = hash_blocks(text)
        if (found := self._store.find(self._key, owner, blocks)) is None:
            return None
        saved, common = found
        here = max((count_common(x.blocks, blocks) for x in self._known), default=0)
        if (common - here) * saved.tokens < LEAST_TOKENS * len(saved.blocks):
            return None
        async with self._acting:
            try:
                slot = choose_idle(await list_slots(upstream, self._routes))
            except (VllamaError, TimeoutError):
                return None  # the request itself will tell what is wrong
            if slot is None or not await executors.storage.run(self._store.check, saved):
                return None
            try:
                await act_on_slot(
                    upstream, self._routes, slot.number, "restore", f"{saved.name}.slot"
                )
            except VllamaError as error:
                log.warning("%s: cannot restore a conversation: %s", self.model, error.message)
                await executors.storage.run(self._store.drop, saved)
                return None
        await executors.storage.run(self._store.note_use, saved)
        self._known.append(
            Conversation(
                mark=-1,  # until its next answer it is in no slot that can be recognized
                tokens=saved.tokens,
                blocks=saved.blocks,
                owner=owner,
                key_name=saved.key_name,
                saved_tokens=saved.tokens,
            )
        )
        return call.put(**{self._routes.slot_field: slot.number})

    async def save(self, upstream: Upstream, *, is_ending: bool = False) -> int:
        """Save what has grown, as far as it is in an idle slot; return the bytes written.

        `is_ending`: also what has grown little, because the engine is about to end.
        """
        written = 0
        async with self._acting:
            for slot in await list_slots(upstream, self._routes):
                conversation = self._find(slot)
                if conversation is not None and _is_grown(conversation, is_ending=is_ending):
                    written += await self._save(upstream, slot, conversation)
        return written

    async def _save(self, upstream: Upstream, slot: Slot, conversation: Conversation) -> int:
        store = self._store
        estimate = (slot.tokens + 1) * self._token_bytes + (1 << 20)
        try:
            name = await executors.storage.run(store.begin, estimate, self.model)
        except (StoreFull, OSError) as error:
            log.info("%s: conversation not saved: %s", self.model, error)
            return 0
        try:
            await act_on_slot(upstream, self._routes, slot.number, "save", name)
            now = await list_slots(upstream, self._routes)
            if slot not in now:  # another request has come in between
                raise VllamaError("the slot was reused in the meantime")
            saved = Saved(
                name=name.removeprefix("new-").removesuffix(".slot"),
                key=self._key,
                model=self.model,
                owner=conversation.owner,
                key_name=conversation.key_name,
                blocks=conversation.blocks,
                tokens=conversation.tokens,
            )
            if not await executors.storage.run(store.finish, name, saved):
                return 0
        except (VllamaError, TimeoutError, OSError) as error:
            log.info("%s: conversation not saved: %s", self.model, error)
            await executors.storage.run(store.abandon, name)
            return 0
        conversation.saved_tokens = conversation.tokens
        return saved.size_bytes

    def _find(self, slot: Slot) -> Conversation | None:
        """Return the conversation in an idle slot."""
        if not slot.is_idle:
            return None
        for each in self._known:
            if each.mark == slot.mark:
                return each if 0 <= each.tokens - slot.tokens <= SLACK_TOKENS else None
        return None


async def list_slots(upstream: Upstream, routes: SlotRoutes) -> Sequence[Slot]:
    """Return the slots of an engine. Raises VllamaError, TimeoutError."""
    async with asyncio.timeout(LIMIT_S):
        answer = await upstream.get(routes.list_path)
    return routes.read(answer.body) if answer.status == 200 else ()


async def act_on_slot(
    upstream: Upstream, routes: SlotRoutes, slot: int, action: str, name: str
) -> None:
    """Save a slot to a file, or restore it. Raises VllamaError."""
    path = routes.act_path.format(slot=slot, action=action)
    call = Call(path=path, fields={"filename": name})
    answer = await upstream.fetch(call, limit_s=LIMIT_S)
    if answer.status != 200:
        raise VllamaError(f"the engine rejected it: {answer.body[:200].decode(errors='replace')}")


def _is_grown(conversation: Conversation, *, is_ending: bool = False) -> bool:
    before, now = conversation.saved_tokens, conversation.tokens
    grown = now - before
    enough = grown >= min(GROWN_TOKENS, GROWN_SHARE * before)
    enough |= is_ending and grown >= LAST_TOKENS
    return now >= LEAST_TOKENS and grown > 0 and enough


def choose_idle(slots: Iterable[Slot]) -> Slot | None:
    """Return an empty slot, else the one that was used least recently; None if all are busy."""
    return min((x for x in slots if x.is_idle), key=lambda x: x.last_task, default=None)
