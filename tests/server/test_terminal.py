"""What `vllama serve` shows on a terminal after its start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal
from tests.server_process import Server

pytestmark = pytest.mark.slow
SPINNER = re.compile("[\u2800-\u28ff]")


def test_a_crash_is_told_with_its_end_and_the_spinner_stops(tmp_path: Path) -> None:
    server = Server(tmp_path, "--model", "tiny")
    server.model("tiny", "--print", "reading the weights")
    terminal = Terminal(server.command[3:], server.env)
    try:
        terminal.expect("tiny:latest is loaded")
        terminal.expect("ready: http://127.0.0.1:")
        terminal.expect("\n")
        server.port = int(re.search(r"ready: http://127.0.0.1:(\d+)", terminal.screen)[1])
        server.engine("tiny").kill()
        terminal.expect("SIGKILL")
        terminal.expect("tiny:latest is loaded again")
        shown = len(terminal.screen)
        message = {"role": "user", "content": "@tokens=20 @delay=0.02"}  # for 0.4 s
        status, _ = server.post(
            "/api/chat", {"model": "tiny", "messages": [message], "stream": False}
        )
        assert status == 200
        terminal.expect("/api/chat")
        assert not SPINNER.search(terminal.screen[shown:])
    finally:
        terminal._process.terminate()
        assert terminal.finish() == 0
        terminal.close()
