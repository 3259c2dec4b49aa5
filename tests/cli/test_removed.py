"""Commands, options and actions that were removed: one line says what to do instead."""

from __future__ import annotations

import os

import pytest

from tests.cli.conftest import Vllama
from vllama.cli.app import run
from vllama.cli.command_index import ALIASES, COMMANDS
from vllama.config import SETTINGS, removed


@pytest.mark.parametrize(("name", "advice"), removed.COMMANDS.items())
@pytest.mark.parametrize("more", [(), ("--token-file", "x"), ("qwen3:8b", "--json"), ("--help",)])
def test_a_removed_command(name, advice, more, capsys) -> None:
    assert run([name, *more]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"Error: 'vllama {name}' was removed; {advice}\n")


@pytest.mark.parametrize(("what", "advice"), removed.OPTIONS.items())
def test_a_removed_option_or_action(what, advice, capsys) -> None:
    command, word = what
    is_option = word.startswith("-")
    name = f"'vllama {command} {word}'"
    forms = [(word, "x"), (f"{word}=x",), ("big", word)] if is_option else [(word,)]
    for form in forms:
        assert run([command, *form]) == 2
        out, err = capsys.readouterr()
        assert (out, err) == ("", f"Error: {name} was removed; {advice}\n")


def test_the_table_names_nothing_that_is_there() -> None:
    assert not removed.COMMANDS.keys() & {*COMMANDS, *ALIASES}
    assert not removed.SETTINGS.keys() & {setting.key for setting in SETTINGS}


def test_a_command_warns_of_an_old_file(vllama: Vllama, env: dict[str, str], tmp_path) -> None:
    file = tmp_path / "old.toml"
    file.write_text('max_queue = 7\n[upstream_traits."http://h"]\ncontext = 1\n')
    done = vllama("config", VLLAMA_CONFIG=str(file))
    assert done.returncode == 0 and "max_queue" in done.stdout
    assert done.stderr == (
        f"Warning: upstream_traits from {file}, line 2 has no effect: it was removed; "
        f"{removed.SETTINGS['upstream_traits']}\n"
    )


def test_an_editor_opens_a_file_that_is_refused(vllama: Vllama, tmp_path) -> None:
    file, editor = tmp_path / "old.toml", tmp_path / "editor"
    file.write_text('cluster = "ray"\nmax_queue = 7\n')
    editor.write_text('#!/bin/sh\nsed -i.bak /cluster/d "$1"\n')
    editor.chmod(0o755)
    refused = vllama("config", VLLAMA_CONFIG=str(file))
    assert refused.returncode == 2 and f"{file}, line 1: it was removed" in refused.stderr
    more = {"VISUAL": str(editor), "PATH": os.environ["PATH"], "VLLAMA_CONFIG": str(file)}
    assert vllama("config", "edit", **more).returncode == 0
    assert file.read_text() == "max_queue = 7\n"
