"""The files by which commands find the running servers of a data folder."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from vllama.base.servers import RunningServer, announce, find_servers

ONE = RunningServer("http://127.0.0.1:1", "sk-one")
TWO = RunningServer("https://127.0.0.1:2", "sk-two", "/cert.pem")
SERVE = """
import sys, time
from pathlib import Path
from vllama.base.servers import RunningServer, announce
with announce(Path(sys.argv[1]), RunningServer("http://127.0.0.1:3", "sk-three")):
    print(flush=True)
    time.sleep(600)
"""


def test_servers_are_found_as_long_as_they_run(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert find_servers(data) == []
    with announce(data, ONE):
        assert find_servers(data) == [ONE]
        with announce(data, TWO):
            assert sorted(find_servers(data), key=lambda one: one.url) == [ONE, TWO]
        (path,) = (data / "servers").iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert find_servers(data) == [] and not list((data / "servers").iterdir())


def test_a_server_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), announce(tmp_path, ONE):
        raise KeyError
    assert not list((tmp_path / "servers").iterdir())


def test_a_killed_server_is_not_found(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        assert len(find_servers(tmp_path)) == 1
        process.send_signal(signal.SIGKILL)
    assert list((tmp_path / "servers").iterdir())
    assert find_servers(tmp_path) == [] and not list((tmp_path / "servers").iterdir())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"url": 1}', b"\xff"])
def test_a_file_that_is_none_of_ours_is_passed_over(tmp_path: Path, content: bytes) -> None:
    import fcntl

    folder = tmp_path / "servers"
    folder.mkdir()
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "fifo.json")
    with (folder / "held.json").open("wb") as file:
        file.write(content)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert find_servers(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "servers").touch()
    with announce(tmp_path, ONE):
        assert find_servers(tmp_path) == []
