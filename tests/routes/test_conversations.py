"""Conversations on disk: kept over an unload, a restart and a kill, and only for their key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.routes.events.stream import Stream
from tests.server_process import LIMIT_S, Server

pytestmark = pytest.mark.slow  # servers as processes of their own

NAME = "wide-replays-counts"
LONG = " ".join(f"w{number % 97}" for number in range(800))
DISK = ("--cache-disk", "10MB")


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path, *DISK) as server:
        server.model(NAME)
        yield server


def ask(server, text=LONG, *, key="", **more):
    """Return the answer; its cached tokens are the letters that were in the slot."""
    body = {"model": NAME, "prompt": text, "raw": True, "stream": False, **more}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    status, _, data = server.request("POST", "/api/generate", body, headers)
    told = json.loads(data)
    assert status == 200, told
    return told


def unload(server, key="", model=NAME):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    server.request("POST", "/api/generate", {"model": model, "keep_alive": 0}, headers)
    deadline_s = time.monotonic() + LIMIT_S
    while json.loads(server.request("GET", "/api/ps", None, headers)[2])["models"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def run(server, *arguments):
    env = server.env | {"OLLAMA_HOST": f"127.0.0.1:{server.port}"}
    command = [sys.executable, "-m", "vllama", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True)


def files(server):
    return sorted((server.home / "data" / "conversations").glob("*.slot"))


def test_a_conversation_outlives_an_unload(server) -> None:
    first = ask(server)
    assert first["prompt_eval_cached_count"] == 0 and files(server) == []
    unload(server)
    (file,) = files(server)
    assert file.stat().st_mode & 0o777 == 0o600
    whole = LONG + first["response"]
    again = ask(server, whole + "and on")
    assert again["prompt_eval_cached_count"] == len(whole)
    assert server.sent(NAME)["id_slot"] in (0, 1)
    (row,) = server.get("/api/ps")["models"]
    kept = row["conversations"]
    assert (kept["count"], kept["hits"], kept["size"]) == (1, 1, file.stat().st_size)
    with Stream(server, "?events=models") as stream:
        assert stream.models[f"{NAME}:latest"]["conversations"] == kept  # for the page
    assert "1 conversation on disk, " in run(server, "ps").stderr
    assert "vllama_slot_cache_restored_total" in server.request("GET", "/metrics")[2].decode()
    ask(server, whole + "and on and on")
    assert "id_slot" not in server.sent(NAME)  # the engine has it now
    unload(server)
    assert len(files(server)) == 1  # it went on from the one before


def test_a_chat_outlives_an_unload(server) -> None:
    talk = [{"role": "user", "content": LONG}]
    body = {"model": NAME, "messages": talk, "stream": False}
    said = server.post("/api/chat", body)[1]["message"]
    unload(server)
    talk += [said, {"role": "user", "content": "And now?"}]
    told = server.post("/api/chat", body)[1]
    assert told["prompt_eval_cached_count"] > len(LONG)


def test_conversations_of_one_seed_and_length_are_told_apart(server) -> None:
    options = {"seed": 1, "temperature": 0}
    texts = [f"{letter} {LONG}" for letter in "abc"]
    said = [ask(server, text, options=options)["response"] for text in texts]
    unload(server)
    assert len(files(server)) == 2  # as many as there are slots
    for text, response in list(zip(texts, said, strict=True))[1:]:
        again = ask(server, text + response + " go on", options=options)
        assert again["prompt_eval_cached_count"] == len(text + response)


def test_short_ones_and_other_texts_run_cold(server) -> None:
    ask(server, "short")
    unload(server)
    assert files(server) == []
    ask(server)
    unload(server)
    assert ask(server, f"x{LONG}")["prompt_eval_cached_count"] == 0
    assert "id_slot" not in server.sent(NAME)


@pytest.mark.parametrize("damage", ["cut", "noise", "missing", "record"])
def test_damage_is_found_before_the_engine_sees_it(server, damage) -> None:
    ask(server)
    unload(server)
    (file,) = files(server)
    match damage:
        case "cut":
            os.truncate(file, file.stat().st_size - 1)
        case "noise":
            file.write_bytes(file.read_bytes().replace(b"w7 ", b"w8 ", 1))
        case "missing":
            file.unlink()
        case "record":
            file.with_suffix(".json").write_text("{}")
            os.truncate(file, 10)
    assert ask(server, f"{LONG} more")["prompt_eval_cached_count"] == 0
    assert server.get("/api/ps")["models"][0]["restarts"] == 0


def test_it_outlives_the_server(tmp_path) -> None:
    with Server(tmp_path, *DISK) as server:
        server.model(NAME)
        said = ask(server)["response"]
    with Server(tmp_path, *DISK) as server:
        assert ask(server, LONG + said)["prompt_eval_cached_count"] > len(LONG)


def test_it_goes_with_its_model(server) -> None:
    assert (
        server.post(
            "/api/create", {"model": "mine-wide-replays-counts", "from": NAME, "stream": False}
        )[0]
        == 200
    )
    ask(server, model="mine-wide-replays-counts")
    unload(server, model="mine-wide-replays-counts")
    assert len(files(server)) == 1
    assert server.request("DELETE", "/api/delete", {"model": "mine-wide-replays-counts"})[0] == 200
    assert files(server) == []


@pytest.mark.slow
def test_it_outlives_a_kill_after_ten_seconds_of_silence(tmp_path) -> None:
    with Server(tmp_path, *DISK) as server:
        server.model(NAME)
        ask(server)
        deadline_s = time.monotonic() + 2 * LIMIT_S
        while not files(server):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        server.engine(NAME).send_signal(signal.SIGKILL)
        assert ask(server, f"{LONG} more")["prompt_eval_cached_count"] >= len(LONG)


def test_it_belongs_to_its_key(tmp_path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice-secret\nbob-secret\n")
    env = {"VLLAMA_DATA_DIR": str(tmp_path / "data")}
    names = {}
    for name in ("alice", "bob", "carol"):
        command = [sys.executable, "-m", "vllama", "keys", "add", name, "--json"]
        base = Server(tmp_path).env | env
        done = subprocess.run(command, env=base, capture_output=True, text=True, check=True)
        names[name] = json.loads(done.stdout)["key"]
    with Server(tmp_path, *DISK, env=env) as server:
        server.model(NAME)
        alice, bob = names["alice"], names["bob"]
        ask(server, key=alice)
        unload(server, alice)
        assert ask(server, f"{LONG} more", key=bob)["prompt_eval_cached_count"] == 0
        unload(server, alice)
        assert ask(server, f"{LONG} more", key=alice)["prompt_eval_cached_count"] >= len(LONG)
        listed = subprocess.run(
            [sys.executable, "-m", "vllama", "cache", "--json"],
            env=server.env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert {row["key_name"] for row in json.loads(listed.stdout)} == {"alice", "bob"}
        subprocess.run(
            [sys.executable, "-m", "vllama", "cache", "rm", "--key", "alice"],
            env=server.env, check=True,
        )  # fmt: skip
        unload(server, alice)
        assert ask(server, f"{LONG} more", key=alice)["prompt_eval_cached_count"] == 0
        before = len(files(server))
        subprocess.run(
            [sys.executable, "-m", "vllama", "keys", "revoke", "bob"], env=server.env, check=True
        )
        assert len(files(server)) == before - 1
        server.model("salts")
        for key in (alice, alice, names["carol"]):
            chat = {"model": "salts", "messages": [{"role": "user", "content": "hi"}]}
            headers = {"authorization": f"Bearer {key}"}
            reply = httpx.post(f"{server.url}/api/chat", json=chat, headers=headers)
            assert reply.status_code == 200
        found = (each for each in server.tree() if "salts" in " ".join(each.cmdline()))
        engine = next(each for each in found if "--port" in each.cmdline())
        bodies = server.ask_process(engine, "/__stats")["bodies"]
        salts = [body["cache_salt"] for body in bodies if "stream" in body]
        assert len(salts) == 3 and salts[0] == salts[1] != salts[2]


def test_the_command_shows_and_removes_what_engines_keep_by_themselves(tmp_path) -> None:
    base = Server(tmp_path)

    def run(*arguments: str):
        command = [sys.executable, "-m", "vllama", "cache", *arguments]
        return subprocess.run(command, env=base.env, capture_output=True, text=True, check=True)

    place = Path(base.env["VLLAMA_DATA_DIR"]) / "conversations" / "blocks" / "m%3Alatest"
    place.mkdir(parents=True)
    (place / "a.bin").write_bytes(bytes(2000))
    (row,) = json.loads(run("--json").stdout)
    assert (row["model"], row["size_bytes"], row["tokens"]) == ("m:latest", 2000, None)
    assert "2 KB" in run("ls", "m").stdout
    assert json.loads(run("rm", "other", "--json").stdout) == {"removed": 0, "size_bytes": 0}
    assert json.loads(run("rm", "m", "--json").stdout) == {"removed": 0, "size_bytes": 2000}
    assert not place.exists()


def test_a_share_without_a_cache_is_told(tmp_path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[models."{NAME}"]\ncache_disk = "100MB"\n')
    with Server(tmp_path, env={"VLLAMA_CONFIG": str(config)}) as server:
        server.wait_for(f"cache_disk of {NAME} has no effect without --cache-disk")


def test_a_model_can_be_left_out_and_a_second_server_is_refused(tmp_path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[models."{NAME}"]\ncache_disk = false\n')
    env = {"VLLAMA_CONFIG": str(config)}
    with Server(tmp_path, *DISK, env=env) as server:
        server.model(NAME)
        ask(server)
        unload(server)
        assert files(server) == []
        second = subprocess.run(
            [sys.executable, "-m", "vllama", "serve", "--port", "0", *DISK],
            env=server.env, capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert second.returncode != 0 and "another server uses it" in second.stderr
