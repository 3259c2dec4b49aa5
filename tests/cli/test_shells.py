"""Completion in real shells: a person types a tab on a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shell_files import COMPLETIONS, write_completion

from tests.cli.stub import StubServer
from tests.cli.terminal import Terminal
from tests.lacking import lacking

SHELLS = {
    "bash": (("bash", "--norc", "--noprofile", "-i"), 'eval "$(vllama completion bash)"'),
    "zsh": (
        ("zsh", "-f", "-i"),
        'autoload -Uz compinit; compinit -u; eval "$(vllama completion zsh)"',
    ),
    "fish": (("fish", "--no-config", "-i"), "vllama completion fish | source"),
}
INSTALLED = {
    "bash": ". {}",  # what bash-completion does at the first tab
    "zsh": "fpath=({} $fpath); autoload -Uz compinit; compinit -u",
    "fish": "set --prepend fish_complete_path {}",
}
"""How a shell comes to a file of the wheel: bash by its path, the others by its folder."""
Open = Callable[[str, str], Terminal]


def test_zsh_finds_what_its_file_completes_in_the_first_line() -> None:
    assert write_completion("zsh").startswith("#compdef vllama\n")


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

    def start(name: str, setup: str) -> Terminal:
        command, _ = SHELLS[name]
        path = shutil.which(command[0]) or lacking(f"{name} is not installed")
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


@pytest.mark.slow
@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("vllama create mine -f Model\t", "Modelfile"),
        ("vllama run smoll\t", "smollm2:135m"),
        ("vllama run smollm2:1\t", "smollm2:135m"),
        ("vllama show --verbose smollm2:\t", "smollm2:135m"),
        ("vllama engines install vl\t", "vllm"),
        ("vllama serve --log-format js\t", "json"),
    ],
)
def test_a_tab_completes(shell: Open, name: str, typed: str, completed: str) -> None:
    terminal = shell(name, SHELLS[name][1])
    terminal.type(typed)
    rest = completed.removeprefix(typed.rpartition(" ")[2].rstrip("\t"))
    terminal.expect(rest)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHELLS)
def test_the_files_of_the_wheel_complete_from_the_first_tab_on(
    shell: Open, tmp_path: Path, name: str
) -> None:
    file = tmp_path / COMPLETIONS[name]
    file.parent.mkdir(parents=True)
    file.write_text(write_completion(name))
    terminal = shell(name, INSTALLED[name].format(file if name == "bash" else file.parent))
    terminal.type("vllama engines install vl\t")
    terminal.expect("vllm")


@pytest.mark.slow
def test_bash_divides_the_words_of_other_commands_as_before(shell: Open) -> None:
    terminal = shell("bash", "before=$COMP_WORDBREAKS; " + SHELLS["bash"][1])
    terminal.type("[[ $COMP_WORDBREAKS = \"$before\" ]] && echo it is 't'he same\r")
    terminal.expect("it is the same")
