"""What is measured of a process tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from vllama.supervise import tree


def test_a_tree_whose_top_has_ended_is_not_whole() -> None:
    """Killed, but not reaped by its parent yet: only what it had started holds memory."""
    ours = psutil.Process(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as engine:
        top = psutil.Process(engine.pid)
        whole = tree.measure_footprint([top, ours], engine.pid)
        assert whole.whole and whole.pids == {engine.pid, ours.pid}
        engine.kill()
        os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)
        rest = tree.measure_footprint([top, ours], engine.pid)
        assert not rest.whole and rest.pids == {ours.pid}


READS = "f = open({!r}, 'rb', buffering=0); f.read({}); print(flush=True); input()"
MAPS = """
import mmap
f = open({!r}, 'rb')
m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
m.madvise(mmap.MADV_RANDOM)
f.close()
m[:{}]
print(flush=True)
input()
"""


@pytest.mark.skipif(not psutil.LINUX, reason="only Linux tells what a process has read")
@pytest.mark.parametrize("script", [READS, MAPS], ids=["read", "mapped"])
def test_what_an_engine_has_read_of_its_files_is_counted(script: str, tmp_path: Path) -> None:
    file, half = tmp_path / "weights", 1 << 20
    file.write_bytes(bytes(2 * half))
    command = [sys.executable, "-c", script.format(str(file), half)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        # the kernel may map more of a file that lies in its cache than was asked for
        assert half <= tree.count_read(engine.pid, [file]) <= 2 * half
        assert tree.count_read(engine.pid, [tmp_path / "other"]) == 0
        engine.kill()
    assert tree.count_read(engine.pid, [file]) == 0
