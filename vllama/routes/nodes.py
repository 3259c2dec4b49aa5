"""The nodes of a cluster, as clients see them: one server with the models of all.

A request about a model goes to the node that `targets.nodes` chooses, as it is; this server is one
of the nodes, which is reached without a hop. Imported only where there are nodes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import UNSET

from vllama.accounts.keys.key import FORWARDED, hash_seed, name_client
from vllama.accounts.keys.ring import check_model, may_use
from vllama.base import log_context
from vllama.base.errors import (
    BadRequest,
    Busy,
    EngineError,
    ModelNotFound,
    VllamaError,
)
from vllama.base.spelling import find_named
from vllama.base.units import rfc3339_local
from vllama.chat.replay import Departed
from vllama.chat.request import Call
from vllama.dialects.events import ModelRow
from vllama.dialects.ollama.answer_types import LoadedModel, LocalModel
from vllama.machine.types import name_pool
from vllama.net.http.request import Request
from vllama.plan.distribution import list_usable
from vllama.routes.events.rows import make_rows
from vllama.routes.inference.demand import complete_name, find_prefix, read_asked
from vllama.routes.route import Dialect, Route, RouteKind
from vllama.routes.sign_of_life import fail_stream, show_life
from vllama.targets.nodes.choose import ChosenNode, NodeView
from vllama.targets.nodes.forward import Forward, NodeRefuses
from vllama.targets.nodes.node import Node, describe_row
from vllama.targets.nodes.watch import Names, Nodes

if TYPE_CHECKING:
    from vllama.routes.context import Gateway
    from vllama.routes.recording.running import RunningRequest


log = logging.getLogger(__name__)

LOST_RETRY_S = 5.0
UNLOAD_LIMIT_S = 5.0
STORED = ""
"""What stands for a model where the node of a stored response is remembered."""


# -- forwarding -----------------------------------------------------------------------------------


async def forward_to_node(gateway: Gateway, request: Request, running: RunningRequest) -> bool:
    """Let another node answer a request about a model, if one is chosen; return whether it has.

    A node that is lost before its first byte, or answers with an error of its own, is replaced
    once, unless the request is about the files of that very node; one that denies a model of its
    list, by all others in turn. A stream whose node is lost goes on at a node with the same model
    (`targets.nodes.sent_events`). What a head has sent is answered here, so that heads which name
    each other do not send a request round and round. Raises what no other node could help with.
    """
    nodes, route = gateway.nodes, running.route
    assert nodes is not None
    is_forwarded = bool(request.header(FORWARDED))
    if route.dialect is Dialect.RESPONSES and route.kind is not RouteKind.MODEL:
        return not is_forwarded and await _forward_stored(gateway, nodes, request, running)
    body = await request.body()
    request.put_back(body)
    try:
        asked = await read_asked(request, route, body)
    except VllamaError:
        return False  # the handler says what is wrong
    given = asked.model or asked.name or ""
    if is_forwarded:
        await refuse_own(gateway, route, given)
        return False
    model, prefix = complete_name(given), find_prefix(asked)
    local = await describe_here(gateway, nodes, given)
    place = find_place(nodes, request, route, model, local)
    if asked.previous_response_id:  # only the server that has stored it can go on from it
        place = nodes.find_known(STORED, asked.previous_response_id) or nodes.local
    require_node(nodes, place)
    only: Names | None = find_pins(gateway, given)
    if route.is_free is not None and await route.is_free(request):
        check_model(given, model)
        await unload_on_all(gateway, nodes, request, model, body)
    failure: VllamaError | None = None
    answer: Forward | None = None  # a stream that has begun
    tried, may_move = list[str](), place is None
    while True:
        choice = nodes.choose(model, prefix, local, tried, only) if place is None else None
        name = choice.name if choice is not None else place
        if name is None and failure is not None:
            if isinstance(failure, NodeRefuses):
                if failure.status == ModelNotFound.status:
                    refuse_away(nodes, given, only)
                failure.pass_on()  # the other node was lost meanwhile, or lacks the model too
            elif answer is None:
                refuse_away(nodes, given, only, {tried[-1]: failure.message.partition(": ")[2]})
            else:
                fail_stream(request, route.dialect, failure)
            return True
        if name is None:
            await refuse_missing(gateway, request, route, given, local, only)
            return False
        if name == nodes.local:
            nodes.remember(model, prefix, name)
            return False
        check_model(given, model)
        if choice is not None:
            nodes.nodes[name].reasons[model] = choice.reason
        log_context.model.set(model)
        gateway.meter.admit(running, model)
        others = nodes.find_usable(model, local, [*tried, name], only)
        has_other = any(one.has_model and not one.fails for one in others)
        node = nodes.nodes[name]
        if answer is not None:
            log.info("%s: node %s was lost; response resumes on %s", model, tried[-1], name)
            gateway.metrics.resumed.add((model,))
            running.resumed += 1
        forward = answer or Forward(request, name_client(running.access))
        try:
            with show_life(gateway, request, given, streams=asked.streams(route)):
                stored = await _send(
                    gateway, node, forward, running, model, body, may_move and has_other
                )
        except VllamaError as error:
            tried.append(name)
            if isinstance(error, EngineError) and not isinstance(error, Departed):
                gateway.metrics.node_errors.add((name,))
                if not isinstance(error, NodeRefuses):
                    nodes.breakers.note_failure(name)
            if request.status:
                failure = failure if isinstance(error, Departed) and failure else error
                most = gateway.in_use.config.resume if forward.may_resume(error) else 0
                if place is not None or running.resumed >= most or gateway.stopping:
                    fail_stream(request, route.dialect, failure)
                    return True
                answer, local, only = forward, None, nodes.list_equal(model, node, only)
                continue
            if isinstance(failure, NodeRefuses) and not may_move:
                failure.pass_on()  # the other node is lost, which was not known yet
                return True
            if not (may_move and isinstance(error, EngineError)):
                raise
            failure, may_move = error, error.status == ModelNotFound.status
            running.start_over()
        else:
            nodes.breakers.note_success(name)
            nodes.remember(model, prefix, name)
            nodes.remember(STORED, stored, name)
            return True


async def refuse_missing(
    gateway: Gateway, request: Request, route: Route, given: str,
    local: NodeView | None, only: Names | None,
) -> None:  # fmt: skip
    """Raise why no node may answer for a model; return if the handler here is to say so."""
    nodes, model = gateway.nodes, complete_name(given)
    assert nodes is not None
    if route.kind is not RouteKind.WRITES or request.method == "DELETE":
        refuse_away(nodes, given, only)
    if only is not None and (local or any(node.has(model) for node in nodes.list_up())):
        raise ModelNotFound(given, hint=f"the model's settings allow only {', '.join(only)}")
    await refuse_own(gateway, route, given)


async def refuse_own(gateway: Gateway, route: Route, given: str) -> None:
    """Raise ModelNotFound for a model on the disk of a head that only forwards."""
    if route.kind is not RouteKind.MODEL:
        return
    try:
        bundle = (await gateway.catalog.find(given, trusted=True)).bundle
    except VllamaError:
        return  # it may be a chain of models
    if not gateway.offers(bundle):
        raise ModelNotFound(given, hint="this server does not start engines (--no-local)")


def refuse_away(nodes: Nodes, given: str, only: Names | None, lost: Mapping[str, str] = {}) -> None:
    """Raise Busy if the nodes with the model get no requests now, or were just `lost`: why."""
    model = complete_name(given)
    away = {
        node.name: node.trouble or f"it is drained (vllama nodes undrain {node.name})"
        for node in nodes.list_away(model)
        if only is None or node.name in only
    }
    away |= lost
    if not away:
        if why := nodes.find_name_trouble(model):
            raise Busy(f"cannot use '{given}' now: {why}", retry_after_s=LOST_RETRY_S)
        return
    name, reason = next(iter(away.items()))
    told = f"only node '{name}' {'has' if only is None else 'may serve'} it, and {reason}"
    if not lost and model not in nodes.nodes[name].disk:
        told = f"node '{name}' may have it but has not responded yet"
    elif len(away) > 1:
        told = f"none of its nodes can respond: {'; '.join(map(': '.join, away.items()))}"
    raise Busy(f"cannot use '{given}' now: {told}", retry_after_s=LOST_RETRY_S)


def require_node(nodes: Nodes, name: str | None) -> None:
    """Raise Busy while the node that alone can answer is lost; this server never is, nor None."""
    if name is None or name == nodes.local:
        return
    trouble = nodes.nodes[name].trouble if name in nodes.nodes else "it is no longer a node"
    if trouble:
        raise Busy(f"cannot use node '{name}' now: {trouble}", retry_after_s=LOST_RETRY_S)


async def unload_on_all(
    gateway: Gateway, nodes: Nodes, request: Request, model: str, body: bytes
) -> None:
    """Unload a model on every node that has it loaded."""
    for node in [one for one in nodes.list_up() if one.find_row(model)]:
        with gateway.upstreams.use_pool(node.endpoint) as pool, suppress(VllamaError):
            await pool.fetch(Call(path=request.path, body=body), limit_s=UNLOAD_LIMIT_S)


async def _forward_stored(
    gateway: Gateway, nodes: Nodes, request: Request, running: RunningRequest
) -> bool:
    """Let the node that has stored a response answer a request about it."""
    name = nodes.find_known(STORED, request.path.split("/")[3])
    if name is None or name not in nodes.nodes:
        return False
    require_node(nodes, name)
    forward = Forward(request, name_client(running.access))
    await _send(gateway, nodes.nodes[name], forward, running, "", await request.body())
    return True


async def choose_now(gateway: Gateway, model: str) -> ChosenNode | None:
    """Return which node would answer the next request for a model, and why. Raises Busy."""
    assert gateway.nodes is not None
    local = await describe_here(gateway, gateway.nodes, model)
    only = find_pins(gateway, model)
    choice = gateway.nodes.choose(complete_name(model), None, local, only=only)
    if choice is None:
        refuse_away(gateway.nodes, model, only)
    return choice


def find_pins(gateway: Gateway, model: str) -> tuple[str, ...] | None:
    """Return the nodes that may answer for a model, by the settings; None: any."""
    return gateway.in_use.library.tables.find([model]).nodes


def find_place(
    nodes: Nodes, request: Request, route: Route, model: str, local: NodeView | None
) -> str | None:
    """Return the node whose files a request is about: the one that it names, or the only one.

    None for requests that any node with the model may answer. Raises NotFound, BadRequest.
    """
    if not route.on_nodes:
        return None
    named = request.read_query().get("node")
    if named is not None:
        return find_named("node", named, {each: each for each in nodes.names})
    if route.kind is not RouteKind.WRITES:
        return None
    owners = [node.name for node in nodes.list_up() if model in node.disk]
    owners += [local.name] if local is not None else []
    if request.method == "DELETE" and len(owners) > 1:
        raise BadRequest(
            f"cannot remove '{model}': several nodes have it: {', '.join(owners)}",
            hint="specify the node: vllama rm MODEL --node NAME",
        )
    if owners:
        return owners[0]
    return nodes.find_roomiest() if request.method == "POST" and nodes.local is None else None


async def _send(
    gateway: Gateway,
    node: Node,
    answer: Forward,
    running: RunningRequest,
    model: str,
    body: bytes,
    may_refuse: bool = False,
) -> str | None:
    """Forward a request; return the id of the response that the node has stored, if it has."""
    running.model, running.is_running = model, True
    if not running.answers:  # else it goes on
        running.follow(answer, answer.tally)
    with gateway.upstreams.use_pool(node.endpoint) as pool, node.counts(model):
        try:
            await answer.run(pool, body, may_refuse=may_refuse)
        finally:
            if answer.status == ModelNotFound.status:
                node.disk_changed.set()  # it has denied a model of its list
    is_stored = running.route.dialect is Dialect.RESPONSES
    return f"resp_{hash_seed(answer.seed.encode())}" if is_stored else None


async def describe_here(gateway: Gateway, nodes: Nodes, model: str) -> NodeView | None:
    """Return this server as a node; None if it only forwards, or does not have the model."""
    if nodes.local is None:
        return None
    try:
        bundle = (await gateway.catalog.find(model, trusted=True)).bundle
    except VllamaError:
        return None
    row = next(
        (
            row
            for row in make_rows(
                gateway.scheduler.list_models(), gateway.scheduler.list_failures()
            ).values()
            if bundle.name in (row.name, *row.other_names)
        ),
        None,
    )
    platform, free = gateway.facts.platform, gateway.scheduler.free
    gpus = sum(free.get(name_pool(gpu.index), gpu.free_bytes) for gpu in list_usable(platform))
    room = (gpus, free.get("ram", platform.ram_available_bytes))
    return describe_row(nodes.local, row, bundle.size_bytes, room)


# -- the models of all nodes ----------------------------------------------------------------------


def list_elsewhere(gateway: Gateway, here: set[str]) -> Iterator[LocalModel]:
    """Yield the models on other nodes' disks, each once, that this server does not have."""
    for node in gateway.nodes.list_up() if gateway.nodes is not None else ():
        for model in node.disk.values():
            if model.name not in here and may_use(model.name):
                here.add(model.name)
                yield model


def list_loaded_elsewhere(gateway: Gateway) -> Iterator[LoadedModel]:
    """Yield the models in other nodes' memory, each with the node's name."""
    # a busy model has no expiry yet: it is shown with the usual keep-alive
    usual_s = time.time() + gateway.facts.settings.keep_alive_s
    for node in gateway.nodes.list_up() if gateway.nodes is not None else ():
        for row in node.loaded.values():
            if row.state != "failed" and may_use(row.name):
                yield _as_loaded(row, node, math.inf if row.pinned else usual_s)


def _as_loaded(row: ModelRow, node: Node, expires_s: float) -> LoadedModel:
    fields = {name: getattr(row, name) for name in LoadedModel.__struct_fields__}
    return LoadedModel(
        **fields
        | {
            "node": node.name,
            "node_reason": node.reasons.get(row.name.lower(), UNSET),
            "expires_at": row.expires_at or rfc3339_local(expires_s),
        },
    )
