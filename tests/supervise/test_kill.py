"""SIGKILL of the supervisor leaves nothing behind, whenever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.supervise.conftest import Lab, eventually

HOST = Path(__file__).with_name("host.py")
ROOT = Path(__file__).parents[2]
KIN = ("--spawn-child", "--spawn-setsid", "--spawn-daemon", "--hold-output")
pytestmark = pytest.mark.slow
KINDS = {"engine", "child", "setsid", "daemon", "output"}


@pytest.mark.parametrize("term", [(), ("--ignore-term",)], ids=["polite", "ignores-term"])
@pytest.mark.parametrize("moment", ["loading", "serving"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_death_of_the_supervisor_leaves_nothing(
    lab: Lab, moment: str, term: tuple[str, ...], number: signal.Signals
) -> None:
    flags = (*KIN, *term, "--ready-after", "600" if moment == "loading" else "0")
    host = subprocess.Popen(
        [sys.executable, HOST, lab.folder, *flags],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with host:
        assert host.stdout is not None
        if moment == "serving":
            assert host.stdout.readline() == b"ready\n"
        eventually(lambda: lab.pids().keys() == KINDS)
        assert len(lab.survivors()) >= len(KINDS) + 2  # the guard, the host
        host.send_signal(number)
    eventually(lambda: not lab.survivors())
