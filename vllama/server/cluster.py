"""The other machines of a cluster, where this server is its head; else nothing of it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.accounts.keys.key import make_secret
from vllama.base import private
from vllama.base.errors import ConfigError
from vllama.config import Config, environ, read_node_key
from vllama.config.address import find_network_host, is_loopback
from vllama.routes.context import Gateway
from vllama.server.reporter import Reporter
from vllama.supervise.probe import trust_only

if TYPE_CHECKING:
    from vllama.targets.nodes.watch import Nodes

log = logging.getLogger(__name__)
Keep = Callable[[str, Callable[[], Awaitable[None]]], asyncio.Task[None]]
"""Runs something until the server ends, by a name."""


def follow_nodes(gateway: Gateway, keep: Keep, reporter: Reporter) -> list[asyncio.Task[None]]:
    """Use the nodes that the settings name, or those that Ray finds; after a reload, those of then.

    Returns what runs for it from now on.
    """
    config = gateway.in_use.config
    if gateway.nodes is not None:
        if not config.cluster:
            gateway.nodes.use(config.nodes)
        weigh_nodes(gateway.nodes, config)
        return []
    if not config.is_head:
        return []
    from vllama.targets.nodes.watch import HERE, Nodes  # only where there are nodes

    config = prepare_ray(config) if config.cluster else config
    nodes = gateway.nodes = Nodes(
        gateway.upstreams,
        local=None if config.no_local else HERE,
        key=read_node_key(config),
        certificates=str(config.node_certs) if config.node_certs else "",
    )
    nodes.use(config.nodes)
    weigh_nodes(nodes, config)
    running = [keep("nodes", nodes.run)]
    if config.cluster and config.node_key_file:
        running.append(keep("ray", open_ray(config, config.node_key_file, nodes.use, reporter)))
    return running


def weigh_nodes(nodes: Nodes, config: Config) -> None:
    """Prefer nodes as the settings say; what they call otherwise than the nodes is named."""
    nodes.weights = dict(config.node_weights)
    unknown = nodes.weights.keys() - nodes.names
    if unknown and not config.cluster:  # Ray may find them later
        known = ", ".join(nodes.names)
        told = ", ".join(sorted(unknown))
        log.warning("node_weights: no node is called %s; choose from %s", told, known)


def check_cluster(config: Config) -> None:
    """Raise ConfigError for what would keep the nodes from being used."""
    if config.node_certs:
        trust_only(str(config.node_certs))
    if config.cluster:
        from vllama.targets.ray.cluster import check_ray

        check_ray("start a cluster")
        find_own_address(config)


def find_own_address(config: Config) -> str:
    """Return the address of this machine in a Ray cluster. Raises ConfigError."""
    is_open = config.host not in ("", "0.0.0.0", "::") and not is_loopback(config.host)
    own = config.host if is_open else find_network_host()
    if own is None:
        raise ConfigError(
            "cannot start a cluster: this machine has no address that others could reach",
            hint="name one with --host",
        )
    return own


def prepare_ray(config: Config) -> Config:
    """Return the settings with a key for the nodes, which is made at the first start."""
    from vllama.targets.ray.cluster import make_token

    folder = config.cluster_dir
    make_token(folder)
    key = folder / "node.key"
    if not key.exists():
        private.replace(key, f"{make_secret()}\n")
    return config if config.node_key_file else replace(config, node_key_file=key)


def open_ray(
    config: Config,
    key: Path,
    use: Callable[[Iterable[str], Collection[str]], None],
    reporter: Reporter,
) -> Callable[[], Awaitable[None]]:
    """Return what keeps a Ray cluster and tells `use` of its servers."""
    from vllama.targets.ray.cluster import PORT, TOKEN, find_nodes

    folder, address = config.cluster_dir, config.ray_address
    own = find_own_address(config)
    where = address if address and address != "auto" else f"{own}:{PORT}"
    reporter.note(
        f"to add a machine, copy {folder / TOKEN} there: vllama join {where} --token-file {TOKEN}"
    )
    return partial(
        find_nodes, use, address=address, own=own, folder=folder, key=key, environ=environ()
    )
