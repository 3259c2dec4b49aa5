"""Commands, options and actions that were removed: one line says what to do instead."""

from __future__ import annotations

import os

import pytest

from tests.cli.conftest import Vllama
from vllama.cli.app import run
from vllama.cli.command_index import ALIASES, COMMANDS
from vllama.config import SETTINGS, removed
from vllama.models.settings import MODEL_FIELDS


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


@pytest.mark.parametrize(("old", "new"), removed.RENAMED_OPTIONS.items())
@pytest.mark.parametrize("form", [("{}", "-5"), ("{}=-5",)])
def test_a_renamed_option_is_taken_with_a_notice(old, new, form, capsys) -> None:
    assert run(["serve", *(part.format(old) for part in form)]) == 2
    out, err = capsys.readouterr()
    first, second, *_ = err.splitlines()
    assert (out, first) == ("", f"Warning: {old} is now called {new}")
    assert second.endswith(f'"-5" from {new}: less than 1')


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["serve", "--num-ctx", "1"], "did you mean --context-length?"),
        (["serve", "--max-model-len=1"], "did you mean --context-length?"),
        (["plan", "m", "--n-gpu-layers", "1"], "did you mean --gpu-layers?"),
        (["run", "m", "--num-ctx", "1"], "/set parameter num_ctx VALUE"),
    ],
)
def test_names_of_other_programs_get_a_hint(argv, hint, capsys) -> None:
    assert run(argv) == 2
    assert hint in capsys.readouterr().err


def test_every_other_name_stands_for_one_that_is_there() -> None:
    fields = {each.key for each in (*SETTINGS, *MODEL_FIELDS)}
    assert fields >= {*removed.ELSEWHERE.values(), *removed.RENAMED_FIELDS.values()}
    flags = {setting.flag for setting in SETTINGS}
    assert flags >= set(removed.RENAMED_OPTIONS.values())
    assert not flags & removed.RENAMED_OPTIONS.keys()


def test_a_setting_is_called_the_same_everywhere() -> None:
    for each in SETTINGS:
        assert each.env == f"VLLAMA_{each.key.upper()}"
        flag = (each.flag or f"--{each.key}").removeprefix("--").replace("-", "_")
        assert each.key in (flag, f"{flag}s")
    of_models = {each.key for each in MODEL_FIELDS}
    meanings = {each.key: each.field for each in SETTINGS}
    for each in MODEL_FIELDS:
        assert meanings.get(each.key, each.field).startswith(each.key)
    assert {"context_length", "num_parallel", "keep_alive", "max_tokens"} <= of_models


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
