"""The nodes of a cluster: each is followed as long as it is one, and chosen from."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import msgspec

from vllama.base import executors, private
from vllama.base.clock import RealClock, wait_for
from vllama.base.errors import VllamaError
from vllama.dialects.ollama.answer_types import LocalModel
from vllama.net.upstream.pool import Upstreams
from vllama.targets.choice import Breakers
from vllama.targets.nodes.choose import ChosenNode, NodeView, choose_node, describe_differing
from vllama.targets.nodes.names import PREFIX, find_nodes
from vllama.targets.nodes.node import SILENT_S, Node, NodeFailed, NodeStops, make_nodes

log = logging.getLogger(__name__)
Names: TypeAlias = Collection[str]
Saved: TypeAlias = dict[str, dict[str, LocalModel]]

RETRY_S = 1.0
MAX_SAVED = 2000  # models of one node, with some 400 bytes each
REFRESH_S = 2.0  # between two lookups of a name, whatever DNS allows to cache
MOST_KNOWN = 20_000
"""The conversations of which it is remembered where they go on."""
HERE = "here"
"""The name of this server among the nodes."""


class Nodes:
    """All nodes but this one, and the choice among them."""

    def __init__(
        self,
        upstreams: Upstreams,
        *,
        local: str | None,
        key: str | None,
        certificates: str = "",
        file: Path,
        look_up: Callable[[str], Awaitable[Mapping[str, str]]] = find_nodes,
        refresh_s: float = REFRESH_S,
    ) -> None:
        """`local` is the name of this server among the nodes; None: it only forwards.

        `key` is the one between the servers, `certificates` the file with those that are accepted,
        `look_up` finds the nodes behind a name in DNS, every `refresh_s`.
        `file` has the nodes' last lists of models, so that those of lost nodes outlive this server.
        """
        self.nodes: dict[str, Node] = {}
        self.name_troubles: dict[str, str] = {}  # why no node is found, by URL with a name
        self._look_up, self._refresh_s = look_up, refresh_s
        self._urls: tuple[str, ...] = ()
        self._found: dict[str, Mapping[str, str]] = {}  # names by URL, by URL with a name in DNS
        self.local = local
        self.breakers: Breakers[str] = Breakers(RealClock())
        self._upstreams = upstreams
        self._key, self._certificates = key, certificates
        self._file, self._saving = file, asyncio.Lock()
        self._saved: Saved = {}  # by URLs, which have no credentials
        with suppress(OSError, msgspec.MsgspecError):  # each node tells its list again
            self._saved = msgspec.json.decode(file.read_bytes(), type=Saved)
        self._differing: set[str] = set()  # models that were logged to differ
        self._changed = asyncio.Event()
        self._changed_s = time.monotonic()
        self._known: dict[tuple[str, object], str] = {}  # by model and conversation, oldest first

    def use(self, urls: Iterable[str]) -> None:
        """Use the nodes at these URLs, or behind their names in DNS, and no others."""
        self._urls = tuple(urls)
        names = [url for url in self._urls if url.startswith(PREFIX)]
        self._found = {url: self._found.get(url, {}) for url in names}
        self.name_troubles = {url: self.name_troubles.get(url, "no lookup yet") for url in names}
        self._use_found()

    def _use_found(self) -> None:
        """Use the listed nodes and those that DNS has given last."""
        before = {(node.name, node.endpoint.url): node for node in self.nodes.values()}
        urls: dict[str, str] = {}
        for url in self._urls:
            urls |= self._found.get(url, {url: ""})
        made = make_nodes(urls, self._key, self._certificates)
        if before.keys() == {(node.name, node.endpoint.url) for node in made}:
            return
        nodes = [before.pop((node.name, node.endpoint.url), node) for node in made]
        for node in before.values():
            log.info("the node %s gets no new requests: it is no longer listed", node.name)
        self.nodes = {node.name: node for node in nodes}
        for node in nodes:
            if not node.seen_s:
                node.disk = self._saved.get(node.endpoint.url, {})
        self._changed_s = time.monotonic()
        self._changed.set()

    async def run(self) -> None:
        """Follow all nodes until canceled; one that is no longer listed finishes its responses."""
        watching: dict[Node, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_names(), name="names of nodes")
            while True:
                self._changed.clear()
                nodes = list(self.nodes.values())
                leaving = [one for one in watching if one not in nodes]
                for node in [one for one in leaving if not one.is_busy]:
                    watching.pop(node).cancel()
                for node in [one for one in nodes if one not in watching]:
                    watch = self._watch(node)
                    watching[node] = group.create_task(watch, name=f"node {node.name}")
                await wait_for(self._changed, RETRY_S if leaving else math.inf)

    async def _follow_names(self) -> None:
        """Look all names up, again and again; the last nodes stay while DNS fails or lists none."""
        while True:
            for url in tuple(self._found):
                found: Mapping[str, str] = {}
                try:
                    found = await self._look_up(url)
                    trouble = "" if found else "DNS lists no node"
                except NodeFailed as error:
                    trouble = error.sentence()
                if url not in self._found:  # settings were read meanwhile
                    continue
                if trouble not in ("", self.name_troubles[url]):
                    log.warning("no nodes are found at %s: %s", url, trouble)
                self.name_troubles[url] = trouble
                self._found[url] = found or self._found[url]
            self._use_found()
            await asyncio.sleep(self._refresh_s)

    async def _watch(self, node: Node) -> None:
        while True:
            try:
                await node.follow(self._upstreams, self._note_disk)
            except (VllamaError, TimeoutError, msgspec.MsgspecError) as error:
                reason = error.sentence() if isinstance(error, VllamaError) else str(error)
                reason = reason or "no response"
                self._lose(node, reason, stops=isinstance(error, NodeStops))
            await asyncio.sleep(RETRY_S)

    async def _note_disk(self) -> None:
        """Log models that differ between nodes, each once; save what the nodes have."""
        differing = self.find_differing()
        for model in differing.keys() - self._differing:
            log.warning("%s", describe_differing(model, differing[model]))
        self._differing = {*differing}
        disks = {node.endpoint.url: node.disk for node in self.nodes.values()}
        lists = {url: dict(islice(disk.items(), MAX_SAVED)) for url, disk in disks.items()}
        if self._list_unresolved():
            lists = self._saved | lists
        if lists == self._saved:
            return
        self._saved, data = lists, msgspec.json.encode(lists)
        try:
            async with self._saving:  # in order
                await executors.upkeep.run(private.replace, self._file, data)
        except OSError as error:
            log.warning("cannot save the models of the nodes: %s", error)

    def find_differing(self) -> dict[str, dict[str, str]]:
        """Return the models that are not the same on all nodes: their digests by node."""
        names = {model for node in self.nodes.values() for model in node.disk}
        return {
            name: {node: model.digest for node, model in copies.items()}
            for name in names
            if differ((copies := self.find_copies(name)).values())
        }

    def find_copies(self, model: str) -> dict[str, LocalModel]:
        """Return a model as it is on the disks of nodes, by their names."""
        return {name: node.disk[model] for name, node in self.nodes.items() if model in node.disk}

    def _lose(self, node: Node, reason: str, *, stops: bool = False) -> None:
        """Send it no more requests; its running answers end here, unless it `stops` by itself."""
        if node.is_up or (not node.seen_s and node.trouble != reason):
            log.warning("node %s is lost: %s", node.name, reason)
        if node.is_up and not stops:
            self._upstreams.abort_answers(node.endpoint, f"node '{node.name}' is lost")
        node.trouble, node.loaded, node.reasons = reason, {}, {}

    def choose(
        self,
        model: str,
        prefix: object,
        local: NodeView | None,
        tried: Names = (),
        only: Names | None = None,
    ) -> ChosenNode | None:
        """Return which node is to answer, none of those `tried`; None: none has the model.

        `only` are the nodes that may answer for it, None: any.
        """
        usable = list(self.find_usable(model, local, tried, only))
        usable = [one for one in usable if self._may_try(one.name)] or usable
        return choose_node(usable, self.find_known(model, prefix))

    def find_usable(
        self, model: str, local: NodeView | None, tried: Names, only: Names | None
    ) -> Iterator[NodeView]:
        """Yield the nodes that have a model and get requests now, this server among them."""
        for node in self.list_up():
            is_meant = node.name not in tried and (only is None or node.name in only)
            if is_meant and not node.is_drained and node.has(model):
                yield node.describe(model)
        if local is not None and (only is None or local.name in only):
            yield local

    def list_away(self, model: str) -> list[Node]:
        """Return the nodes that have the model, but are lost or drained.

        Just after a change of the nodes, if there are none, those that have not told their models.
        """
        away = [node for node in self.nodes.values() if not node.is_up or node.is_drained]
        unheard = [node for node in away if self._begins and not node.seen_s]
        return [node for node in away if model in node.disk] or unheard

    @property
    def _begins(self) -> bool:
        """True while nodes may not have told yet what they have."""
        return time.monotonic() < self._changed_s + SILENT_S

    def find_name_trouble(self, model: str) -> str:
        """Return why no nodes are found behind a name if they may have a model, else ""."""
        may_have = self._begins or any(model in disk for disk in self._saved.values())
        return next(iter(self._list_unresolved()), "") if may_have else ""

    def _list_unresolved(self) -> list[str]:
        names = self.name_troubles.items()
        return [f"no nodes are found at {url}: {why}" for url, why in names if not self._found[url]]

    def list_equal(self, model: str, node: Node, only: Names | None) -> list[str]:
        """Return which of the nodes `only` have the same model as a node."""
        digest = node.disk[model].digest if model in node.disk else None
        same = [name for name, one in self.find_copies(model).items() if one.digest == digest]
        return [name for name in same if only is None or name in only]

    def _may_try(self, name: str) -> bool:
        """Return whether a node has not failed lately, or may be tried again now."""
        return not self.breakers.find_reason(name) or self.breakers.admit(name)

    def remember(self, model: str, prefix: object, name: str) -> None:
        """Note where a conversation goes on."""
        if prefix is None:
            return
        self._known.pop((model, prefix), None)
        self._known[model, prefix] = name
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def find_known(self, model: str, prefix: object) -> str | None:
        """Return the node where a conversation goes on."""
        return self._known.get((model, prefix))

    @property
    def names(self) -> list[str]:
        """The names of all nodes, this server's too."""
        return [*self.nodes, *([self.local] if self.local is not None else [])]

    def find_roomiest(self) -> str | None:
        """Return the node with the most free memory, GPUs first; None if none is up."""
        up = [node for node in self.list_up() if not node.is_drained]
        return max(up, key=lambda node: node.free).name if up else None

    def list_up(self) -> Iterator[Node]:
        """Yield the nodes that answer."""
        return (node for node in self.nodes.values() if node.is_up)


def differ(models: Collection[LocalModel]) -> bool:
    """Return whether models of one name have other contents.

    The digest of a file in a plain folder is made of its time, so that its size decides.
    """
    by_size = any(model.store == "folder" for model in models)
    return len({model.size if by_size else model.digest for model in models}) > 1
