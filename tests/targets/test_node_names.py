"""Nodes that are found by a name in DNS, with a DNS server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from tests.dns_server import DnsServer
from tests.loops import in_loop
from vllama.base.errors import ConfigError
from vllama.config import Config
from vllama.net.upstream.pool import Upstreams
from vllama.server.preflight import check_nodes
from vllama.targets.nodes.names import find_nodes
from vllama.targets.nodes.node import NodeFailed
from vllama.targets.nodes.watch import Nodes

TWO = ("_http._tcp.nodes SRV 0 50 7000 node-0.nodes.test.example.",
       "_http._tcp.nodes SRV 0 50 7001 node-1.nodes.test.example.")  # fmt: skip
LIMIT_S = 20.0


@pytest.mark.parametrize(
    ("url", "records", "found"),
    [
        ("dns+http://nodes:1", (), {}),
        ("dns+http://nodes:1", ["nodes A 127.0.0.2", "nodes A 127.0.0.1"],
         {"http://127.0.0.1:1": "127.0.0.1", "http://127.0.0.2:1": "127.0.0.2"}),
        ("dns+http://nodes", ["nodes A 127.0.0.1"], {"http://127.0.0.1": "127.0.0.1"}),
        ("dns+http://nodes.test.example:1", ["nodes A 127.0.0.1"],
         {"http://127.0.0.1:1": "127.0.0.1"}),
        ("dns+http://nodes:1", ["nodes AAAA fd00::7"], {"http://[fd00::7]:1": "fd00::7"}),
        ("dns+http://nodes:1", ["nodes A 127.0.0.1", "nodes AAAA ::1"],
         {"http://127.0.0.1:1": "127.0.0.1"}),
        ("dns+http://nodes:1", [*TWO, "+node-0.nodes A 127.0.0.5", "+node-1.nodes AAAA fd00::7"],
         {"http://127.0.0.5:7000": "node-0", "http://[fd00::7]:7001": "node-1"}),
        ("dns+http://nodes:1", [*TWO, "node-0.nodes A 127.0.0.5"],
         {"http://127.0.0.5:7000": "node-0"}),  # the other is not there yet
        ("dns+https://nodes:1", [*TWO, "+node-0.nodes A 127.0.0.5", "nodes A 127.0.0.1"],
         {"https://127.0.0.1:1": "127.0.0.1"}),
        ("dns+http://nodes:1/prefix", ["nodes A 127.0.0.1"],
         {"http://127.0.0.1:1/prefix": "127.0.0.1"}),
        ("dns+https://nodes:1", ["nodes A 9.9.9.9"], {"https://9.9.9.9:1": "9.9.9.9"}),
    ],
)  # fmt: skip
@in_loop
async def test_what_a_name_stands_for(url, records, found) -> None:
    async with DnsServer() as server:
        server.records = records
        assert await find_nodes(url, server.resolver) == found


@pytest.mark.parametrize(
    ("records", "told"),
    [(None, "cannot look up 'nodes'"), (["nodes A 9.9.9.9"], "cannot use http at 9.9.9.9")],
)
@in_loop
async def test_what_cannot_be_used_is_told(records, told) -> None:
    async with DnsServer() as server:
        server.records = records
        with pytest.raises(NodeFailed, match=told):
            await find_nodes("dns+http://nodes:1", server.resolver)


def test_certificates_of_nodes_behind_a_name_are_pinned() -> None:
    with pytest.raises(ConfigError, match=r"their addresses"):
        check_nodes(Config(nodes=("dns+https://nodes:1",)))
    check_nodes(Config(nodes=("dns+http://nodes:1",)))


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@in_loop
async def test_nodes_follow_their_name() -> None:
    async with DnsServer() as server:
        look_up = partial(find_nodes, resolver=server.resolver)
        nodes = Nodes(Upstreams(), local=None, key="k", look_up=look_up, refresh_s=0.02)
        nodes.use(["dns+http://nodes:1", "http://box:1"])
        running = asyncio.create_task(nodes.run())
        await until(lambda: "lists no node" in str(nodes.name_troubles))
        assert [*nodes.nodes] == ["box"]
        steps = [
            (["nodes A 127.0.0.1"], {"127.0.0.1"}),
            (["nodes A 127.0.0.1", "nodes A 127.0.0.2"], {"127.0.0.1", "127.0.0.2"}),
            ([*TWO, "+node-0.nodes A 127.0.0.1"], {"node-0"}),
            ([*TWO, "+node-0.nodes A 127.0.0.9"], {"node-0"}),  # restarted elsewhere
            (["nodes A 127.0.0.2"], {"127.0.0.2"}),
        ]
        for server.records, names in steps:
            await until(lambda names=names: {*nodes.nodes} == {*names, "box"})
        kept = nodes.nodes["127.0.0.2"]
        for server.records, told in ((None, "cannot look up"), ((), "lists no node")):
            await until(lambda told=told: told in str(nodes.name_troubles))
            assert nodes.nodes["127.0.0.2"] is kept
        nodes.use(["http://box:1"])
        assert [*nodes.nodes] == ["box"] and not nodes.name_troubles
        running.cancel()
