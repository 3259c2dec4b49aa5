"""Keys that are made, changed, rotated and revoked over HTTP: by whom, and never the first one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.server_process import Server
from vllama.accounts.keys.key import ApiKey, Scope
from vllama.base.errors import Forbidden
from vllama.routes.server.keys import check_standing

PLAIN = "sk-of-the-settings"
CHAT = {"model": "plain", "messages": [{"role": "user", "content": "hi"}], "stream": False}


def ask(
    server: Server, key: str, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    shown = {"authorization": f"Bearer {key}"} if key else {}
    status, _, answer = server.request(method, path, body, shown | headers)
    return status, json.loads(answer)


def command(server: Server, *words: str) -> str:
    run = [sys.executable, "-m", "vllama", "keys", *words]
    env = server.env | {"OLLAMA_HOST": server.url}
    return subprocess.run(run, env=env, check=True, capture_output=True, text=True).stdout.strip()


def keys_of(server: Server) -> str:
    return (Path(server.env["VLLAMA_DATA_DIR"]) / "keys.json").read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("keys"), "--api-key", PLAIN, "--capture", "50") as running:
        running.model("plain")
        yield running


@pytest.fixture(scope="module")
def admin(server: Server) -> str:
    secret: str = add(server, PLAIN, "ann", scopes=["admin"])
    return secret


def add(server: Server, by: str, name: str, **fields: Any) -> str:
    status, told = ask(server, by, "POST", "/api/keys", {"name": name, **fields})
    assert status == 200, told
    secret: str = told["secret"]
    return secret


def test_a_key_is_made_changed_rotated_and_revoked(server: Server, admin: str) -> None:
    fields = {"models": ["pl*"], "rate": "60/min", "tokens": "1M/day", "concurrent": 2}
    secret = add(server, admin, "bob", **fields, priority=3, expires="30d")
    assert ask(server, secret, "POST", "/api/chat", CHAT)[0] == 200
    status, row = ask(server, admin, "PATCH", "/api/keys/bob", {"rate": None, "scopes": ["read"]})
    assert status == 200 and row["rate"] is None and row["scopes"] == ["read"]
    assert (row["tokens"], row["concurrent"], row["priority"]) == ("1000000/day", 2, 3)
    assert row["expires_at"] and "secret" not in row
    assert ask(server, secret, "POST", "/api/chat", CHAT)[0] == 403
    status, row = ask(server, admin, "POST", "/api/keys/bob/rotate", {"overlap": "1h"})
    assert status == 200 and row["secret"] != secret and row["replaced"]["until"]
    assert ask(server, secret, "GET", "/api/keys")[0] == 200
    status, row = ask(server, admin, "POST", "/api/keys/bob/rotate")
    assert status == 200 and row["replaced"] is None
    assert ask(server, secret, "GET", "/api/keys")[0] == 401
    last = row["secret"]
    assert ask(server, last, "GET", "/api/keys")[0] == 200
    status, row = ask(server, admin, "DELETE", "/api/keys/bob")
    assert status == 200 and row["revoked_at"]
    assert ask(server, last, "GET", "/api/keys")[0] == 401
    assert ask(server, admin, "DELETE", "/api/keys/bob")[0] == 200
    assert ask(server, admin, "DELETE", "/api/keys/bob")[0] == 404
    server.wait_for("audit: ann: keys rotate bob")


def test_the_commands_see_the_same_keys(server: Server, admin: str) -> None:
    add(server, admin, "seen", rate="5/min")
    rows = {row["name"]: row for row in json.loads(command(server, "list", "--json"))["keys"]}
    told = ask(server, admin, "GET", "/api/keys")[1]
    assert told["required"] and told["own"]["name"] == "ann"
    assert rows == {row["name"]: row for row in told["keys"]}


def test_a_secret_is_shown_once_and_stands_nowhere(server: Server, admin: str) -> None:
    secret = add(server, admin, "once")
    again = ask(server, admin, "POST", "/api/keys/once/rotate")[1]["secret"]
    assert ask(server, again, "POST", "/api/chat", CHAT)[0] == 200
    listed = [
        json.dumps(ask(server, admin, "GET", path)[1])
        for path in ("/api/keys", "/api/config", "/api/captures", "/api/requests/ended")
    ]
    written = [
        path.read_bytes().decode(errors="replace")
        for path in Path(server.env["VLLAMA_DATA_DIR"]).rglob("*")
        if path.is_file()
    ]
    for one in (secret, again, admin, PLAIN):
        assert not [text for text in (*listed, *written, server.output) if one in text]


def test_the_answer_with_a_secret_is_not_stored(server: Server, admin: str) -> None:
    shown = {"authorization": f"Bearer {admin}"}
    headers = server.request("POST", "/api/keys", {"name": "unstored"}, shown)[1]
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("scopes", [["read"], ["infer"], ["infer", "read"]])
def test_the_scope_admin_is_needed(server: Server, admin: str, scopes: list[str]) -> None:
    name = "weak-" + "-".join(scopes)
    weak = add(server, admin, name, scopes=scopes)
    before = keys_of(server)
    for method, path, body in (
        ("POST", "/api/keys", {"name": "more", "scopes": ["admin"]}),
        ("PATCH", f"/api/keys/{name}", {"scopes": ["admin"]}),
        ("POST", f"/api/keys/{name}/rotate", None),
        ("POST", "/api/keys/ann/rotate", None),
        ("DELETE", "/api/keys/ann", None),
    ):
        assert ask(server, weak, method, path, body)[0] == 403, path
        assert ask(server, "", method, path, body)[0] == 401, path
    told = ask(server, weak, "GET", "/api/keys")[1]
    assert [row["name"] for row in told["keys"]] == [name] and told["own"]["scopes"] == scopes
    assert keys_of(server) == before


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://evil.example", "null"])
def test_only_the_servers_own_page_may_change_keys(server: Server, admin: str, origin: str) -> None:
    before = keys_of(server)
    for method, path in (("POST", "/api/keys"), ("DELETE", "/api/keys/ann")):
        assert ask(server, admin, method, path, {"name": "x"}, origin=origin)[0] == 403
    assert keys_of(server) == before
    name = f"from-{len(origin)}"
    assert ask(server, admin, "POST", "/api/keys", {"name": name}, origin=server.url)[0] == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"name": "../x"}, "invalid name"),
        ({"name": "ann"}, "it already exists"),
        ({"name": "n", "rate": "often"}, "cannot use rate: use the form 60/min"),
        ({"name": "n", "scopes": ["root"]}, "cannot use scopes: 'root' is not a scope"),
        ({"name": "n", "expires": "never"}, "cannot use expires"),
        ({"name": "n", "concurrent": 0}, "cannot use concurrent"),
        ({"name": "n", "secret": "sk-mine"}, "unknown field 'secret'"),
        ({"name": "n", "digest": "0" * 64}, "unknown field 'digest'"),
        ({}, "invalid name"),
        ([], "Invalid value for"),
    ],
)
def test_a_wrong_field_is_refused(server: Server, admin: str, body: Any, words: str) -> None:
    before = keys_of(server)
    status, told = ask(server, admin, "POST", "/api/keys", body)
    assert status == 400 and words in told["error"], told
    assert keys_of(server) == before


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("DELETE", None),
        ("PATCH", {"scopes": ["read"]}),
        ("PATCH", {"expires": "1s"}),
    ],
)
def test_a_key_cannot_shut_itself_out(server: Server, admin: str, method: str, body: Any) -> None:
    before = keys_of(server)
    status, told = ask(server, admin, method, "/api/keys/ann", body)
    assert status == 403 and "would lose the scope admin" in told["error"]
    assert keys_of(server) == before
    assert ask(server, admin, "PATCH", "/api/keys/ann", {"rate": "1000/s"})[0] == 200


def test_of_two_that_revoke_each_other_at_once_one_stays(server: Server, admin: str) -> None:
    """The second was an administrator when it was let in, and is none when its turn comes."""
    ann, bob = (
        ApiKey(name=name, digest=name, shown=name, owner=name, scopes=(Scope.ADMIN,))
        for name in ("ann", "bob")
    )
    check_standing(ann, ann, 1.0)
    for now in (
        None,
        replace(bob, revoked_s=0.5),
        replace(bob, owner="another of that name"),
        replace(bob, scopes=(Scope.READ,)),
    ):
        with pytest.raises(Forbidden, match="would lose the scope admin"):
            check_standing(bob, now, 1.0)


def test_an_unknown_key_is_404(server: Server, admin: str) -> None:
    for method, path, body in (
        ("PATCH", "/api/keys/nobody", {"rate": "1/s"}),
        ("POST", "/api/keys/nobody/rotate", None),
        ("DELETE", "/api/keys/nobody", None),
    ):
        assert ask(server, admin, method, path, body)[0] == 404


def test_no_first_key_is_made_over_http(tmp_path: Path) -> None:
    """Whoever may talk to an open server would else take it for himself."""
    with Server(tmp_path) as server:
        assert ask(server, "", "GET", "/api/keys")[1] == {
            "required": False,
            "own": None,
            "keys": [],
        }
        for method, path, body in (
            ("POST", "/api/keys", {"name": "mine", "scopes": ["admin"]}),
            ("PATCH", "/api/keys/mine", {"scopes": ["admin"]}),
            ("POST", "/api/keys/mine/rotate", None),
            ("DELETE", "/api/keys/mine", None),
        ):
            status, told = ask(server, "", method, path, body)
            assert status == 403 and "vllama keys add NAME --scope admin" in told["error"]
        assert ask(server, "", "GET", "/api/tags")[0] == 200
        assert not (tmp_path / "data" / "keys.json").exists()


def test_read_only_holds(tmp_path: Path) -> None:
    with Server(tmp_path, "--api-key", PLAIN, "--read-only") as server:
        status, told = ask(server, PLAIN, "POST", "/api/keys", {"name": "x"})
        assert status == 403 and "this server is read-only" in told["error"]
        assert ask(server, PLAIN, "GET", "/api/keys")[0] == 200


def test_an_open_bind_without_keys_makes_none(tmp_path: Path) -> None:
    with Server(tmp_path, "--host", "0.0.0.0") as server:
        assert ask(server, "", "POST", "/api/keys", {"name": "x"})[0] == 403
