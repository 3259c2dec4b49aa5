"""Choice of a cluster's node for the next request for a model, with the reason. Pure.

A node is a whole vllama on some machine, this one included. The order is that of
docs/guide/cluster.md; ties go by name, so that the same state gives the same choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

ROOM = 1.2
"""What a model needs in memory, for each byte of its files: weights, context and buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node, as far as one model is concerned.

    `loaded`: it is in memory, or on its way there. It answers `slots` requests at once and has
    `requests`, running and waiting. `size_bytes` are its files there, None without them. `free`
    are the free bytes of the node's GPU or GPUs, and of its RAM. `fails`: its last load there has
    failed, or its engine has ended and is being started again.
    """

    name: str
    loaded: bool = False
    slots: int = 1
    requests: int = 0
    size_bytes: int | None = None
    free: tuple[int, int] = (0, 0)
    fails: bool = False

    @property
    def has_model(self) -> bool:
        """True if the model is in its memory or on its disk."""
        return self.loaded or self.size_bytes is not None

    @property
    def fits(self) -> int:
        """Fit of the model without unloading anything: 2 on GPUs, 1 in RAM, else 0."""
        need = (self.size_bytes or 0) * ROOM
        return 2 if need <= self.free[0] else int(need <= self.free[1])


@dataclass(frozen=True, slots=True)
class ChosenNode:
    """The name of a node, and the reason for it in a few words."""

    name: str
    reason: str


def choose_node(nodes: Sequence[NodeView], known: str | None = None) -> ChosenNode | None:
    """Return the node that is to answer; None if no node has the model.

    `known` has answered the earlier turns of the conversation. Where the model fails on one node,
    others that have it are chosen.
    """
    having = [one for one in nodes if one.has_model]
    nodes = [one for one in having if not one.fails] or having
    steps: tuple[tuple[str, Callable[[NodeView], bool], Callable[[NodeView], float]], ...] = (
        ("the model is loaded there", lambda one: one.loaded and one.requests < one.slots, _busy),
        ("the model is on its disk and fits", lambda one: _on_disk(one) and one.fits > 0, _room),
        ("the model is loaded there, with the shortest queue", lambda one: one.loaded, _busy),
        ("the model is on its disk and fits after unloading others", _on_disk, _room),
    )
    last = next((one for one in nodes if one.name == known), None)
    if last is not None and last.loaded:
        best = min(one.requests for one in nodes if one.loaded)
        # it need not read the conversation again
        if last.requests < last.slots or last.requests <= best + 1:
            return ChosenNode(last.name, "it served this conversation before")
    for reason, suits, cost in steps:
        if found := [one for one in nodes if suits(one)]:
            return ChosenNode(min(found, key=lambda one: (cost(one), one.name)).name, reason)
    return None


def _on_disk(node: NodeView) -> bool:
    return not node.loaded and node.size_bytes is not None


def _busy(node: NodeView) -> float:
    return node.requests


def _room(node: NodeView) -> float:
    """Return the less, the better: GPU before RAM, then the most free memory."""
    kind = node.fits
    return -(kind * 2.0**60 + node.free[0 if kind == 2 else 1])


def describe_differing(model: str, digests: Mapping[str, str]) -> str:
    """Return the sentence that a model is not the same on all nodes."""
    told = ", ".join(f"{digest[:12]} on {node}" for node, digest in digests.items())
    return f"{model} differs between nodes: {told}"
