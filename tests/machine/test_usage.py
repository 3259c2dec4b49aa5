"""How busy the machine is, as nvidia-smi tells it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vllama.machine.detect import parse_gpu_uses, read_cpu_use, read_gpu_uses


def test_gpus_are_read_with_what_they_tell() -> None:
    text = "0, 37, 61, 142.35\n1, [N/A], 40, [Not Supported]\nFailed to initialize NVML\n"
    assert parse_gpu_uses(text) == {0: (0.37, 61.0, 142.35), 1: (None, 40.0, None)}
    assert parse_gpu_uses("") == {}


def test_nvidia_smi_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\ncase "$1" in *utilization.gpu*) echo "0, 5, 30, 20.5";; esac\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert read_gpu_uses() == {0: (0.05, 30.0, 20.5)}


def test_the_cpu_is_a_part_of_all_cores() -> None:
    read_cpu_use()
    assert 0 <= read_cpu_use() <= 1
