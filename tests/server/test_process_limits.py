"""What the server's process may do, whatever it was started with."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import psutil
import pytest

from tests.server_process import Server

SOFT = 200


@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="psutil tells limits on Linux")
def test_the_soft_limit_of_open_files_is_raised_for_the_server_alone(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard <= SOFT:
        pytest.skip("the machine allows no more")
    limited = tmp_path / "python"
    limited.write_text(f'#!/bin/sh\nulimit -Sn {SOFT}\nexec {sys.executable} "$@"\n')
    limited.chmod(0o755)
    with Server(tmp_path, python=limited) as server:
        name = server.model("m")
        server.post("/api/generate", {"model": name})
        assert server.process
        own = psutil.Process(server.process.pid)
        assert own.rlimit(psutil.RLIMIT_NOFILE) == (min(hard, 32_768), hard)
        assert server.engine(name).rlimit(psutil.RLIMIT_NOFILE) == (SOFT, hard)


def test_an_integer_that_is_too_long_is_refused(server: Server) -> None:
    wanted = "a number is out of range"
    for digits, status, reply in ((640, 404, "not found"), (641, 400, wanted)):
        body = b'{"model": "nowhere", "zzz": %b}' % (b"9" * digits)
        found, _, answer = server.request("POST", "/api/chat", body)
        assert (found, reply.encode() in answer) == (status, True), answer
