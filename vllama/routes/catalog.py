"""`Library.find` for requests: quickly, off the event loop, and by what clients may name.

A look-up reads folders; a warm request must not wait for that. So a result is kept until something
changes that it rests on. Of models elsewhere it is used for a moment, an older one while it is
looked up again. Requests that ask for one name at the same time share a look-up.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from vllama.accounts.keys.ring import check_path
from vllama.base import executors
from vllama.base.clock import Clock
from vllama.base.errors import InvalidModelRef, ModelNotFound, VllamaError
from vllama.config.parse import holds_model
from vllama.models.library import Library
from vllama.models.lookup import Entry, InspectRules, Watch, rest_on
from vllama.models.names.ref import INVALID_NAME, ModelRef, is_path
from vllama.models.stores.local import LocalStore
from vllama.models.types import Bundle, ModelInfo
from vllama.routes.in_use import InUse

KEEP_S = 2.0  # for changes that no watch sees
STALE_S = 28.0  # longer, while it is looked up again
MAX_KEPT = 1024


class Catalog:
    """A short memory before the library."""

    def __init__(self, in_use: InUse, clock: Clock) -> None:
        self._in_use = in_use
        self._clock = clock
        self._kept: dict[str, tuple[float, Entry]] = {}
        self._pending: dict[str, asyncio.Task[Entry]] = {}
        self.is_outdated = False  # this server has changed the library since the last `look`
        self.listed: frozenset[tuple[object, ...]] = frozenset()  # the last list of all models
        self.lists = 0  # how often that was another one than before

    async def find(self, name: str, *, trusted: bool = False) -> Entry:
        """Return the model called `name`, by a client unless it is `trusted`.

        Raises ModelNotFound, InvalidModelRef, BadModelFile, Forbidden.
        """
        if not trusted and is_path(name):
            check_path(name)
        if entry := self._recall(name):
            return entry
        if not name:
            raise ModelNotFound(name)
        if running := self._pending.get(name):
            await asyncio.wait({running})  # it may have missed a change before this request
            if entry := self._recall(name):
                return entry
        # a caller that leaves must not take the others' look-up along
        return await asyncio.shield(self._look_again(name))

    def _recall(self, name: str) -> Entry | None:
        """Return the result that is kept for `name`, None if it may not be the present one."""
        fresh_until_s, entry = self._kept.get(name) or (0.0, None)
        if entry is None or not entry.watch.holds():
            return None
        if fresh_until_s == math.inf:  # nothing else can change it
            return entry
        late_s = self._clock.monotonic() - fresh_until_s
        if late_s >= STALE_S:
            return None
        if late_s >= 0:
            self._look_again(name)
        return entry

    def _look_again(self, name: str) -> asyncio.Task[Entry]:
        """Return the look-up of `name` that is under way, starting it if there is none."""
        task = self._pending.get(name)
        if task is None:
            looking = executors.disk.run(self._look_up, name)
            task = asyncio.get_running_loop().create_task(looking)
            self._pending[name] = task
            task.add_done_callback(lambda done: self._store_lookup(name, done))
        return task

    def _store_lookup(self, name: str, task: asyncio.Task[Entry]) -> None:
        """Keep the answer of a look-up, unless the library has changed meanwhile."""
        if self._pending.get(name) is not task:
            if not task.cancelled():
                task.exception()  # nobody may be waiting for it
            return
        del self._pending[name]
        if task.cancelled() or task.exception() is not None:
            self._kept.pop(name, None)
            return
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        changes_unseen = self.library.reaches_elsewhere or is_path(name)
        fresh_until_s = self._clock.monotonic() + KEEP_S if changes_unseen else math.inf
        self._kept[name] = (fresh_until_s, task.result())

    async def bundle(self, name: str) -> Bundle:
        """Return where `name` lies, even if its file is damaged. Raises as `find`."""
        if is_path(name):
            check_path(name)
        return (await executors.disk.run(self._find, name)).bundle

    async def all(self) -> list[tuple[Bundle, ModelInfo | None, str]]:
        """Return all models, newest first; damaged ones without metadata, but with the reason."""
        rows = await executors.disk.run(self._all)
        self._note_list(bundle for bundle, _, _ in rows)
        return rows

    async def look(self) -> None:
        """Look at the disk, in a thread, for who wants to know of changes: no model is read."""
        self.is_outdated = False
        self._note_list(await executors.upkeep.run(self.library.list))

    def _note_list(self, bundles: Iterable[Bundle]) -> None:
        """Compare a list of all models with the last one, whoever asked for that.

        What a client has seen counts: a file that came and went between two looks is on its list.
        """
        listed = frozenset((one.name, one.key, one.size_bytes, one.modified_s) for one in bundles)
        if listed != self.listed:
            self.listed = listed
            self.lists += 1

    @property
    def library(self) -> Library:
        """The models, as the settings in use name them."""
        return self._in_use.library

    def forget(self) -> None:
        """Drop what is kept or on its way: the library has changed."""
        self._kept.clear()
        self._pending.clear()
        self.is_outdated = True

    def _look_up(self, name: str) -> Entry:
        config, entry = self._in_use.config, self._find(name)
        inspecting = [x.title for x in self._in_use.facts.found.engines.values() if x.inspects]
        entry.max_tokens = config.max_tokens
        entry.inspect_rules = InspectRules(config.inspect_limit_bytes, tuple(inspecting))
        # the template in the model's own file comes first
        if entry.bundle.template and not config.go_template:
            own = replace(entry.bundle, template=None)
            if (info := self.library.info(own)).chat_template:
                entry = replace(entry, bundle=own, read=lambda: info)
        entry.read()  # here, in a thread
        return entry

    def _find(self, name: str) -> Entry:
        if self.library.find_link(name) or (path := ModelRef.parse(name).path) is None:
            return self.library.find(name)
        return self._find_at_path(name, path)

    def _find_at_path(self, name: str, path: Path) -> Entry:
        """Return the model at a path: a listed one, or for clients on this machine any model.

        The answer for a path that is not listed depends on its text alone, or anybody who reaches
        the server could ask which files exist.
        """
        if not name.strip().startswith(("/", "~")):
            # it would be looked for in the server's folder, which is not the client's
            raise InvalidModelRef(INVALID_NAME)
        whole = Path(os.path.normpath(path))  # follows no links
        for bundle in self.library.list():
            # a model that was created from another one, or a file, lies at the same path
            if bundle.store != LocalStore.name and whole in (bundle.path, bundle.path.resolve()):
                with Watch() as watch:  # it does not rest on all
                    rest_on(whole.parent)
                    return self.library.make_entry(bundle, watch)
        if not self._in_use.now.guards.loopback:
            raise ModelNotFound(name, hint="start the server with --model PATH")
        try:
            if whole.suffix.lower() != ".gguf" and not holds_model(whole):
                raise InvalidModelRef(INVALID_NAME)
            entry = self.library.find(name)
            entry.read()  # whatever its name says: only what can be read is a model
        except OSError:  # longer than a path may be, or in a folder that the server may not read
            raise ModelNotFound(name) from None
        return entry

    def _all(self) -> list[tuple[Bundle, ModelInfo | None, str]]:
        rows: list[tuple[Bundle, ModelInfo | None, str]] = []
        for bundle in self.library.list():
            try:
                rows.append((bundle, self.library.info(bundle), ""))
            except VllamaError as error:  # a damaged file must not hide the others
                rows.append((bundle, None, error.message))
        return rows
