"""An engine that listens on a Unix socket: no other user of the machine reaches it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.server_process import Server

pytestmark = pytest.mark.slow
MESSAGES = [{"role": "user", "content": "hi"}]


def test_all_that_is_asked_of_an_engine_goes_through_its_socket(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        server.model("unix-shows")
        for stream in (False, True):
            body = {"model": "unix-shows", "messages": MESSAGES, "stream": stream}
            for path in ("/api/chat", "/v1/chat/completions"):
                status, _, answer = server.request("POST", path, body)
                assert status == 200 and answer
        assert (
            b'vllama_engine_metrics_up{model="unix-shows:latest",replica="1"} 1'
            in server.request("GET", "/metrics")[2]
        )

        engine = server.engine("unix-shows")
        words = engine.cmdline()
        path = Path(words[words.index("--uds") + 1])
        assert path.is_socket() and path.parent.stat().st_mode & 0o777 == 0o700
        with pytest.raises(ConnectionRefusedError):
            port = int(words[words.index("--port") + 1])
            socket.create_connection(("127.0.0.1", port), 5).close()
        assert not [c for c in engine.net_connections() if c.status == "LISTEN"]

        engine.kill()
        server.wait_for("restarting")
        assert server.request("POST", "/api/chat", body)[0] == 200
        assert server.engine("unix-shows").pid != engine.pid and not path.exists()
