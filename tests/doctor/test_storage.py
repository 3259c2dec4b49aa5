"""The port and its owner, leftovers, disks, folders; the hub; the models on this disk."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.doctor.facts import statuses
from tests.ports import free_port
from vllama.accounts.usage.store import UsageStore
from vllama.base.errors import BadModelFile
from vllama.doctor import machine, storage
from vllama.doctor.check import Severity, ok
from vllama.models.types import Skipped


@pytest.mark.parametrize(
    ("answer", "status", "who"),
    [
        ({"version": "0.9"}, "failed", "an Ollama server"),
        ({"version": "0.9", "vllama": "1"}, "ok", "a vllama server"),
        ({}, "failed", "another program"),
    ],
)
def test_a_taken_port_is_told_with_its_owner(web, answer, status: str, who: str) -> None:
    web.answer["/api/version"] = (200, answer)
    (told,) = storage.port("127.0.0.1", web.server_port)
    assert told.status == status
    assert who in told.text and f"(pid {os.getpid()}, " in told.text


def test_a_free_port() -> None:
    number = free_port()
    assert list(storage.port("127.0.0.1", number)) == [ok(f"port {number} is free")]
    assert statuses(storage.port("127.0.0.1", 0)) == ["skipped"]
    (elsewhere,) = storage.port("192.0.2.1", number)
    assert elsewhere.status is Severity.FAILED and "nothing can listen on" in elsewhere.text


def test_leftovers(tmp_path: Path) -> None:
    assert list(storage.leftovers(tmp_path)) == [ok("no engine of a dead server is left")]
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as engine:
        identity = {"pid": engine.pid, "started_s": psutil.Process(engine.pid).create_time()}
        record = {"name": "qwen", "engine": identity, "descendants": [], "argv": [],
                  "supervisor": {"pid": 2**22 - 1, "started_s": 1.0}}  # fmt: skip
        (tmp_path / "1-qwen.json").write_text(json.dumps(record))
        (tmp_path / "2-odd.json").write_text("{}")
        (told,) = storage.leftovers(tmp_path)
        assert told.text == f"the engine of qwen outlived its server (pid {engine.pid})"
        record["supervisor"] = {"pid": os.getpid(), "started_s": psutil.Process().create_time()}
        (tmp_path / "1-qwen.json").write_text(json.dumps(record))
        assert statuses(storage.leftovers(tmp_path)) == ["ok"]
        assert engine.poll() is None  # nothing is ended by looking
        engine.kill()


def test_unused_files_are_named_with_their_sizes(tmp_path: Path) -> None:
    folders = {tmp_path / "vectors": "steering vectors", tmp_path / "cluster": "files"}
    assert statuses(storage.find_unused(folders)) == ["ok"]
    (tmp_path / "vectors" / "deep").mkdir(parents=True)
    (tmp_path / "vectors" / "deep" / "calm.safetensors").write_bytes(bytes(2_300))
    (found,) = storage.find_unused(folders)
    assert found.status is Severity.WARNING
    assert found.text.endswith(f"'{tmp_path / 'vectors'}' (2.3 KB)")
    assert (tmp_path / "vectors" / "deep" / "calm.safetensors").exists()


@pytest.mark.parametrize(
    ("free", "status"), [(500 * 10**9, "ok"), (5 * 10**9, "warning"), (10**8, "failed")]
)
def test_disks_are_told_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str
) -> None:
    usage = type("Usage", (), {"free": free, "total": 10**12})
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: usage)
    (told,) = storage.disks({"models": tmp_path, "logs": tmp_path / "not/yet"})
    assert told.status == status
    assert "for models, logs" in told.text


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    folders = {"data": tmp_path, "logs": tmp_path / "logs" / "deep"}
    assert list(storage.writable(folders)) == [ok("data, logs can be written")]
    assert list(tmp_path.iterdir()) == []
    (told,) = storage.writable({"data": tmp_path, "logs": Path("/proc/self/none")})
    assert told.status is Severity.FAILED and "the folder of logs" in told.text


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = UsageStore(tmp_path)
    store.close()
    assert [one.status for one in storage.usage(tmp_path)] == [Severity.OK]

    def full_disk(dir):
        return Path("/dev/full").open("wb")

    monkeypatch.setattr(storage.tempfile, "TemporaryFile", full_disk)
    for told in (*storage.writable({"data": tmp_path}), *storage.usage(tmp_path)):
        assert told.status is Severity.FAILED and "No space left" in told.text
        assert "free some space" in told.hint


WHOAMI, MODELS = "/api/whoami-v2", "/api/models?limit=1"


@pytest.mark.parametrize(
    ("token", "answer", "status", "text"),
    [
        ("t", {WHOAMI: (200, {"name": "ada"})}, "ok", "takes the token of ada"),
        ("t", {WHOAMI: (401, {})}, "failed", "does not take the token"),
        ("t", {}, "ok", "knows no tokens"),
        (None, {MODELS: (200, [])}, "ok", "there is no token"),
        (None, {MODELS: (503, {})}, "warning", "HTTP 503"),
    ],
)
def test_hub(web, token, answer, status: str, text: str) -> None:
    web.answer.update(answer)
    (told,) = machine.hub(f"http://127.0.0.1:{web.server_port}", token, offline=False)
    assert (told.status, text in told.text) == (status, True), told
    assert web.seen[0][1] == (f"Bearer {token}" if token else None)
    assert token is None or token not in told.text.split()


def test_a_hub_that_is_not_there_and_one_that_is_not_asked() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # not listening: refused at once
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        (told,) = machine.hub(url, None, offline=False)
    assert told.status is Severity.WARNING and "cannot be reached" in told.text
    assert statuses(machine.hub("http://hub.test", None, offline=True)) == ["skipped"]


class Library:
    """Two models, of which one cannot be read, and many that are skipped."""

    def __init__(self, skipped: int) -> None:
        self._skipped = skipped

    def list_skipped(self):
        return tuple(
            Skipped(name=f"s{n}", store="hub", path=Path(), reason="no weights")
            for n in range(self._skipped)
        )

    def list(self):
        return [type("Bundle", (), {"name": name})() for name in ("good", "bad")]

    def info(self, bundle):
        if bundle.name == "bad":
            raise BadModelFile("it is cut")


def test_models() -> None:
    told = list(storage.models(Library(0)))
    assert [finding.text for finding in told] == [
        "usable models on this disk: 1", "bad: it is cut"
    ]  # fmt: skip
    assert [finding.text for finding in storage.models(Library(6))][-1] == "and 2 more"
