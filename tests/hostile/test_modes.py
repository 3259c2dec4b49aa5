"""What lies in the data folder is read by nobody else, whatever the umask is."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_process import Server
from tests.tiny import write_tiny_gguf
from vllama.models.sources.hub_answers import AnswerCache, KeptAnswer
from vllama.models.stores.blobs import BlobStore
from vllama.supervise.logs import open_log, rotate

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The most open one."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Return what others than the owner can read, write or enter."""
    found = []
    for path in [folder, *folder.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):  # it was renamed meanwhile
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & 0o077:
                found.append(f"{stat.filemode(mode)} {path.relative_to(folder)}")
    return found


def test_logs_also_those_put_aside(tmp_path: Path) -> None:
    log = open_log(tmp_path / "data/logs", "org/model:latest", now_s=0.0)
    log.write_text("secret\n")
    rotate(log)
    log.write_text("more\n")
    rotate(log)
    assert sorted(path.name for path in log.parent.iterdir()) == [
        log.name,
        f"{log.name}.1",
        "name",
    ]
    assert open_to_others(tmp_path / "data") == []


def test_one_that_was_open_to_others_is_so_no_more(tmp_path: Path) -> None:
    log = open_log(tmp_path, "model", now_s=0.0)
    for name in (f"{log.name}.1", f"{log.name}.new"):
        (log.parent / name).write_text("older")
    (log.parent / "name").chmod(0o644)
    rotate(log)
    open_log(tmp_path, "model", now_s=1.0)
    assert open_to_others(log.parent) == []


def test_answers_of_the_hub_and_uploads(tmp_path: Path) -> None:
    AnswerCache(tmp_path / "data/answers").keep("url", None, KeptAnswer(etag="x", body=b"private"))
    content = b"a model"
    writer = BlobStore(tmp_path / "data/blobs").writer(
        f"sha256:{hashlib.sha256(content).hexdigest()}", len(content)
    )
    writer.write(content)
    writer.finish()
    writer.discard()
    assert open_to_others(tmp_path / "data") == []


@pytest.mark.slow
def test_all_that_a_server_writes(tmp_path: Path) -> None:
    """Run files, logs, memory, names, created models, blobs: there is no list to be forgotten."""
    with Server(tmp_path / "home") as server:
        server.model("sea")
        data = write_tiny_gguf(tmp_path / "up.gguf", n_layer=1).read_bytes()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert server.request("POST", f"/api/blobs/{digest}", data)[0] == 201
        up = {"model": "mine", "files": {"up.gguf": digest}, "system": "secret", "stream": False}
        assert server.post("/api/create", up)[0] == 200
        assert server.post("/api/copy", {"source": "mine", "destination": "two"})[0] == 200
        ask = {"model": "sea", "messages": [{"role": "user", "content": "x"}], "stream": False}
        assert server.post("/api/chat", ask)[0] == 200
        assert list((server.home / "data/run").iterdir())
        assert open_to_others(server.home / "data") == []
    assert open_to_others(tmp_path / "home/data") == []


def test_what_an_older_server_left_open_is_closed(tmp_path: Path) -> None:
    mine, data = tmp_path / "mine", tmp_path / "home/data"
    for folder in (data / "logs", data / "run", mine):
        folder.mkdir(parents=True)
    (data / "logs/old.log").write_text("secret")
    with Server(tmp_path / "home", env={"VLLAMA_RUN_DIR": str(mine)}) as server:
        assert [f.stat().st_mode & 0o777 for f in (data / "logs", mine)] == [0o700, 0o777]
        told = [line for line in server.output.splitlines() if "other users" in line]
        assert len(told) == 1 and str(data / "logs") in told[0]
    with Server(tmp_path / "home", env={"VLLAMA_RUN_DIR": str(mine)}) as server:
        assert "other users" not in server.output


def test_the_usual_data_folder_is_closed_whole(tmp_path: Path) -> None:
    share = tmp_path / "home/.local/share"
    (share / "vllama").mkdir(parents=True)
    environment = {"VLLAMA_DATA_DIR": "", "XDG_DATA_HOME": str(share)}
    with Server(tmp_path / "home", env=environment):
        assert [(share / name).stat().st_mode & 0o777 for name in ("", "vllama")] == [0o777, 0o700]
