"""Keys: what they allow, how they are found, and how their file is changed under a server."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from pathlib import Path

import pytest

from tests.manual_clock import ManualClock
from vllama.accounts.keys import store
from vllama.accounts.keys.key import ApiKey, Scope, digest_secret, make_secret, mask_secret
from vllama.accounts.keys.ring import KeyRing
from vllama.accounts.keys.store import change_keys, read_keys
from vllama.base.errors import ConfigError, NotFound, Unauthorized
from vllama.config import SETTINGS

NOW_S = 1_000_000.0


def add(file: Path, name: str, **fields) -> str:
    secret = make_secret()
    change_keys(file, lambda keys: store.add_key(keys, name, secret, fields, NOW_S))
    return secret


def bearer(ring: KeyRing, secret: str) -> ApiKey | None:
    return ring.find(f"Bearer {secret}", "")


@pytest.mark.parametrize(
    ("patterns", "name", "allowed"),
    [
        ((), "anything", True),
        (("qwen3*",), "qwen3:8b", True),
        (("qwen3*",), "Qwen3:8B", True),
        (("QWEN3*",), "qwen3:8b", True),
        (("qwen3",), "qwen3:latest", True),
        (("qwen3",), "qwen3:8b", False),
        (("qwen3*", "smollm2:135m"), "smollm2:135m", True),
        (("qwen3*",), "hf.co/someone/qwen3", False),
        (("hf.co/*",), "hf.co/someone/qwen3", True),
        (("*",), "/models/x.gguf", True),
    ],
)
def test_which_models_a_key_may_use(patterns: tuple[str, ...], name: str, allowed: bool) -> None:
    assert ApiKey(name="ann", digest="", models=patterns).may_use(name) is allowed


def test_admin_includes_the_other_scopes_but_that_of_engines() -> None:
    reader, admin = (
        ApiKey(name="x", digest="", scopes=(one,)) for one in (Scope.READ, Scope.ADMIN)
    )
    assert [scope for scope in Scope if reader.allows(scope)] == [Scope.READ]
    assert [scope for scope in Scope if not admin.allows(scope)] == [Scope.ENGINE]


def is_required(ring: KeyRing) -> bool:
    """As for a request that comes now."""
    ring.refresh()
    return ring.is_required


def test_a_file_of_keys_is_private_and_has_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "data" / "keys.json"
    secret = add(file, "ann")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret not in file.read_text()
    assert json.loads(file.read_text())["keys"][0]["digest"] == digest_secret(secret)


def test_changes_hold_at_once(tmp_path: Path) -> None:
    file, clock = tmp_path / "keys.json", ManualClock(NOW_S)
    ring = KeyRing((), file, clock)
    assert not ring.is_required
    ring.check(None)
    ann = add(file, "ann")
    assert is_required(ring)
    with pytest.raises(Unauthorized, match="no valid key"):
        ring.check(None)
    found = bearer(ring, ann)
    assert found is not None and found.name == "ann"
    assert ring.find("", ann) == ring.find("Bearer wrong", ann) == found
    assert bearer(ring, ann[:-1]) is None and bearer(ring, "\udcff") is None
    new = make_secret()
    change_keys(file, lambda keys: store.rotate_key(keys, "ann", new))
    rotated = bearer(ring, new)
    assert bearer(ring, ann) is None and rotated is not None and rotated.owner == found.owner
    change_keys(file, lambda keys: store.revoke_key(keys, "ann", NOW_S))
    with pytest.raises(Unauthorized, match="'ann' has been revoked"):
        ring.check(bearer(ring, new))
    assert is_required(ring), "a server whose last key was revoked must not be open to everybody"
    with pytest.raises(ConfigError, match="a revoked key has this name"):
        add(file, "ann")
    change_keys(file, lambda keys: store.remove_key(keys, "ann"))
    assert is_required(ring)
    again = add(file, "ann")
    found_again = bearer(ring, again)
    assert found_again is not None and found_again.owner != found.owner


def test_a_key_expires(tmp_path: Path) -> None:
    file, clock = tmp_path / "keys.json", ManualClock(NOW_S)
    ring = KeyRing((), file, clock)
    secret = add(file, "guest", expires_s=NOW_S + 60)
    ring.check(bearer(ring, secret))
    clock.advance(60)
    with pytest.raises(Unauthorized, match="has expired"):
        ring.check(bearer(ring, secret))


def test_plain_keys_may_do_everything_and_can_be_replaced(tmp_path: Path) -> None:
    ring = KeyRing(("sk-one-and-only", "short"), tmp_path / "keys.json", ManualClock(NOW_S))
    named = add(tmp_path / "keys.json", "ann")
    key = bearer(ring, "sk-one-and-only")
    assert key is not None and key.name == "…only" and key.allows(Scope.ADMIN)
    assert bearer(ring, named) is not None
    ring.use_plain(("sk-another-one!",))
    assert bearer(ring, "sk-one-and-only") is None and bearer(ring, "sk-another-one!") is not None
    assert (mask_secret("k" * 11), mask_secret("k" * 8 + "1234")) == ("…", "…1234")


@pytest.mark.parametrize("damage", ["vanish", "garbage", "half", "folder", "fifo"])
def test_a_file_that_cannot_be_read_opens_nothing(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.json"
    secret = add(file, "ann")
    ring = KeyRing((), file, ManualClock(NOW_S))
    content = file.read_bytes()
    file.unlink()
    match damage:
        case "garbage":
            file.write_bytes(b"\xff\x00 no keys")
        case "half":
            file.write_bytes(content[: len(content) // 2])
        case "folder":
            file.mkdir()
        case "fifo":
            os.mkfifo(file)
    with caplog.at_level(logging.ERROR):
        assert bearer(ring, secret) is not None and is_required(ring)  # it is said once
    assert caplog.text.count("the keys are unchanged") == 1
    if damage != "vanish":
        with pytest.raises(ConfigError, match="cannot read the keys"):
            KeyRing((), file, ManualClock(NOW_S))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "invalid name"),
        ("a b", "invalid name"),
        ("-x", "invalid name"),
        ("ann", "it already exists"),
    ],
)
def test_names_that_cannot_be_added(name: str, message: str, tmp_path: Path) -> None:
    add(tmp_path / "keys.json", "ann")
    with pytest.raises(ConfigError, match=message):
        add(tmp_path / "keys.json", name)
    assert [key.name for key in read_keys(tmp_path / "keys.json")] == ["ann"]


def test_a_key_that_does_not_exist_cannot_be_changed(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    for change in (
        lambda keys: store.rotate_key(keys, "bob", "x"),
        lambda keys: store.revoke_key(keys, "bob", NOW_S),
        lambda keys: store.change_key(keys, "bob", {"concurrent": 1}),
    ):
        with pytest.raises(NotFound, match="key 'bob' not found"):
            change_keys(file, change)


@pytest.mark.parametrize(
    ("values", "scopes"), [(["infer,read"], "infer read"), (["ADMIN", "infer"], "infer admin")]
)
def test_scopes_are_read(values: list[str], scopes: str) -> None:
    assert " ".join(store.read_scopes(values)) == scopes
    for wrong in ([""], ["root"], ["infer,root"]):
        with pytest.raises(ValueError, match="not a scope"):
            store.read_scopes(wrong)


def test_a_rotated_secret_may_go_on_working_for_a_while(tmp_path: Path) -> None:
    file, clock = tmp_path / "keys.json", ManualClock(NOW_S)
    ring = KeyRing((), file, clock)
    secrets = [add(file, "ci", expires_s=NOW_S + 1000, concurrent=2)]

    def rotate(overlap_s: float) -> None:
        new, now_s = make_secret(), clock.time()
        change_keys(
            file,
            lambda keys: store.rotate_key(keys, "ci", new, overlap_s=overlap_s, now_s=now_s),
        )
        secrets.append(new)

    def list_working() -> list[int]:
        for one in (ring, KeyRing((), file, clock)):  # a server that goes on, and a new one
            found = [n for n, secret in enumerate(secrets) if one.admits(bearer(one, secret))]
        return found

    rotate(100)
    assert list_working() == [0, 1]
    old, new = (bearer(ring, secret) for secret in secrets)
    assert old and new and (old.identity, old.concurrent) == (new.identity, 2)
    change_keys(file, lambda keys: store.change_key(keys, "ci", {"concurrent": 3}))
    assert (old := bearer(ring, secrets[0])) and old.concurrent == 3
    clock.advance(99)
    assert list_working() == [0, 1]
    clock.advance(1)
    assert list_working() == [1]
    with pytest.raises(Unauthorized, match="'ci' has been rotated"):
        ring.check(bearer(ring, secrets[0]))
    rotate(500)
    rotate(500)  # the last two work, not three
    assert list_working() == [2, 3]
    rotate(0)
    assert list_working() == [4]
    rotate(10_000)
    clock.advance(900)  # the key's own end comes first
    assert list_working() == []


def test_revoking_ends_both_secrets_of_a_rotated_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    ring = KeyRing((), file, ManualClock(NOW_S))
    old, new = add(file, "ci"), make_secret()
    change_keys(file, lambda keys: store.rotate_key(keys, "ci", new, overlap_s=100, now_s=NOW_S))
    change_keys(file, lambda keys: store.revoke_key(keys, "ci", NOW_S))
    assert not any(ring.admits(bearer(ring, secret)) for secret in (old, new))


@pytest.mark.parametrize(
    ("rotated_at_s", "now_s", "works"),
    [
        (NOW_S, NOW_S - 60, True),  # the clocks of two machines differ a little
        (NOW_S, NOW_S - 400 * 86_400, False),
        (NOW_S + 400 * 86_400, NOW_S, False),  # rotated while the clock was ahead
    ],
)
def test_a_clock_that_jumps_does_not_keep_an_old_secret(
    rotated_at_s: float, now_s: float, works: bool, tmp_path: Path
) -> None:
    file, new = tmp_path / "keys.json", make_secret()
    old = add(file, "ci")
    change_keys(
        file, lambda keys: store.rotate_key(keys, "ci", new, overlap_s=100, now_s=rotated_at_s)
    )
    ring = KeyRing((), file, ManualClock(now_s))
    assert ring.admits(bearer(ring, old)) is works and ring.admits(bearer(ring, new))


def test_only_the_command_opens_a_server_again(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    ring = KeyRing((), file, ManualClock(NOW_S))
    add(file, "ann")
    change_keys(file, lambda keys: store.revoke_key(keys, "ann", NOW_S))
    ring.refresh()
    with pytest.raises(Unauthorized, match="no key exists") as refused:
        ring.check(None)
    assert "vllama keys open" in (refused.value.hint or "")
    change_keys(file, lambda _: None, opens=True)
    for one in (ring, KeyRing((), file, ManualClock(NOW_S))):
        assert not is_required(one)
        one.check(None)
    change_keys(file, lambda keys: store.remove_key(keys, "ann"))
    assert not is_required(ring), "a key that leaves closes nothing"
    file.unlink()
    assert not is_required(ring)
    add(file, "bob")
    assert is_required(ring), "the next key closes it again"


@pytest.mark.parametrize("content", [None, b'{"keys": []}', b'{"keys": [], "open": true}'])
def test_a_server_that_requires_keys_stays_closed(
    content: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_bytes(content)
    with caplog.at_level(logging.ERROR):
        ring = KeyRing((), file, ManualClock(NOW_S), required=True)
    assert "all requests are rejected" in caplog.text and str(file) in caplog.text
    with pytest.raises(Unauthorized, match="requires a key, but no key exists") as refused:
        ring.check(None)
    assert "vllama keys add" in str(refused.value.hint) and "open" not in str(refused.value.hint)
    ring.use_plain(("sk-static-key",))
    ring.check(bearer(ring, "sk-static-key"))
    secret = add(file, "ann")
    ring.check(bearer(ring, secret))
    file.unlink()
    ring.check(bearer(ring, secret))
    assert ring.stays_required


def test_a_refusal_names_every_variable_that_the_commands_read(tmp_path: Path) -> None:
    ring = KeyRing(("sk-one-and-only",), None, ManualClock(NOW_S))
    with pytest.raises(Unauthorized) as refused:
        ring.check(None)
    read = {"api_key", "api_key_file", "client_key"}
    names = {name for one in SETTINGS if one.field in read for name in (one.env, one.foreign)}
    assert set(re.findall(r"[A-Z]+_[A-Z_]+", refused.value.hint or "")) == names - {None}
