"""Whose request a node takes one of the head for."""

from __future__ import annotations

import pytest

from vllama.accounts.keys.key import ApiKey, Scope, act_for, make_node_key, name_client

NODE = make_node_key("sk-between-the-servers")
ALICE = ApiKey(name="alice", digest="d", priority=3)


def test_a_node_acts_for_the_client_of_the_head() -> None:
    acting = act_for(NODE, name_client(ALICE))
    assert (acting.name, acting.priority, acting.scopes) == ("alice", 3, (Scope.NODE,))
    assert acting.owner not in (NODE.owner, ALICE.owner)
    assert act_for(NODE, name_client(None)) is NODE


@pytest.mark.parametrize("text", ["", "alice", "x alice", "3 ", "3 a b/c", "-1 alice", "3 ../x"])
def test_what_no_head_sends_changes_nothing(text: str) -> None:
    assert act_for(NODE, text).name == "node"


def test_turns_are_bounded() -> None:
    assert act_for(NODE, "999999999 alice").priority == 100
    assert act_for(NODE, "0 alice").priority == 1


def test_no_other_key_acts_for_anybody() -> None:
    assert act_for(ALICE, "1 bob") is ALICE
