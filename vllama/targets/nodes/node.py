"""A node of a cluster: what it has on its disk and in memory, and whether it is alive.

Everything comes from the event stream that every vllama has, and from its `/api/tags` whenever the
stream tells of a change. The open stream is also the sign of life: something comes at least every
two seconds, and a node that says nothing for `SILENT_S` is lost, along with its running answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import msgspec

from vllama.base.clock import wait_for
from vllama.base.errors import EngineError, VllamaError
from vllama.dialects.events import ChangedModels, ModelRow, Pool, Sample, Snapshot
from vllama.dialects.ollama.answer_types import LocalModel, Tags
from vllama.net.upstream.pool import Upstream, Upstreams
from vllama.supervise.spec import Endpoint
from vllama.targets.nodes.choose import NodeView

log = logging.getLogger(__name__)

EVENTS = "/api/events?events=models,samples"
SILENT_S = 6.0
ASK_LIMIT_S = 5.0
LATE_S = 1.0
"""How old a row may be: the events of a node come every half second."""
MOST_ENDED = 1000


class NodeFailed(EngineError):
    """A node cannot be used."""


class NodeStops(NodeFailed):
    """A node is stopping: it takes no new requests, and finishes its answers."""


class _Stream:
    """The sink of an event stream: applies what it tells to its node, within the callback."""

    has_begun = False
    wants_headers = False

    def __init__(self, node: Node) -> None:
        self._node = node
        self._rest = b""
        self._status = 0
        self.fresh = asyncio.Event()  # set by every event
        self.ended: VllamaError | None = None

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status = status
        if status != 200:
            self._end(_explain(self._node.name, status))

    def on_data(self, data: bytes) -> None:
        if self._status != 200:
            return
        *events, self._rest = (self._rest + data).split(b"\n\n")
        try:
            for event in events:
                self._node.take(event)
        except (ValueError, RecursionError) as error:
            reason = f"cannot use node '{self._node.name}': it is not a vllama server ({error})"
            self._end(NodeFailed(reason, hint="use --upstream for other servers"))
        self.fresh.set()

    on_last = on_data

    def on_end(self) -> None:
        self._end(NodeStops(f"cannot follow node '{self._node.name}': it is stopping"))

    def on_lost(self, error: EngineError) -> None:
        self._end(error)

    def _end(self, error: VllamaError) -> None:
        self.ended = self.ended or error
        self.fresh.set()


class Node:
    """One node. `trouble` says why it gets no requests, "" while it does."""

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self.name = name
        self.endpoint = endpoint
        self.version = ""
        self.trouble = "no response yet"
        self.is_drained = False
        self.seen_s = 0.0  # Unix time of the last event
        self.loaded: dict[str, ModelRow] = {}
        self.disk: dict[str, LocalModel] = {}
        self.pools: Mapping[str, Pool] = {}
        self.reasons: dict[str, str] = {}  # why it got the last request, by model
        self.disk_changed = asyncio.Event()
        self._sent: Counter[str] = Counter()  # requests under way, by model
        self._ended: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MOST_ENDED))

    @contextmanager
    def counts(self, model: str) -> Iterator[None]:
        """Count a request that is sent there: the row of the model tells of it a little later."""
        self._sent[model] += 1
        try:
            yield
        finally:
            self._sent[model] -= 1
            self._ended[model].append(time.monotonic())

    def _count_requests(self, model: str, told: int) -> int:
        """Return how many requests a model has now: ours, and those of others.

        The row may still count some of ours that have ended.
        """
        since_s = time.monotonic() - LATE_S
        ended = sum(1 for ended_s in self._ended.get(model, ()) if ended_s > since_s)
        return self._sent[model] + max(0, told - self._sent[model] - ended)

    @property
    def is_up(self) -> bool:
        """True if it answers, drained or not."""
        return not self.trouble

    @property
    def is_busy(self) -> bool:
        """True while it runs requests of this server."""
        return any(self._sent.values())

    @property
    def free(self) -> tuple[int, int]:
        """The free bytes of its GPUs and of its RAM."""
        gpus = (pool.free for name, pool in self.pools.items() if name.startswith("gpu"))
        return sum(gpus), self.pools["ram"].free if "ram" in self.pools else 0

    def take(self, event: bytes) -> None:
        """Apply one event. Raises ValueError for what is none of vllama's."""
        self.seen_s = time.time()
        fields = {
            name: value
            for line in event.split(b"\n")
            if not line.startswith(b":")
            for name, _, value in (line.partition(b": "),)
        }
        kind, data = fields.get(b"event", b""), fields.get(b"data", b"")
        if kind == b"snapshot":
            snapshot = msgspec.json.decode(data, type=Snapshot)
            self.version = snapshot.version
            self.loaded = {row.name: row for row in snapshot.models or ()}
            for sample in (snapshot.samples or ())[-1:]:
                self.pools = sample.memory
            self.disk_changed.set()
        elif kind == b"models":
            changed = msgspec.json.decode(data, type=ChangedModels)
            self.loaded |= {row.name: row for row in changed.models}
            for name in changed.gone:
                self.loaded.pop(name, None)
        elif kind == b"library":
            self.disk_changed.set()
        elif kind == b"sample":
            self.pools = msgspec.json.decode(data, type=Sample).memory

    def find_row(self, model: str) -> ModelRow | None:
        """Return the row of a model that it has loaded, is loading, or could not load."""
        for row in self.loaded.values():
            if any(model == name.lower() for name in (row.name, *row.other_names)):
                return row
        return None

    def has(self, model: str) -> bool:
        """Return whether it has a model, on its disk or in memory."""
        return model in self.disk or self.find_row(model) is not None

    def describe(self, model: str) -> NodeView:
        """Return its state for the choice."""
        on_disk = self.disk.get(model)
        size = on_disk.size if on_disk is not None else None
        return describe_row(
            self.name,
            self.find_row(model),
            size,
            self.free,
            lambda told: self._count_requests(model, told),
        )

    async def follow(self, upstreams: Upstreams, on_disk: Callable[[], Awaitable[None]]) -> None:
        """Follow its events for ever; `on_disk` is awaited when its list of models was read.

        Raises VllamaError when it is lost.
        """
        with upstreams.use_pool(self.endpoint) as pool:
            connection = await pool.connect()
            stream = _Stream(self)
            try:
                connection.request(pool.make_head("GET", EVENTS) + b"\r\n", stream)
                while stream.ended is None:
                    stream.fresh.clear()
                    if not await wait_for(stream.fresh, SILENT_S):
                        reason = f"no response from node '{self.name}' for {SILENT_S:g} s"
                        raise NodeFailed(f"cannot continue: {reason}")
                    if self.disk_changed.is_set() and stream.ended is None:
                        self.disk_changed.clear()
                        await self._read_disk(pool)
                        await on_disk()
                raise stream.ended
            finally:
                connection.release()

    async def _read_disk(self, pool: Upstream) -> None:
        async with asyncio.timeout(ASK_LIMIT_S):
            answer = await pool.get("/api/tags")
        if answer.status != 200:
            raise _explain(self.name, answer.status)
        tags = msgspec.json.decode(answer.body, type=Tags)
        self.disk = {model.name.lower(): model for model in tags.models}
        if self.trouble:
            log.info("node %s at %s is up: %s", self.name, self.endpoint.url, self.version)
        self.trouble = ""


