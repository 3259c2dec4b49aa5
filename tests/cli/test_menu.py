"""Bare `vllama`: a menu on a terminal, the help page elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal
from tests.tiny import write_tiny_gguf

DOWN, ENTER = "\x1b[B", "\r"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "models").mkdir()
    return {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "VLLAMA_DATA_DIR": str(tmp_path / "d"),
        "VLLAMA_FOLDERS": str(tmp_path / "models"), "PYTHONPATH": str(Path.cwd()),
        "HF_HUB_OFFLINE": "1", "OLLAMA_HOST": "127.0.0.1:1",
    }  # fmt: skip


@pytest.mark.slow
def test_the_menu_on_a_terminal(env: dict[str, str]) -> None:
    menu = Terminal([], env)
    try:
        menu.expect("What do you want to do?")
        menu.expect("Quit")
        write_tiny_gguf(Path(env["VLLAMA_FOLDERS"]) / "small.gguf")
        menu.type(ENTER)
        menu.expect("small:latest")
        menu.expect("Back")
        menu.type(DOWN * 20 + ENTER)  # the last one: back
        menu.expect("Quit")
        menu.type(DOWN + ENTER)
        menu.expect("the most capable")
        menu.type("\x1b")  # Esc: back
        menu.expect("Quit")
        menu.type("\x03")
        assert menu.finish() == 0
    finally:
        menu.close()


@pytest.mark.slow
def test_a_choice_runs_its_command(env: dict[str, str]) -> None:
    menu = Terminal([], env)
    try:
        menu.expect("Quit")
        menu.type(DOWN * 3 + ENTER)
        menu.expect("No server is running")
        menu.expect("Quit")
        menu.type(DOWN * 4 + ENTER)
        assert menu.finish() == 0
    finally:
        menu.close()


def test_elsewhere_it_is_the_help_page(env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vllama"], env=env, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("Usage: vllama")
