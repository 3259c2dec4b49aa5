"""What the server tells the service manager, read from a socket like systemd's."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.server_process import LIMIT_S, Server

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_hears_of_start_reload_and_end(tmp_path: Path, abstract: bool) -> None:
    name = f"@vllama-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(LIMIT_S)

        def hear() -> list[str]:
            return manager.recv(4096).decode().splitlines()

        with Server(tmp_path / "home", env={"NOTIFY_SOCKET": name}) as server:
            assert hear() == ["READY=1", f"STATUS=listening on {server.url}"]
            assert server.get("/api/version")
            assert server.process is not None
            server.process.send_signal(signal.SIGHUP)
            assert hear() == ["RELOADING=1"]
            assert hear() == ["READY=1", "STATUS=settings reloaded"]
        assert hear() == ["STOPPING=1", "STATUS=stopping"]


def test_a_manager_that_has_gone_harms_nothing(tmp_path: Path) -> None:
    with Server(tmp_path / "home", env={"NOTIFY_SOCKET": str(tmp_path / "gone")}) as server:
        assert server.get("/api/version")
        server.wait_for("cannot notify the service manager")
