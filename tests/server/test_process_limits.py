"""What the server's process may do, whatever it was started with."""

from __future__ import annotations

import ctypes
import resource
import subprocess
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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_large_pieces_leave_no_holes_in_the_heap() -> None:
    """After the first large piece was freed, glibc would put the next ones into the heap."""
    code = """if True:
        import ctypes, sys
        from vllama.server.startup import LARGE_BYTES, keep_heap_small

        class Info(ctypes.Structure):  # malloc.h
            names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
            _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

        measure = ctypes.CDLL(None).mallinfo2
        measure.restype = Info
        keep_heap_small()
        for size in (32 * 1024 * 1024 - 4096, 4 * LARGE_BYTES):
            before = measure().hblkhd
            piece = bytearray(size)
            assert measure().hblkhd - before >= size
            del piece
            assert measure().hblkhd == before
    """
    subprocess.run([sys.executable, "-c", code], check=True)
