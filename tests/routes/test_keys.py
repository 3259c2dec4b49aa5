"""Keys of the server itself, and the identity of a request."""

from __future__ import annotations

import pytest

from tests.manual_clock import ManualClock
from vllama.accounts.keys.key import Scope
from vllama.accounts.keys.ring import KeyRing
from vllama.base.log_context import MAX_LENGTH, Trace, is_usable_id
from vllama.routes.route import RouteKind
from vllama.routes.route_table import ROUTES, RouteTable

KEYS = ("sk-one", "sk-two")


@pytest.mark.parametrize(
    ("path", "authorization", "api_key", "allowed"),
    [
        ("/api/tags", "", "", False),
        ("/api/version", "", "", False),
        ("/metrics", "", "", False),
        ("/", "", "", True),
        ("/health", "", "", True),
        ("/livez", "", "", True),
        ("/readyz", "", "", True),
        ("/health/", "", "", False),
        ("/api/tags", "Bearer sk-one", "", True),
        ("/api/tags", "bearer  sk-two ", "", True),
        ("/api/tags", "Bearer sk-on", "", False),
        ("/api/tags", "Bearer sk-one2", "", False),
        ("/api/tags", "Bearer ", "", False),
        ("/api/tags", "Basic sk-one", "", False),
        ("/api/tags", "sk-one", "", False),
        ("/api/tags", "Bearer sk-\u00f6ne", "", False),
        ("/v1/messages", "", "sk-one", True),
        ("/v1/models", "", "sk-two", True),
        ("/v1/messages", "", "sk-three", False),
        ("/v1/messages", "Bearer wrong", "sk-one", True),
    ],
)
def test_who_may_ask(path: str, authorization: str, api_key: str, allowed: bool) -> None:
    ring, free = (KeyRing(plain, None, ManualClock()) for plain in (KEYS, ()))
    keyless = RouteTable().find("GET", path).keyless
    assert (keyless or ring.admits(ring.find(authorization, api_key))) is allowed
    assert free.admits(free.find(authorization, api_key))


def test_every_handler_needs_a_scope_that_was_chosen_for_it() -> None:
    """A new route needs the scope admin until its row of the table says otherwise."""
    needs_admin = {
        f"{route.handler.__module__.rpartition('.')[2]}.{route.handler.__name__}"
        for route in ROUTES
        if route.scopes == (Scope.ADMIN,)
    }
    assert needs_admin == {
        "state.get_capture",
        "state.list_captures",
        "cloud.push",
        "create.copy",
        "create.create",
        "create.head_blob",
        "create.upload_blob",
        "logs.get_log",
        "logs.list_logs",
        "nodes.drain",
        "nodes.undrain",
        "models.stop_pull",
        "keys.add_key",
        "keys.change_key",
        "keys.revoke_key",
        "keys.rotate_key",
        "settings.change_settings",
        "settings.list_settings",
    }
    writes = [route for route in ROUTES if route.kind is RouteKind.WRITES]
    assert writes and {route.scopes for route in writes if not route.on_nodes} == {(Scope.ADMIN,)}
    for_nodes = {route.handler.__name__ for route in writes if route.on_nodes}
    assert for_nodes == {"pull", "delete"}, "what the head of a cluster may have changed"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc-123", True),
        ("req_01HXYZ/!~", True),
        ("x" * MAX_LENGTH, True),
        ("x" * (MAX_LENGTH + 1), False),
        ("", False),
        ("two words", False),
        ("tab\there", False),
        ("line\nfeed", False),
        ("\x1b[2J", False),
        ("gr\u00fcn", False),
        ("\x7f", False),
    ],
)
def test_which_ids_of_clients_are_kept(given: str, kept: bool) -> None:
    assert is_usable_id(given) is kept


def test_each_call_to_an_engine_has_an_id_of_its_own() -> None:
    trace = Trace("abc")
    assert [trace.next_call() for _ in range(3)] == ["abc", "abc-2", "abc-3"]
    # some engines refuse a second request of a name while the first one runs
    assert Trace("abc", "abc-9f").next_call() == "abc-9f"
