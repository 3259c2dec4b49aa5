"""A short run in the suite; `python -m tests.chaos.spend --requests 10000` is a long one."""

import pytest

from tests.chaos.spend import GROUPS, Clients, compare, run
from tests.server_process import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_spend_is_exact_through_a_kill(tmp_path):
    assert not run(tmp_path, 600)


def test_the_judge_sees_a_cent_too_much(tmp_path):
    told = {"1": (1000, 400, 10)}
    row = {"user": "1", "group": next(iter(GROUPS)), "requests": 1, "unpriced": 0}
    row |= {"prompt_tokens": 1000, "cached_tokens": 400, "generated_tokens": 10}
    row["spend"] = 0.0105101
    clients = Clients(Server(tmp_path), {}, told)
    assert compare(clients, [row], [row]) == []
    for name, value in (("spend", 0.0105102), ("cached_tokens", 401), ("requests", 2)):
        assert compare(clients, [row | {name: value}], [row])
        assert compare(clients, [row], [row | {name: value}])
    assert compare(clients, [], [])
    assert compare(clients, [row, row | {"user": "2"}], [row])
