"""What is measured of a process tree."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

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
