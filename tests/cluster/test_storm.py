"""A short storm over three machines in the suite; `make test-cluster MINUTES=20` is a long one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cluster.machines import find_enclosure
from tests.lacking import lacking

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_machines_that_break_while_everybody_asks() -> None:
    enclosure = find_enclosure()
    if enclosure is None:
        lacking("namespaces cannot be made here: that takes util-linux, iproute2, and the right to")
    ended = subprocess.run(
        [
            *(*enclosure, sys.executable, "-m", "tests.cluster.storm", "--enclosed"),
            *("--seed", "1", "--patience", "20", "--seconds", "16", "--every", "2"),
            *("--faults", "engine", "guard", "server", "machine"),
        ],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    assert " fault: " in ended.stdout
    assert " right" in ended.stdout
