"""A short storm over three machines in the suite; `make test-cluster MINUTES=20` is a long one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cluster.machines import find_enclosure
from tests.lacking import lacking

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run_enclosed(*words: str) -> str:
    """Run a program of this folder in namespaces; return its output."""
    enclosure = find_enclosure()
    if enclosure is None:
        lacking("namespaces cannot be made here: that takes util-linux, iproute2, and the right to")
    ended = subprocess.run(
        [*enclosure, sys.executable, "-m", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def run_storm(*arguments: str) -> None:
    """Run it; what it must not show fails the test."""
    usual = ("--seed", "1", "--patience", "20", "--enclosed")
    told = run_enclosed("tests.cluster.storm", *usual, *arguments)
    assert " fault: " in told
    assert " right" in told


def test_machines_that_break_while_everybody_asks() -> None:
    kinds = ("engine", "guard", "server", "machine")
    run_storm("--seconds", "16", "--every", "2", "--faults", *kinds)


@pytest.mark.ray
def test_machines_that_ray_joins() -> None:
    run_storm("--ray", "--seconds", "30", "--every", "3", "--faults", "server", "actor", "raylet")
