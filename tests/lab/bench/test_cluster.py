"""The simulation of `bench.cluster`: no request is lost, and one seed has one result."""

from __future__ import annotations

import pytest

from bench.cluster import RULES, Cluster


@pytest.mark.parametrize("name", RULES)
def test_every_request_is_answered(name: str) -> None:
    cluster = Cluster(RULES[name], 0.7, nodes=20, requests=400, seed=1)
    told = cluster.run()
    assert told["requests"] >= 400
    assert len(cluster.waits) == cluster.sent - 120  # those of the warm-up do not count
    assert min(cluster.waits) >= 0
    assert not any(node.requests or node.waiting for node in cluster.nodes.values())
    again = Cluster(RULES[name], 0.7, nodes=20, requests=400, seed=1).run()
    assert told | {"choice_us": 0} == again | {"choice_us": 0}
