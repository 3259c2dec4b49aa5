"""Whose request a node takes one of the head for, and a server one of a proxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.manual_clock import ManualClock
from vllama.accounts.keys.key import (
    ApiKey,
    Scope,
    act_for,
    act_for_user,
    make_node_key,
    name_client,
)
from vllama.accounts.keys.ring import KeyRing
from vllama.accounts.keys.store import add_key, change_keys

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


EMAIL, USER = b"x-forwarded-email", b"x-forwarded-user"


@pytest.mark.parametrize(
    ("trusts", "headers", "user"),
    [
        (True, {EMAIL: "ann@x.org", USER: "4711"}, "ann@x.org"),
        (True, {EMAIL: " ", USER: " Ann Smith "}, "Ann Smith"),
        (True, {USER: "Zoë".encode().decode("latin-1")}, "Zoë"),
        (True, {USER: "a\x00b"}, ""),
        (True, {EMAIL: "a" * 255}, ""),
        (True, {}, ""),
        (False, {EMAIL: "ann@x.org", USER: "4711"}, ""),
    ],
)
def test_the_user_of_a_proxys_key(trusts: bool, headers: dict[bytes, str], user: str) -> None:
    key = ApiKey(name="web", digest="d", owner="own", trusts_user=trusts)
    acting = act_for_user(key, lambda name: headers.get(name, ""))
    assert (acting.user, acting.name, acting.identity) == (user, "web", "own")


def test_what_goes_on_after_a_request_is_its_users(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    fields = {"trusts_user": True}
    key = change_keys(file, lambda keys: add_key(keys, "web", "sk-of-the-proxy", fields, 0.0))
    ring = KeyRing((), file, ManualClock(1.0))
    for user in ("", "ann@x.org", "Ann Smith"):
        found = ring.find_owner(f"{key.owner} {user}".rstrip(), "web")
        assert found is not None and (found.user, found.owner) == (user, key.owner)
    assert ring.find_owner(f"other {key.owner}", "web") is None
