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

from tests.routes.test_access import ask, command
from tests.routes.test_ollama_chat import until
from tests.server_process import Server
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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "config.toml").write_text('keep_alive = "7m"\napi_key = "sk-of-the-config"\n')
    with Server(tmp_path, "--config", str(tmp_path / "config.toml"), "--watch") as running:
        running.model("plain")
        yield running


@pytest.mark.slow
def test_each_act_has_its_line(server: Server) -> None:
    data, user = server.home / "data", f"command as {getpass.getuser()}"
    admin = "sk-of-the-config"
    root = command(server, "keys", "add", "root", "--scope", "admin", key=admin)
    command(server, "keys", "change", "root", "--rate", "600/min", key=admin)
    acts = [(user, "keys add", "root"), (user, "keys change", "root")]
    source = {"source": "plain", "destination": "copied"}
    model = {"model": "made", "from": "plain", "system": "You are brief.", "stream": False}
    for method, path, body, act in (
        ("POST", "/api/keys", {"name": "bob", "group": "team"}, "keys add bob"),
        ("PATCH", "/api/keys/bob", {"budget": "5/month"}, "keys change bob"),
        ("POST", "/api/keys/bob/rotate", {}, "keys rotate bob"),
        ("DELETE", "/api/keys/bob", None, "keys revoke bob"),
        ("DELETE", "/api/keys/bob", None, "keys remove bob"),
        ("POST", "/api/copy", source, "models copy copied:latest"),
        ("POST", "/api/create", model, "models create made:latest"),
        ("DELETE", "/api/delete", {"model": "copied"}, "models delete copied:latest"),
        ("PATCH", "/api/config", {"settings": {"keep_alive": "10m"}}, "config change "),
        ("PATCH", "/api/config", {"settings": {"keep_alive": "soon"}}, ""),
        ("GET", "/api/tags", None, ""),
    ):
        status, told = ask(server, root, path, body, method)
        assert (status == 200) is (bool(act) or method == "GET"), told
        acts += [("root", *act.rsplit(" ", 1))] if act else []
    file = server.home / "config.toml"
    file.write_text(file.read_text().replace("10m", "12m"))
    until(lambda: len(read(data)) > len(acts))
    acts.append(("owner", "config change", ""))
    lines = read(data)
    assert [(one["who"], one["act"], one["subject"]) for one in lines] == acts
    by_act = {(one["act"], one["subject"]): one for one in lines}
    changed = by_act["keys change", "bob"]
    assert (changed["before"], changed["after"]) == ({"budget": None}, {"budget": "5/month"})
    assert (lines[-1]["before"], lines[-1]["after"]) == (
        {"keep_alive": "10m"},
        {"keep_alive": "12m"},
    )
    assert by_act["models copy", "copied:latest"]["after"] == {"source": "plain:latest"}
    for secret in (root, admin, root[-4:]):
        assert secret not in (data / audit.FILE_NAME).read_text()
