"""`vllama requests` and `vllama replay` as processes, with a server that records."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from tests.observe.captures.samples import make_capture
from tests.server_process import LIMIT_S, Server
from vllama.observe.captures.folder import list_files
from vllama.observe.captures.format import encode_capture

pytestmark = pytest.mark.slow

ASKED = {
    "model": "plain",
    "messages": [{"role": "user", "content": "hi @tokens=4"}],
    "options": {"temperature": 0},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a server that records; the capture of `ASKED` is the only one."""
    with Server(tmp_path_factory.mktemp("replay"), "--capture", "9") as running:
        running.model("plain")
        running.env["OLLAMA_HOST"] = running.url
        assert running.lines("/api/chat", ASKED)[-1]["done"]
        running.folder = running.home / "data" / "captures"
        while not list_files(running.folder):  # it is written after the answer
            time.sleep(0.01)
        yield running


def vllama(server, *arguments: str):
    return subprocess.run(
        [sys.executable, "-m", "vllama", *arguments], env=server.env, text=True,
        capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


@pytest.fixture
def name(server) -> str:
    """Return the file of the first capture: replays are captured as well."""
    return str(list_files(server.folder)[0])


def test_requests_are_listed_and_shown(server, name):
    listed = json.loads(vllama(server, "requests", "--json").stdout)["captures"]
    id_ = listed[0]["id"]
    assert id_ in name and listed[0]["request"]["model"] == "plain"
    table = vllama(server, "requests").stdout
    assert id_ in table and "/api/chat" in table and "200" in table
    shown = vllama(server, "requests", id_).stdout
    assert "user:\nhi @tokens=4\n" in shown and "response, text:\ntok0 tok1 tok2 tok3 \n" in shown
    assert "engine      fake 1.0" in shown and "temperature 0" in shown
    assert json.loads(vllama(server, "requests", id_, "--json").stdout)["id"] == id_
    raw = vllama(server, "requests", id_, "--raw").stdout
    assert json.loads(raw.splitlines()[-1])["done"]
    script = vllama(server, "requests", name, "--curl").stdout
    again = subprocess.run(["sh", "-c", script], capture_output=True, check=True)
    assert json.loads(again.stdout.splitlines()[-1])["done"]


def test_a_replay_of_the_same_server(server, name):
    done = vllama(server, "replay", name, "--times", "2")
    assert done.returncode == 0, done.stderr
    assert "REPLAYED 2" in done.stdout and "fake 1.0" in done.stdout
    assert done.stdout.endswith("Same: the responses are identical.\n")


def test_another_model_answers_otherwise(server, name):
    server.model("other", "--say", '"tok0 tXk1"')
    done = vllama(server, "replay", name, "--model", "other", "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert not found["ok"] and found["verdict"] == "different"
    assert found["difference"]["before"] == "tok0 t" and found["difference"]["a"].startswith("ok1")
    assert found["replays"][0]["texts"] == {"text": "tok0 tXk1"}
    shown = vllama(server, "replay", name, "--model", "other").stdout
    assert "captured: …tok0 t[ok1 tok2 tok3 ]" in shown and "Different: " in shown


def test_what_samples_cannot_be_compared(server, tmp_path):
    body = {"model": "plain", "messages": [{"role": "user", "content": "hi"}]}
    answer = b'{"message":{"content":"something else"},"done":true}'
    capture = make_capture(path="/api/chat", body=json.dumps(body).encode(), answer=answer)
    file = tmp_path / "one.json"
    file.write_bytes(encode_capture(capture))
    done = vllama(server, "replay", str(file))
    assert done.returncode == 3, done.stderr
    assert "Undetermined: " in done.stdout and "without a seed" in done.stdout


@pytest.mark.slow
def test_a_server_of_its_own(server, name):
    done = vllama(server, "replay", name, "--engine", "fake", "--set", "context_length=2048")
    assert done.returncode == 0, done.stderr
    assert "a new server" in done.stdout and "Same: " in done.stdout
    server.model("broken", "--exit-before-ready", "--print", "no such color: red")
    done = vllama(server, "replay", name, "--engine", "fake", "--model", "broken")
    assert done.returncode == 3 and "the color red is unknown" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--url", "http://127.0.0.1:1"], 3, "could not connect"),
        (["--url", "http://127.0.0.1:1", "--engine", "fake"], 2, "omit --url"),
        (["--set", "no_such=1"], 2, "'no_such' is not a setting"),
        (["--set", "ctx=many"], 2, "cannot set 'ctx=many'"),
    ],
)
def test_mistakes(server, name, arguments, code, text):
    done = vllama(server, "replay", name, *arguments)
    assert done.returncode == code and text in done.stderr and not done.stdout


def test_no_such_capture(server, tmp_path):
    done = vllama(server, "replay", "1-1", "--dir", str(tmp_path))
    assert done.returncode == 1 and "capture '1-1' not found in" in done.stderr
    empty = vllama(server, "requests", "--dir", str(tmp_path))
    assert empty.returncode == 0 and "vllama serve --capture" in empty.stderr


def test_texts_cannot_control_the_terminal(server, tmp_path):
    answer = json.dumps({"response": "a\x1b[31mb", "done": True}).encode()
    file = tmp_path / "one.json"
    file.write_bytes(encode_capture(make_capture(answer=answer)))
    shown = vllama(server, "requests", str(file)).stdout
    assert "\x1b" not in shown and "a\\x1b[31mb" in shown
