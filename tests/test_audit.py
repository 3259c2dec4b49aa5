"""The audit log: one line for each act, whole or not there, and without a secret."""

from __future__ import annotations

import getpass
import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub import Fault, StandInHub
from tests.routes.test_access import ask, command
from tests.routes.test_ollama_chat import until
from tests.server_process import Server
from tests.tiny import write_tiny_gguf
from vllama.base import audit


def read(data: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (data / audit.FILE_NAME).read_text().splitlines()]


def test_only_what_differs_is_recorded_in_a_private_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    audit.record(data, "act", "it", {"a": 1, "b": 2, "c": None}, {"a": 1, "b": 3, "d": [4]})
    audit.record(data, "act", "it")
    first, second = read(data)
    assert (first["before"], first["after"]) == ({"b": 2}, {"b": 3, "d": [4]})
    assert (second["before"], second["after"]) == ({}, {})
    assert first["who"].startswith("command as ") and first["act"] == "act"
    assert stat.S_IMODE((data / audit.FILE_NAME).stat().st_mode) == 0o600


def test_a_line_that_cannot_be_written_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / audit.FILE_NAME).mkdir()
    audit.record(tmp_path, "keys add", "ann")
    assert "cannot write the audit log" in caplog.text and '"ann"' in caplog.text


def test_a_stump_spoils_no_line(tmp_path: Path) -> None:
    (tmp_path / audit.FILE_NAME).write_text('{"time": "20')
    audit.record(tmp_path, "act", "it")
    stump, line = (tmp_path / audit.FILE_NAME).read_text().splitlines()
    assert stump == '{"time": "20' and json.loads(line)["act"] == "act"


MANY = """
import sys
from pathlib import Path
from vllama.base import audit
for number in range(50):
    audit.record(Path(sys.argv[1]), "act", f"{sys.argv[2]}-{number}", {}, {"x": "y" * 9000})
"""


def test_programs_that_write_at_once_break_no_line(tmp_path: Path) -> None:
    commands = [[sys.executable, "-c", MANY, str(tmp_path), str(one)] for one in range(3)]
    started = [subprocess.Popen(words) for words in commands]
    assert [one.wait() for one in started] == [0, 0, 0]
    assert len({line["subject"] for line in read(tmp_path)}) == 150


ADMIN = "sk-of-the-config"
PULLED, SLOW = "hf.co/test/Tiny-GGUF:Q8_0", "hf.co/test/Slow-GGUF:Q8_0"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[StandInHub]:
    (tmp_path / "repo").mkdir()
    write_tiny_gguf(tmp_path / "repo" / "Tiny-Q8_0.gguf", n_ctx=4096)
    (tmp_path / "slow").mkdir()
    write_tiny_gguf(tmp_path / "slow" / "Tiny-Q8_0.gguf", n_ctx=4096, seed=1)
    with StandInHub() as running:
        running.add_repo("test/Tiny-GGUF", tmp_path / "repo")
        running.add_repo("test/Slow-GGUF", tmp_path / "slow")
        running.fault = lambda method, path, headers, origin: (
            Fault(bytes_per_s=20_000) if origin == "cdn" and "Slow" in path else None
        )
        yield running


@pytest.fixture
def server(tmp_path: Path, hub: StandInHub) -> Iterator[Server]:
    """A head, so that there is a node to drain."""
    (tmp_path / "config.toml").write_text(f'keep_alive = "7m"\napi_key = "{ADMIN}"\n')
    given = ("--config", str(tmp_path / "config.toml"), "--watch", "--hang-timeout", "0")
    with (
        Server(tmp_path / "node") as node,
        Server(
            tmp_path / "head", *given, "--node", node.url, env={"HF_ENDPOINT": hub.url}
        ) as running,
    ):
        running.model("plain")
        running.model("stalls", "--stall-after", "2")
        yield running


def load(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "stream": False, **more}


