"""Models of external servers (`--upstream`, `[upstreams.NAME]`), listed from their `/v1/models`.

None of their files is on this disk, so a bundle of this store has no files. Blocking; answers are
cached for a while.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllama.models.names.ref import ModelRef, add_default_tag
from vllama.models.settings import ModelTables, UpstreamSettings, UpstreamTraits
from vllama.models.stores.base import Store
from vllama.models.stores.upstream_server import (
    SCHEME,
    STORE,
    ServerFacts,
    UpstreamServer,
    describe_model,
)
from vllama.models.types import Bundle, UpstreamModel

KEEP_S = 5.0
FACTS_KEEP_S = 60.0
MOST_SHOWN = 1000  # models of one server that are asked for and remembered one by one
SHOWING_S = 5.0  # for asking for models one by one, in one listing; the next one goes on

Row = Mapping[str, Any]
_Found = dict[str, tuple["_Server", Bundle]]


class UpstreamStore(Store):
    """The models that the given servers list, or that the user named.

    The traits of a server hold for its models, except for those that `tables` has for a model.
    """

    name = STORE
    is_elsewhere = True
    is_watched = False

    def __init__(self, servers: Sequence[UpstreamSettings], tables: ModelTables) -> None:
        self._servers = tuple(_Server(each) for each in servers)
        self._tables = tables
        self._lock = threading.Lock()
        self._kept: tuple[float, _Found] = (0.0, {})

    def read_all(self) -> list[Bundle]:
        """Return the models of all servers that answer; equal names are one model.

        What was known before, while another thread asks them: they may be slow to answer. Of a
        server with many models not all are described in full.
        """
        return [bundle for _, bundle in self._find_all().values()]

    def _find_all(self) -> _Found:
        until_s, known = self._kept
        if time.monotonic() < until_s or (until_s and self._lock.locked()):
            return known
        with self._lock:
            until_s, known = self._kept
            if time.monotonic() < until_s:
                return known
            show_until_s = time.monotonic() + SHOWING_S
            found: _Found = {}
            for server in self._servers:
                for number, name in enumerate(server.list_names()):
                    if name not in found:
                        until_s = show_until_s if number < MOST_SHOWN else 0.0
                        found[name] = server, self._describe(server, name, until_s)
            # if no server answers, keep the list: they may be unreachable for a moment only
            found = {
                name: (server, self._place(name, bundle))
                for name, (server, bundle) in (found or known).items()
            }
            # a millisecond for each, as describing them again takes a tenth of that
            self._kept = (time.monotonic() + KEEP_S + len(found) / 1000, found)
            return found

    def find(self, ref: ModelRef) -> Bundle | None:
        """Return the model with this name, with or without `:latest`."""
        wanted = ref.text.strip().lower()
        for name, (server, bundle) in self._find_all().items():
            own = bundle.name.lower()
            if wanted in (own, own.removesuffix(":latest")):
                if bundle.upstream is not None and bundle.upstream.shown == {}:
                    return self._place(name, self._describe(server, name))
                return bundle
        return None

    def find_link(self, text: str) -> Bundle | None:
        """Return the model of a link, `NAME:MODEL` or `URL#MODEL`, None if it is no such link.

        The server need not list the model, nor answer; but the user must have named both, or
        clients could have any address asked for anything.
        """
        for server in self._servers:
            name = server.settings.match(text)
            if name is not None and server.settings.allows(name):
                bundle = self._describe(server, name, link=text)
                model = replace(bundle.upstream or UpstreamModel(), servers=(server.id,))
                return replace(
                    bundle, name=text, path=Path(f"{SCHEME}{server.id}#{name}"), upstream=model
                )
        return None

    def keeps(self, bundle: Bundle) -> tuple[str, str]:
        """Return why a model of another server is not deleted."""
        return "it is on another server", "remove it there"

    def _place(self, name: str, bundle: Bundle) -> Bundle:
        """Return the bundle with the servers that have it: all but those that do not list it."""
        assert bundle.upstream is not None
        having = {server.id: server.find_id(name) for server in self._servers if server.is_listed}
        ids = {server: id_ for server, id_ in having.items() if id_ is not None}
        takes = any(server.id in ids and server.takes_precedence for server in self._servers)
        model = replace(bundle.upstream, servers=tuple(ids), ids=ids, yields=not takes)
        return replace(bundle, upstream=model)

    def _describe(
        self, server: _Server, name: str, show_until_s: float = math.inf, *, link: str = ""
    ) -> Bundle:
        """Return the model that is called `name` here, or asked for by a `link`."""
        id_ = server.find_id(name) or name
        row, facts, shown = server.look_up(id_, show_until_s)
        said = server.settings.traits
        if own := self._tables.find([link or name]).traits:
            said = _overlay(said, own)
        bundle = describe_model(row, facts, shown, said)
        if name == id_:
            return bundle
        return replace(bundle, name=add_default_tag(name), path=Path(f"{SCHEME}{name}"))


class _Server:
    """Cached facts about one server, with their time. Usable from many threads."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self.settings = settings
        self.id, self.url, self.is_listed = settings.id, settings.root, settings.is_listed
        self._client = UpstreamServer(settings.root, settings.key)
        self._lock = threading.Lock()
        self._rows: dict[str, Row] | None = None  # None: it has never answered
        self._rows_until_s = 0.0
        self._answers = False  # when it was asked last
        self._facts: tuple[float, ServerFacts] = (0.0, ServerFacts())
        self._shown: dict[str, tuple[float, Row]] = {}

    @property
    def takes_precedence(self) -> bool:
        """True if its models come before those on this disk.

        Those of a server that was given by its address do while it answers: it may have loaded the
        very files that are in the hub's cache here. A named one's are reached as `NAME:MODEL`.
        """
        return self._answers and not self.settings.name

    def list_names(self) -> Sequence[str]:
        """Return the names of its models here."""
        if not self.is_listed:
            return ()
        if self.settings.models is not None:
            return list(self.settings.models)
        rows = self._read_rows()
        return list(rows or ()) if self._answers else ()

    def find_id(self, name: str) -> str | None:
        """Return the name there of the model called `name` here; None if it lacks it."""
        if self.settings.models is not None:
            return self.settings.models.get(name)
        return name if self._rows is None or name in self._rows else None

    def look_up(self, id_: str, show_until_s: float) -> tuple[Row, ServerFacts, Row]:
        """Return a model's row, what the server says of itself, and what it shows of the model.

        After `show_until_s` it is asked no more for the latter.
        """
        row = (self._read_rows() or {}).get(id_, {"id": id_})
        known = row, self._facts[1], self._shown.get(id_, (0.0, {}))[1]
        if self._rows_until_s and self._lock.locked():  # another thread asks it
            return known
        with self._lock:
            now_s = time.monotonic()
            if not self._answers:
                return known
            until_s, facts = self._facts
            if now_s >= until_s:
                facts = self._client.describe()
                self._facts = (now_s + FACTS_KEEP_S, facts)
            shown: Row = {}
            if facts.shows:
                until_s, shown = self._shown.get(id_, (0.0, {}))
                if until_s <= now_s < show_until_s:
                    shown = self._client.show(id_)
                    self._shown.pop(id_, None)
                    if len(self._shown) >= MOST_SHOWN:
                        del self._shown[next(iter(self._shown))]  # the one asked for longest ago
                    self._shown[id_] = (now_s + FACTS_KEEP_S, shown)
            return row, facts, shown

    def _read_rows(self) -> Mapping[str, Row] | None:
        """Return the rows of its list by id; the last known ones while it does not answer."""
        if self._rows_until_s and self._lock.locked():
            return self._rows
        with self._lock:
            if time.monotonic() >= self._rows_until_s:
                rows = self._client.list_models()
                self._answers = rows is not None
                if rows is not None:
                    self._rows = {row["id"]: row for row in rows}
                else:  # it may be another server when it returns
                    self._facts = (0.0, self._facts[1])
                    self._shown = {id_: (0.0, shown) for id_, (_, shown) in self._shown.items()}
                self._rows_until_s = time.monotonic() + KEEP_S
            return self._rows


def _overlay(below: UpstreamTraits, above: UpstreamTraits) -> UpstreamTraits:
    """Return `below` with all values that are set in `above`."""
    values = {name: getattr(above, name) for name in UpstreamTraits.__slots__}
    return replace(below, **{name: value for name, value in values.items() if value is not None})
