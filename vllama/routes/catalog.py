"""From a client's name to a bundle and its metadata, quickly, and as it is now.

A look-up reads folders; a warm request must not wait for that. So a result is kept until something
changes that it rests on (`models.watch`). Of models elsewhere it is used for a moment, an older one
while it is looked up again. Requests that ask for one name at the same time share a look-up.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from vllama.accounts.keys.ring import check_engine, check_path
from vllama.base import executors
from vllama.base.clock import Clock
from vllama.base.errors import InvalidModelRef, ModelNotFound, VllamaError
from vllama.chat.request import LoadOptions, Sampling
from vllama.config.parse import holds_model
from vllama.dialects.ollama.options import NEUTRAL, resolve_options
from vllama.models.library import Library
from vllama.models.names.ref import INVALID_NAME, ModelRef, is_path
from vllama.models.stored import read_state
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.models.watch import Watch, rest_on
from vllama.routes.in_use import InUse

KEEP_S = 2.0
STALE_S = 30.0
MAX_KEPT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRules:
    """Rules for requests that inspect a model; `engines` are the capable ones, by title."""

    most_bytes: int
    engines: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Entry:
    """A model for the gateway, while `watch` holds; `max_tokens` is the server's ceiling."""

    bundle: Bundle
    info: ModelInfo
    max_tokens: int | None = None
    inspect_rules: InspectRules | None = None
    watch: Watch = field(default_factory=Watch)
    _own: tuple[Sampling, LoadOptions] | None = field(default=None, init=False)

    def options(self, given: Mapping[str, object]) -> tuple[Sampling, LoadOptions]:
        """Return a request's options over the model's own. Raises BadRequest, Forbidden.

        The user's settings decide which of the request's hold.
        """
        if given.get("engine") is not None:
            check_engine()
        settings = self.bundle.settings
        if settings.strip or settings.force:
            given = {
                **{name: x for name, x in given.items() if name not in (settings.strip or ())},
                **(settings.force or {}),
            }
        resolve = partial(
            resolve_options,
            self.bundle.parameters,
            own=self.own_sampling,
            has_own_defaults=self.bundle.upstream is not None,
        )
        if given:
            return resolve(given)
        if self._own is None:
            self._own = resolve({})
        return self._own

    @property
    def own_sampling(self) -> Mapping[str, float]:
        """The sampling that the model's files name; a GGUF's leave the rest to Ollama's defaults.

        A `generation_config.json` means all of it, with neutral values for the rest.
        """
        named = self.info.sampling
        folder = self.bundle.format is Format.SAFETENSORS
        return {**NEUTRAL, **named} if named and folder else named

    def limit_answer(self, asked: int | None) -> int | None:
        """Return the most tokens of an answer: the least of what is asked for and the ceilings."""
        limits = (asked, self.bundle.settings.max_tokens, self.max_tokens)
        return min([limit for limit in limits if limit is not None], default=None)

    @property
    def full_name(self) -> str:
        """The name with its host, as Ollama writes it in what a model cannot do."""
        name = self.bundle.name
        if name.count("/") >= 2:
            return name
        return f"registry.ollama.ai/{name if '/' in name else f'library/{name}'}"


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

    async def find(self, name: str) -> Entry:
        """Return the model that a client calls `name`. Raises Forbidden, and as `look_up`."""
        if is_path(name):
            check_path(name)
        return await self.look_up(name)

    async def look_up(self, name: str) -> Entry:
        """Return the model called `name`. Raises ModelNotFound, InvalidModelRef, BadModelFile."""
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
        looked_s, entry = self._kept.get(name) or (0.0, None)
        if entry is None or not entry.watch.holds():
            return None
        age_s = self._clock.monotonic() - looked_s
        is_new = age_s < KEEP_S or not (self.library.stored.reaches_elsewhere or is_path(name))
        if not is_new and age_s < STALE_S:
            self._look_again(name)
        return entry if is_new or age_s < STALE_S else None

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
        self._kept[name] = (self._clock.monotonic(), task.result())

    async def bundle(self, name: str) -> Bundle:
        """Return where `name` lies, even if its file is damaged. Raises as `find`."""
        if is_path(name):
            check_path(name)
        return await executors.disk.run(self._find, name)

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
        config = self._in_use.config
        with Watch() as watch:
            bundle = self._find(name)
            rest_on(*bundle.files)
            bundle = replace(bundle, state=read_state(bundle))
            own = replace(bundle, template=None)
            # the template in the model's own file comes first
            if bundle.template and not config.go_template and self.library.info(own).chat_template:
                bundle = own
            rules = self._make_inspect_rules()
            return Entry(bundle, self.library.info(bundle), config.max_tokens, rules, watch)

    def _make_inspect_rules(self) -> InspectRules:
        config, engines = self._in_use.config, self._in_use.facts.found.engines.values()
        return InspectRules(
            most_bytes=config.inspect_limit_bytes,
            engines=tuple(each.title for each in engines if each.inspects),
        )

    def _find(self, name: str) -> Bundle:
        if self.library.stored.find_link(name):
            return self.library.find(name)
        ref = ModelRef.parse(name)
        if ref.path is None:
            return self.library.find(name)
        return self._at_path(name, ref.path)

    def _at_path(self, name: str, path: Path) -> Bundle:
        """Return the model at a path: a listed one, or for clients on this machine any model.

        The answer for a path that is not listed depends on its text alone, or anybody who reaches
        the server could ask which files exist.
        """
        if not name.strip().startswith(("/", "~")):
            # it would be looked for in the server's folder, which is not the client's
            raise InvalidModelRef(INVALID_NAME)
        whole = Path(os.path.normpath(path))  # follows no links
        rest_on(whole.parent)
        for bundle in Context().run(self.library.list):  # it does not rest on all
            # a model that was created from another one lies at the same path
            if bundle.base is None and whole in (bundle.path, bundle.path.resolve()):
                return bundle
        if not self._in_use.now.guards.loopback:
            raise ModelNotFound(name, hint="start the server with --model PATH")
        try:
            if whole.suffix.lower() != ".gguf" and not holds_model(whole):
                raise InvalidModelRef(INVALID_NAME)
            bundle = self.library.find(name)
            self.library.info(bundle)  # whatever its name says: only what can be read is a model
        except OSError:  # longer than a path may be, or in a folder that the server may not read
            raise ModelNotFound(name) from None
        return bundle

    def _all(self) -> list[tuple[Bundle, ModelInfo | None, str]]:
        rows: list[tuple[Bundle, ModelInfo | None, str]] = []
        for bundle in self.library.list():
            try:
                rows.append((bundle, self.library.info(bundle), ""))
            except VllamaError as error:  # a damaged file must not hide the others
                rows.append((bundle, None, error.message))
        return rows