SETTINGS, OFF = {"settings": {"keep_alive": "10m"}}, {"keep_alive": 0}
MADE = {"model": "made", "from": "plain", "system": "You are brief.", "stream": False}
COPY = {"source": "plain", "destination": "copied"}
ACTS: list[tuple[str, str, Any, str, Any, Any]] = [
    ("POST", "/api/keys", {"name": "bob"}, "keys add bob", {}, {"name": "bob", "rate": None}),
    (
        "PATCH", "/api/keys/bob", {"budget": "5/month", "model_rate": ["plain=9/min"]},
        "keys change bob", {"budget": None, "model_rate": []},
        {"budget": "5/month", "model_rate": ["plain=9/min"]},
    ),
    ("POST", "/api/keys/bob/rotate", {}, "keys rotate bob", {}, {}),
    ("DELETE", "/api/keys/bob", None, "keys revoke bob", {"revoked_at": None}, {}),
    ("DELETE", "/api/keys/bob", None, "keys remove bob", {"name": "bob"}, {}),
    ("POST", "/api/copy", COPY, "models copy copied:latest", {}, {"source": "plain:latest"}),
    ("POST", "/api/create", MADE, "models create made:latest", {}, {"digest": ...}),
    ("POST", "/api/create", {**MADE, "system": "x"}, "models create made:latest", {"digest": ...},
     {"digest": ...}),
    ("DELETE", "/api/delete", {"model": "copied"}, "models delete copied:latest", {"digest": ...},
     {}),
    ("POST", "/api/generate", load("plain"), "models load plain:latest", {}, {"loaded": True}),
    ("POST", "/api/generate", load("plain"), "", {}, {}),  # it is loaded
    ("POST", "/api/chat", load("plain", **OFF), "models unload plain:latest", {"loaded": True}, {}),
    ("POST", "/api/pull", load(PULLED), f"models pull {PULLED}", {}, {}),
    ("POST", "/api/pull", load(PULLED), f"models pull {PULLED}", {"digest": ...}, {}),
    ("POST", "/api/pull", load(SLOW, background=True), f"models pull {SLOW}", {}, {}),
    ("DELETE", "/api/pull", {"model": SLOW}, f"models pull stop {SLOW}", {"progress": ...}, {}),
    ("POST", "/api/nodes/127.0.0.1/drain", {}, "nodes drain 127.0.0.1", {"drained": False},
     {"drained": True}),
    ("POST", "/api/nodes/127.0.0.1/undrain", {}, "nodes undrain 127.0.0.1", {"drained": True},
     {"drained": False}),
    ("DELETE", "/api/requests/stuck", None, "requests end stuck",
     {"key": "app", "model": "stalls:latest"}, {}),
    ("PATCH", "/api/config", SETTINGS, "config change ", {"keep_alive": "7m"},
     {"keep_alive": "10m"}),
    ("PATCH", "/api/config", {"settings": {"keep_alive": "soon"}}, "", {}, {}),
    ("GET", "/api/tags", None, "", {}, {}),
]  # fmt: skip


def agrees(told: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return whether the wanted values are there; `...` is any value, None may be left out."""
    return all(told.get(name) == value or (value is ... and name in told)
               for name, value in wanted.items())  # fmt: skip


@pytest.mark.slow
def test_each_act_has_its_line(server: Server) -> None:
    data, user = server.home / "data", f"command as {getpass.getuser()}"
    root = command(server, "keys", "add", "root", "--scope", "admin", key=ADMIN)
    app = command(server, "keys", "add", "app", key=ADMIN)
    command(server, "keys", "change", "root", "--rate", "600/min", key=ADMIN)
    acts = [(user, "keys add", "root"), (user, "keys add", "app"), (user, "keys change", "root")]
    client = server.connect()
    body = json.dumps({"model": "stalls", "messages": [{"role": "user", "content": "hi"}]})
    client.request(
        "POST", "/api/chat", body, {"authorization": f"Bearer {app}", "x-request-id": "stuck"}
    )
    client.getresponse().readline()
    for method, path, content, act, before, after in ACTS:
        status, told = ask(server, root, path, content, method)
        refused = "soon" in str(content)
        assert (status >= 400) is refused, (act, told)
        if act:
            acts.append(("root", *act.rsplit(" ", 1)))
            line = read(data)[-1]
            assert agrees(line["before"], before) and agrees(line["after"], after), (act, line)
        assert len(read(data)) == len(acts), (path, read(data)[-1])
    client.close()
    file = server.home.parent / "config.toml"
    text = file.read_text().replace("10m", "12m")
    for changed in (text, f'{text}[groups.team]\nbudget = "9/month"\n'):
        file.write_text(changed)
        acts.append(("owner", "config change", ""))
        until(lambda: len(read(data)) >= len(acts))
    command(server, "keys", "open", key=root)
    acts.append((user, "keys open", ""))
    lines = read(data)
    assert [(one["who"], one["act"], one["subject"]) for one in lines] == acts
    assert len(lines) >= 20 and len({one["act"] for one in lines}) == 17
    assert lines[-3]["after"] == {"keep_alive": "12m"}
    assert "9/month" in str(lines[-2]["after"])
    for secret in (root, app, ADMIN, root[-4:]):
        assert secret not in (data / audit.FILE_NAME).read_text()
