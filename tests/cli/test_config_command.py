"""`vllama config`: values with their sources, an edited file, and its schema."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.cli.conftest import Vllama
from tests.routes.test_ollama_chat import until
from vllama import config

Editor = Callable[[str], dict[str, str]]


@pytest.fixture
def editor(tmp_path: Path) -> Editor:
    """Return the variables that name an editor which writes a text in the file's place."""

    def writing(text: str) -> dict[str, str]:
        written, program = tmp_path / "written", tmp_path / "editor"
        written.write_text(text)
        program.write_text(f'#!/bin/sh\ncp "{written}" "$1"\n')
        program.chmod(0o755)
        return {"VISUAL": str(program), "PATH": os.environ["PATH"]}

    return writing


@pytest.fixture
def file(env: dict[str, str]) -> Path:
    return Path(env["HOME"]) / ".config/vllama/config.toml"


def test_values_and_sources(vllama: Vllama, file: Path, env: dict[str, str]) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("max_queue = 7\nengine = 'x'\napi_key = ['sk-secret']\n")
    done = vllama("config", "--json", VLLAMA_ENGINE="y", OLLAMA_KEEP_ALIVE="90s")
    assert done.returncode == 0
    told = json.loads(done.stdout)
    found = {row["key"]: (row["text"], row["source"]) for row in told["settings"]}
    assert told["file"] == str(file)
    assert found["max_queue"] == ("7", str(file))
    assert found["engine"] == ("y", "VLLAMA_ENGINE")
    assert found["keep_alive"] == ("1m30s", "OLLAMA_KEEP_ALIVE")
    assert found["host"] == ("127.0.0.1", "OLLAMA_HOST")
    assert found["load_timeout"] == ("5m", "default")
    assert found["api_key"] == ("…", str(file))
    assert "sk-secret" not in done.stdout
    assert {row["key"] for row in told["settings"]} == {each.key for each in config.SETTINGS}


def test_the_table_says_where_the_file_would_be(vllama: Vllama, file: Path) -> None:
    done = vllama("config")
    assert done.stdout.splitlines()[0].split() == ["SETTING", "VALUE", "SOURCE"]
    assert str(file) in done.stderr


def test_editing_makes_the_file(vllama: Vllama, editor: Editor, file: Path) -> None:
    done = vllama("config", "edit", **editor("max_queue = 9\n"))
    assert (done.returncode, done.stderr) == (0, "")
    assert str(file) in done.stdout
    assert tomllib.loads(file.read_text()) == {"max_queue": 9}
    assert vllama("config", "edit", **editor("max_queue = 9\n")).stdout == "nothing was changed\n"


def test_a_link_to_the_file_stays_one(vllama: Vllama, editor: Editor, file: Path) -> None:
    kept = file.parents[2] / "dotfiles" / "vllama.toml"
    for folder in (file.parent, kept.parent):
        folder.mkdir(parents=True)
    kept.write_text("max_queue = 9\n")
    file.symlink_to(kept)
    assert vllama("config", "edit", **editor("max_queue = 10\n")).returncode == 0
    assert file.is_symlink() and kept.read_text() == "max_queue = 10\n"


def test_no_editor_is_started_where_there_is_no_terminal(vllama: Vllama, file: Path) -> None:
    done = vllama("config", "edit", EDITOR="", VISUAL="", OLLAMA_EDITOR="")
    assert done.returncode == 1
    assert done.stderr == (
        "Error: cannot start the editor 'vi': not a terminal\nHint: set VISUAL or EDITOR\n"
    )
    assert not file.exists()


def test_a_file_that_cannot_be_read_is_not_taken(
    vllama: Vllama, editor: Editor, file: Path
) -> None:
    vllama("config", "edit", **editor("max_queue = 9\n"))
    done = vllama("config", "edit", **editor("max_queu = 10\n"))
    assert done.returncode == 2
    (draft,) = file.parent.glob("*.draft-*.toml")
    assert 'cannot use "max_queu"' in done.stderr
    assert f'your changes are saved in "{draft}"' in done.stderr
    assert file.read_text() == "max_queue = 9\n"
    assert draft.read_text() == "max_queu = 10\n"


def test_the_second_of_two_edits_at_once_is_told(
    env: dict[str, str], file: Path, tmp_path: Path
) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("max_queue = 1\n")
    running = []
    for number in (2, 3):
        program = tmp_path / f"editor{number}"  # says that it is open, and waits to be closed
        program.write_text(
            f'#!/bin/sh\ncp "$1" "{program}.seen"\n'
            f'while [ ! -e "{program}.close" ]; do sleep 0.01; done\n'
            f'echo "max_queue = {number}" > "$1"\n'
        )
        program.chmod(0o755)
        command = [sys.executable, "-m", "vllama", "config", "edit"]
        own = {**env, "VISUAL": str(program), "PATH": os.environ["PATH"]}
        process = subprocess.Popen(command, env=own, stdout=PIPE, stderr=PIPE, text=True)
        running.append((process, program))
    for _, program in running:
        until(lambda path=Path(f"{program}.seen"): path.exists() and path.read_text())
    told = []
    for process, program in running:
        Path(f"{program}.close").touch()
        told.append((process.communicate()[1], process.returncode))
    assert told[0] == ("", 0)
    (draft,) = file.parent.glob("*.draft-*.toml")
    assert told[1] == (
        f'Error: cannot write the config file "{file}": it has changed since you opened it\n'
        f'Hint: your changes are saved in "{draft}": open the file again and add them there\n',
        2,
    )
    assert (file.read_text(), draft.read_text()) == ("max_queue = 2\n", "max_queue = 3\n")


@pytest.mark.parametrize("before", ["max_queue = 1\n", None])
def test_what_another_program_has_written_meanwhile_stays(
    vllama: Vllama, file: Path, tmp_path: Path, before: str | None
) -> None:
    file.parent.mkdir(parents=True)
    if before is not None:
        file.write_text(before)
    program = tmp_path / "editor"
    program.write_text(f'#!/bin/sh\necho "debug = true" >> "{file}"\necho "max_queue = 2" > "$1"\n')
    program.chmod(0o755)
    for drafts in (1, 2):
        done = vllama("config", "edit", VISUAL=str(program), PATH=os.environ["PATH"])
        assert done.returncode == 2 and "has changed since you opened it" in done.stderr
        assert "max_queue = 2" not in file.read_text()
        assert len(list(file.parent.glob("*.draft-*.toml"))) == drafts
        file.write_text(before or "")


def test_the_schema_describes_every_setting(vllama: Vllama) -> None:
    schema = json.loads(vllama("config", "schema").stdout)
    assert set(schema["properties"]) == {each.key for each in config.SETTINGS}
    assert schema["properties"]["port"]["default"] == 11434
    assert schema["properties"]["keep_alive"]["default"] == "5m"
    assert schema["properties"]["aliases"]["anyOf"][0]["type"] == "object"
    assert not schema["additionalProperties"]