def describe_row(
    name: str,
    row: ModelRow | None,
    size: int | None,
    free: tuple[int, int],
    count: Callable[[int], int] = int,
) -> NodeView:
    """Return a node, by the row of a model and the size of its files, where it has them.

    `count` returns the requests there are, by those that the row tells.
    """
    if row is None or row.state == "failed":
        return NodeView(
            name=name, requests=count(0), size_bytes=size, free=free, fails=row is not None
        )
    numbers = (row.slots, row.requests, row.queued)
    slots, requests, queued = (one if isinstance(one, int) else 0 for one in numbers)
    return NodeView(
        name=name,
        loaded=True,
        slots=max(1, slots),
        requests=count(requests + queued),
        size_bytes=size,
        free=free,
        fails=row.state == "backoff",
    )


def _explain(name: str, status: int) -> NodeFailed:
    if status in (401, 403):
        return NodeFailed(
            f"cannot use node '{name}': it rejected the key ({status})",
            hint="use the same --node-key-file on both servers",
        )
    return NodeFailed(f"cannot use node '{name}': it returned status {status}")


def make_nodes(urls: Mapping[str, str], key: str | None, certificates: str = "") -> list[Node]:
    """Return the nodes by URL and name ("": that of the host), with ports where names repeat.

    `key` is the one between the servers, `certificates` the file with those that are accepted.
    """
    parts = [(name, urlsplit(url.rstrip("/"))) for url, name in urls.items()]
    repeats = Counter(name or part.hostname for name, part in parts)
    nodes = []
    for name, part in parts:
        port = part.port or (443 if part.scheme == "https" else 80)
        host = part.hostname or ""
        name = name or host
        name = name if repeats[name] == 1 else f"{name}:{port}"
        endpoint = Endpoint(
            scheme=part.scheme,
            host=host,
            port=port,
            prefix=part.path,
            api_key=key,
            upstream=name,
            is_elsewhere=True,
            is_node=True,
            certificates=certificates,
        )
        nodes.append(Node(name, endpoint))
    return nodes
