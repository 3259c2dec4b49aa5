"""`vllama keys` and `vllama usage` without a server, and with one that has another data folder."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Vllama
from tests.cli.stub import StubServer
from tests.cli.terminal import Terminal
from vllama.accounts.keys.key import digest_secret
from vllama.accounts.keys.store import change_keys, read_keys
from vllama.accounts.usage.entries import Amounts, Served, encode_entry, name_day
from vllama.accounts.usage.money import UNIT
from vllama.base.errors import ConfigError

NOWHERE = "127.0.0.1:9"
LIMITS = ("--scope", "infer,read", "--models", "qwen3*", "--models", "smollm2:*", "--rate")
LIMITS += ("60/min", "--tokens", "1.5M/day", "--concurrent", "4", "--priority", "3")


@pytest.fixture
def data(tmp_path: Path, env: dict[str, str]) -> Path:
    folder = tmp_path / "data"
    env |= {"VLLAMA_DATA_DIR": str(folder), "OLLAMA_HOST": NOWHERE}
    return folder


def test_a_key_through_its_life(vllama: Vllama, data: Path) -> None:
    added = vllama("keys", "add", "ann", *LIMITS, "--expires", "30d")
    secret = added.stdout.strip()
    assert added.returncode == 0 and secret.startswith("sk-") and len(secret) > 40
    assert (
        "Key for 'ann' (shown only once)" in added.stderr
        and "rejects requests without a key" in added.stderr
    )
    (key,) = read_keys(data / "keys.json")
    assert key.digest == digest_secret(secret)
    shown = json.loads(vllama("keys", "list", "--json").stdout)["keys"][0]
    assert secret[-4:] in shown["shown"] and secret not in json.dumps(shown)
    assert {name: shown[name] for name in ("scopes", "models", "rate", "tokens_per_day")} == {
        "scopes": ["infer", "read"],
        "models": ["qwen3*", "smollm2:*"],
        "rate": "60/min",
        "tokens_per_day": 1_500_000,
    }
    changed = vllama("keys", "change", "ann", "--rate", "none", "--models", "none")
    assert changed.stdout == "changed key 'ann'\n"
    table = vllama("keys").stdout.splitlines()[1].split("    ")
    assert [cell.strip() for cell in table[3:7]] == ["all", "-", "1500k/day", "4"]
    rotated = json.loads(vllama("keys", "rotate", "ann", "--json").stdout)
    assert rotated["key"] != secret and rotated["tokens_per_day"] == 1_500_000
    assert vllama("keys", "revoke", "ann").stdout == "revoked key 'ann'\n"
    assert "Revoked" in vllama("keys").stdout
    again = vllama("keys", "add", "ann")
    assert again.returncode == 2 and "vllama keys remove ann" in again.stderr
    assert vllama("keys", "rm", "ann").stdout == "removed key 'ann'\n"
    assert vllama("keys", "add", "ann").returncode == 0
    assert "is not revoked" in vllama("keys", "rm", "ann").stderr


def test_limits_of_models_and_a_proxys_key(vllama: Vllama, data: Path) -> None:
    words = ("--model-rate", "big=10/min", "--model-rate", "qwen3:*=1/h", "--rate", "60/min")
    words += ("--model-tokens", "big=100k/day,small=5", "--trusts-user", "yes")
    assert vllama("keys", "add", "web", *words).returncode == 0
    shown = json.loads(vllama("keys", "list", "--json").stdout)["keys"][0]
    assert shown["model_rate"] == ["big=10/min", "qwen3:*=1/h"] and shown["trusts_user"] is True
    assert shown["model_tokens"] == ["big=100k/day", "small=5/day"]
    table = vllama("keys").stdout
    for cell in ("60/min, big=10/min, qwen3:*=1/h", "big=100k/day, small=5/day", "trusts-user"):
        assert cell in table
    changed = vllama("keys", "change", "web", "--model-rate", "none", "--trusts-user", "no")
    assert changed.returncode == 0
    (key,) = read_keys(data / "keys.json")
    assert (key.model_rate, key.trusts_user, str(key.rate)) == ((), False, "60/min")
    for flag, value in (
        ("--model-rate", "big"),
        ("--model-rate", "big=10/month"),
        ("--model-tokens", "=5"),
        ("--model-tokens", "big=5/h"),
        ("--trusts-user", "perhaps"),
    ):
        refused = vllama("keys", "change", "web", flag, value)
        assert refused.returncode == 2 and f"cannot use {flag}: " in refused.stderr


def test_both_secrets_of_a_rotated_key_are_listed(vllama: Vllama, data: Path) -> None:
    old = vllama("keys", "add", "ci", "--scope", "admin").stdout.strip()
    new = vllama("keys", "rotate", "ci", "--overlap", "24h").stdout.strip()
    table = vllama("keys").stdout
    assert re.search(rf"…{new[-4:]}; …{old[-4:]} until (23|24) hours from now", table), table
    told = json.loads(vllama("keys", "--json").stdout)["keys"][0]
    assert told["shown"] == f"…{new[-4:]}" and told["replaced"]["shown"] == f"…{old[-4:]}"
    assert vllama("keys", "rotate", "ci").returncode == 0
    assert json.loads(vllama("keys", "--json").stdout)["keys"][0]["replaced"] is None


def test_the_way_out_after_the_last_key(vllama: Vllama, data: Path) -> None:
    vllama("keys", "add", "ann")
    assert "vllama keys open" not in vllama("keys").stderr
    for words in (("revoke", "ann"), ("list",), ("remove", "ann"), ("list",)):
        told = vllama("keys", *words)
        assert told.returncode == 0 and "vllama keys open" in told.stderr, words
    assert vllama("keys", "open").returncode == 0
    assert "vllama keys open" not in vllama("keys").stderr
    assert "rejects requests without a key" in vllama("keys", "add", "ann").stderr


WITHOUT_ADMIN = "no admin key exists"


def test_a_first_key_that_is_no_admins_is_warned_of(vllama: Vllama, data: Path) -> None:
    assert WITHOUT_ADMIN in vllama("keys", "add", "ann").stderr
    assert WITHOUT_ADMIN in vllama("keys", "add", "bob").stderr
    assert WITHOUT_ADMIN not in vllama("keys", "add", "eve", "--scope", "admin").stderr
    assert WITHOUT_ADMIN not in vllama("keys", "add", "ida").stderr
    assert WITHOUT_ADMIN not in vllama("keys", "add", "x", VLLAMA_API_KEY="sk-plain").stderr


@pytest.mark.parametrize(("answer", "names"), [("", ["admin", "ann"]), ("n", ["ann"])])
def test_a_person_is_offered_a_key_of_an_admin(
    answer: str, names: list[str], terminal: Callable[..., Terminal], data: Path
) -> None:
    person = terminal("keys", "add", "ann")
    person.expect("Add the admin key 'admin' first? [Y/n]: ")
    person.type(answer + "\n")
    assert person.finish() == 0
    assert person.screen.count("rejects requests without a key") == 1
    assert [key.name for key in read_keys(data / "keys.json")] == names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--since", "2026-13-01"), "'2026-13-01' is not a valid date"),
        (("--until", "2026-02-30"), "'2026-02-30' is not a valid date"),
        (("--since", "2026-1-1"), "'2026-1-1' is not a date; use the form 2026-11-23"),
        (("--since", "2026-11-23", "--until", "2026-11-22"), "is after the last day"),
        (("--since", "99999999d"), "cannot read the day"),
    ],
)
def test_days_that_do_not_exist(
    words: tuple[str, ...], message: str, vllama: Vllama, data: Path
) -> None:
    result = vllama("usage", *words)
    assert result.returncode == 2 and message in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("add",), "Missing argument 'NAME'"),
        (("frob", "ann"), "choose one of list, add, change, rotate, revoke, remove, open"),
        (("rm", "ann"), "cannot remove the key 'ann': no such key"),
        (("add", "ann", "--scope", "root"), "'root' is not a scope"),
        (("add", "ann", "--rate", "60"), "use the form 60/min"),
        (("add", "ann", "--tokens", "1M/h"), "minute, day and month"),
        (("add", "ann", "--concurrent", "0"), "not a positive number"),
        (("add", "ann", "--priority", "101"), "the maximum priority is 100"),
        (("add", "ann", "--expires", "soon"), "not a duration"),
        (("add", "a b"), "invalid name"),
        (("change", "ann"), "no change specified"),
        (("change", "ann", "--rate", "1/s"), "cannot use the key 'ann'"),
        (("rotate", "ann"), "cannot use the key 'ann'"),
        (("revoke", "ann", "--rate", "1/s"), "No such option: --rate"),
        (("rotate", "ann", "--rate", "1/s"), "No such option: --rate"),
        (("add", "ann", "--overlap", "1h"), "No such option: --overlap"),
        (("rotate", "ann", "--overlap", "long"), "not a duration"),
    ],
)
def test_what_cannot_be_done(
    words: tuple[str, ...], message: str, vllama: Vllama, data: Path
) -> None:
    result = vllama("keys", *words)
    assert result.returncode == 2 and message in result.stderr
    assert not read_keys(data / "keys.json")


def test_the_hint_of_a_failed_write_follows_its_cause(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as error:
        change_keys(tmp_path / "file" / "keys.json", lambda _: None)
    assert error.value.hint
    assert error.value.hint.endswith("VLLAMA_DATA_DIR=FOLDER")


def test_a_server_with_another_folder_is_noticed(
    vllama: Vllama, data: Path, stub: StubServer
) -> None:
    stub.fail("GET /api/version", 401, "unauthorized: the request has no valid key")
    result = vllama("keys", "add", "ann", OLLAMA_HOST=stub.address)
    assert result.returncode == 0
    assert f"it may use a data folder other than '{data}'" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_usage_of_a_server_that_was_killed(vllama: Vllama, data: Path) -> None:
    folder = data / "usage"
    folder.mkdir(parents=True)
    amounts = Amounts(requests=1, prompt_tokens=7, generated_tokens=3, duration_us=1_500_000)
    days = (name_day(time.time()), "2020-01-01")
    lines = [encode_entry(Served(day, "ann", "m", amounts)) for day in days]
    (folder / "1.journal").write_bytes(b"".join(lines))
    result = vllama("usage", "--by", "key", "--since", "2d", "--csv")
    assert "No server is running" in result.stderr
    assert list(csv.DictReader(io.StringIO(result.stdout))) == [
        {
            "key": "ann",
            "requests": "1",
            "prompt_tokens": "7",
            "cached_tokens": "0",
            "generated_tokens": "3",
            "seconds": "1.5",
            "spend": "",
            "unpriced": "1",
        }
    ]
    rows = json.loads(vllama("usage", "--by", "day,key", "--json").stdout)["usage"]
    assert sorted(row["day"] for row in rows) == sorted(days)
    assert vllama("usage", "--since", "today").stdout.split()[-4] == "1.5"
    for wrong in (("--by", "color"), ("--since", "soon")):
        assert vllama("usage", *wrong).returncode == 2


def test_what_was_spent_and_what_had_no_price(vllama: Vllama, data: Path) -> None:
    (data / "usage").mkdir(parents=True)
    day, priced = name_day(time.time()), Amounts(requests=2, priced_requests=1, spend=UNIT // 8)
    served = [
        Served(day, "ann", "m", priced, "1", "team"),
        Served(day, "bob", "m", Amounts(requests=1)),
    ]
    (data / "usage" / "1.journal").write_bytes(b"".join(map(encode_entry, served)))
    lines = vllama("usage", "--by", "key,group", VLLAMA_CURRENCY="EUR").stdout.splitlines()
    assert lines[0].endswith("SPEND (EUR)    UNPRICED")
    assert [line.split()[-2:] for line in lines[1:]] == [["0.1250", "1"], ["price", "1"]]


def test_a_key_of_a_group(vllama: Vllama, data: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[groups.team]\nbudget = "5/month"\n')
    given = ("keys", "add", "ann", "--group", "team", "--budget", "0.5/day")
    assert "no limits" not in vllama(*given, VLLAMA_CONFIG=str(config)).stderr
    result = vllama("keys", "change", "ann", "--group", "taem", VLLAMA_CONFIG=str(config))
    assert "no [groups.taem]: the group has no limits" in result.stderr
    [row] = json.loads(vllama("keys", "list", "--json").stdout)["keys"]
    assert (row["group"], row["budget"]) == ("taem", "0.5/day")
    vllama("keys", "change", "ann", "--group", "none", "--budget", "none")
    [row] = json.loads(vllama("keys", "list", "--json").stdout)["keys"]
    assert (row["group"], row["budget"]) == (None, None)
