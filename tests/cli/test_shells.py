"""Completion in real shells: a person types a tab on a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.stub import StubServer
from tests.cli.terminal import Terminal

SHELLS = {
    "bash": (("bash", "--norc", "--noprofile", "-i"), 'eval "$(vllama completion bash)"'),
    "zsh": (
        ("zsh", "-f", "-i"),
        'autoload -Uz compinit; compinit -u; eval "$(vllama completion zsh)"',
    ),
    "fish": (("fish", "--no-config", "-i"), "vllama completion fish | source"),
}
Open = Callable[[str], Terminal]
pytestmark = pytest.mark.slow


@pytest.fixture
def shell(env: dict[str, str], tmp_path: Path, stub: StubServer) -> Iterator[Open]:
    """Start a shell in a folder with a Modelfile, and have it complete vllama's commands."""
    stub.on("GET /api/tags", {"models": [{"name": "smollm2:135m"}]})
    program = tmp_path / "bin" / "vllama"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vllama "$@"\n')
    program.chmod(0o755)
    (tmp_path / "Modelfile").touch()
    opened: list[Terminal] = []

    def start(name: str) -> Terminal:
        command, setup = SHELLS[name]
        path = shutil.which(command[0])
        if path is None:
            pytest.skip(f"{name} is not installed")
        given = env | {
            "PATH": f"{program.parent}:{env['PATH']}",
            "PS1": "",
            "ZDOTDIR": str(tmp_path),
        }
        terminal = Terminal((), given, command=(path, *command[1:]), cwd=tmp_path)
        opened.append(terminal)
        terminal.type(f"{setup}; echo it is 's'et up\r")
        terminal.expect("it is set up")
        return terminal

    yield start
    for each in opened:
        each.close()


@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("vllama create mine -f Model\t", "Modelfile"),
        ("vllama run smoll\t", "smollm2:135m"),
        ("vllama engines install vl\t", "vllm"),
        ("vllama serve --log-format js\t", "json"),
    ],
)
def test_a_tab_completes(shell: Open, name: str, typed: str, completed: str) -> None:
    terminal = shell(name)
    terminal.type(typed)
    rest = completed.removeprefix(typed.rpartition(" ")[2].rstrip("\t"))
    terminal.expect(rest)
