"""The handlers of the nodes of a cluster: which there are, and which get no requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from vllama.base import executors
from vllama.base.errors import ModelNotFound, NotFound
from vllama.base.meaning import TEXT, says
from vllama.base.spelling import suggest
from vllama.base.units import rfc3339_local
from vllama.net.http.request import Request
from vllama.routes.route import Parameter, RouteKind, server_route

if TYPE_CHECKING:
    from vllama.routes.context import Gateway
    from vllama.targets.nodes.node import Node

PATH = "/api/nodes/"


class NodeRow(Struct, kw_only=True):
    """A cluster node."""

    name: str
    state: Annotated[str, says("`up`, `draining` or `lost`")]
    trouble: Annotated[str, says("reason for the loss; empty unless lost")]
    version: Annotated[str, says("version of vllama")]
    gpu_free: Annotated[int, says("free GPU memory, in bytes")]
    ram_free: Annotated[int, says("free RAM, in bytes")]
    models: Annotated[list[str], says("models on disk")]
    loaded: Annotated[list[str], says("loaded models")]
    running: Annotated[int, says("running requests")]
    waiting: Annotated[int, says("queued requests")]
    seen_at: Annotated[str | None, says("time of the last contact; null if never")]


class NodeChoice(Struct):
    """The node for the next request to a model."""

    name: str
    reason: Annotated[str, says("reason for the choice")]


class NodeRows(Struct, omit_defaults=True):
    """The cluster nodes of this server."""

    nodes: Annotated[list[NodeRow], says("cluster nodes, by name")]
    here: Annotated[list[str], says("models on this server's disk")] = []
    differing: Annotated[dict[str, dict[str, str]], says("other digests of models, by node")] = {}
    choice: Annotated[NodeChoice | None, says("node for the requested model")] = None


async def list_nodes(gateway: Gateway, request: Request) -> None:
    """List the cluster nodes; with `model`, also return the node for it."""
    nodes = gateway.nodes
    rows = [describe_node(node) for node in nodes.nodes.values()] if nodes is not None else []
    answer = NodeRows(rows, differing=nodes.find_differing() if nodes is not None else {})
    if nodes is not None and nodes.local is not None:
        models = await executors.disk.run(gateway.catalog.library.list)
        answer.here = sorted(model.name for model in models)
    if nodes is not None and (model := request.read_query().get("model")):
        from vllama.routes.nodes import choose_now  # only where there are nodes

        choice = await choose_now(gateway, model)
        if choice is None:
            raise ModelNotFound(model)
        answer.choice = NodeChoice(choice.name, choice.reason)
    request.json(200, answer)


def describe_node(node: Node) -> NodeRow:
    """Return the row of a node."""
    gpu_free, ram_free = node.free
    counts = [(row.requests, row.queued) for row in node.loaded.values()]
    state = "lost" if not node.is_up else "draining" if node.is_drained else "up"
    return NodeRow(
        name=node.name,
        state=state,
        trouble=node.trouble,
        version=node.version,
        gpu_free=gpu_free,
        ram_free=ram_free,
        models=sorted(node.disk),
        loaded=sorted(row.name for row in node.loaded.values() if row.state != "failed"),
        running=sum(one for one, _ in counts if isinstance(one, int)),
        waiting=sum(one for _, one in counts if isinstance(one, int)),
        seen_at=rfc3339_local(node.seen_s) if node.seen_s else None,
    )


async def drain(gateway: Gateway, request: Request) -> None:
    """Drain a node: send it no new requests. Running responses continue."""
    await _set_drained(gateway, request, is_drained=True)


async def undrain(gateway: Gateway, request: Request) -> None:
    """Undrain a node: send it requests again."""
    await _set_drained(gateway, request, is_drained=False)


async def _set_drained(gateway: Gateway, request: Request, *, is_drained: bool) -> None:
    name, _, act = request.path.removeprefix(PATH).rpartition("/")
    known = gateway.nodes.nodes if gateway.nodes is not None else {}
    if name not in known:
        raise NotFound(
            f"no such node: '{name}'",
            hint=suggest(name, known) if known else "add one: vllama serve --node URL",
        )
    was, known[name].is_drained = known[name].is_drained, is_drained
    await gateway.record_act(f"nodes {act}", name, {"drained": was}, {"drained": is_drained})
    request.json(200, describe_node(known[name]))


_name = Parameter("name", "node name, from `GET /api/nodes`")
ROUTES = (
    server_route(
        "GET /api/nodes",
        list_nodes,
        RouteKind.OBSERVES,
        tells=True,
        parameters=(Parameter("model", "model to choose a node for", TEXT),),
        answer=NodeRows,
        errors=(404,),
    ),
    server_route(
        "POST /api/nodes/{name}/drain", drain, parameters=(_name,), answer=NodeRow, errors=(404,)
    ),
    server_route(
        "POST /api/nodes/{name}/undrain",
        undrain,
        parameters=(_name,),
        answer=NodeRow,
        errors=(404,),
    ),
)
