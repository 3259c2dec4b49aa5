"""The other machines of a cluster, where this server is its head; else nothing of it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from vllama.config import Config, read_node_key
from vllama.routes.context import Gateway
from vllama.supervise.probe import trust_only

Keep = Callable[[str, Callable[[], Awaitable[None]]], asyncio.Task[None]]
"""Runs something until the server ends, by a name."""


def follow_nodes(gateway: Gateway, keep: Keep) -> list[asyncio.Task[None]]:
    """Use the nodes that the settings name; after a reload, those of then.

    Returns what runs for it from now on.
    """
    config = gateway.in_use.config
    if gateway.nodes is not None:
        gateway.nodes.use(config.nodes)
        return []
    if not config.is_head:
        return []
    from vllama.targets.nodes.watch import HERE, Nodes  # only where there are nodes

    nodes = gateway.nodes = Nodes(
        gateway.upstreams,
        local=None if config.no_local else HERE,
        key=read_node_key(config),
        certificates=str(config.node_certs) if config.node_certs else "",
    )
    nodes.use(config.nodes)
    return [keep("nodes", nodes.run)]


def check_cluster(config: Config) -> None:
    """Raise ConfigError for what would keep the nodes from being used."""
    if config.node_certs:
        trust_only(str(config.node_certs))
