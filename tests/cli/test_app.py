"""The command table: help, version, wrong usage, and what is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Vllama
from vllama import __version__
from vllama.cli.app import ALIASES, GROUPS, prepare, run

COMMANDS = [name for _, commands in GROUPS for name, _, _ in commands]


@pytest.mark.parametrize("argv", [["--version"], ["--version", "ps"]])
def test_version(argv: list[str], vllama: Vllama) -> None:
    done = vllama(*argv)
    assert (done.returncode, done.stdout) == (0, f"vllama version is {__version__}\n")


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 0
    text = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in text
    assert "Examples:" in text
    assert "\n  ls" not in text


@pytest.mark.parametrize("command", [*COMMANDS, *ALIASES])
@pytest.mark.parametrize("form", [("{}", "--help"), ("help", "{}")])
def test_help_of_a_command(
    command: str, form: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([part.format(command) for part in form]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: vllama {command} ")
    assert "Example" in text


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["serv"], "No such command 'serv'", "did you mean 'vllama serve'?"),
        (["lsit"], "No such command 'lsit'", "did you mean 'vllama list'?"),
        (["zzzzz"], "No such command 'zzzzz'", "see 'vllama --help'"),
        (["run"], "Missing argument 'MODEL'", "see 'vllama run --help'"),
        (["ps", "--foo"], "No such option: --foo", "see 'vllama ps --help'"),
        (["serve", "foo"], "unexpected extra argument(s) (foo)", "name the model with --model"),
        (["show", "m", "--license", "--system"], "only one of --license", None),
        (["run", "m", "--think=much"], 'cannot use think "much" from --think', "--think=low|"),
        (["run", "m", "--format", "xml"], 'cannot use format "xml" from --format', "--format json"),
        (["run", "m", "--keepalive", "soon"], 'keep_alive "soon" from --keepalive', "10m"),
        (["serve", "--port", "x"], 'cannot use port "x" from --port: not a whole number', "11434"),
        (["serve", "--ctx", "-5"], 'context_length "-5" from --ctx: less than 1', "8192"),
        (["serve", "--config", "/no/such.toml"], 'config file "/no/such.toml"', None),
    ],
)
def test_wrong_usage(
    argv: list[str],
    message: str,
    hint: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    first, *rest = shown.err.splitlines()
    assert first.startswith("Error: ")
    assert message in first
    assert len(rest) <= 1
    assert hint is None or (rest[0].startswith("Hint: ") and hint in rest[0])


@pytest.mark.parametrize(
    ("argv", "args", "engine_args"),
    [
        (["serve", "-m", "x", "--", "--seed", "1"], ["serve", "-m", "x"], ("--seed", "1")),
        (["start", "--"], ["start"], ()),
        (["run", "m", "--think", "why"], ["run", "m", "--think=true", "why"], ()),
        (["run", "m", "--think=high"], ["run", "m", "--think=high"], ()),
        (["run", "m", "--", "--think"], ["run", "m", "--", "--think"], ()),
        (["help"], ["--help"], ()),
    ],
)
def test_prepared_arguments(argv: list[str], args: list[str], engine_args: tuple[str, ...]) -> None:
    assert prepare(argv) == (args, engine_args)


def imported(*argv: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "vllama", *argv],
        text=True,
        capture_output=True,
        timeout=50,
        check=True,
    )
    return {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}


def test_version_imports_nothing_heavy() -> None:
    heavy = {"typer", "rich", "asyncio", "vllama.cli.app", "platformdirs", "logging", "json"}
    assert not heavy & imported("--version")


@pytest.mark.parametrize("argv", [["--help"], ["serve", "--help"]])
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    heavy = {
        "huggingface_hub",
        "uvicorn",
        "uvloop",
        "psutil",
        "httpx2",
        "msgspec",
        "prompt_toolkit",
        "rich.console",
        "vllama.daemon",
        "vllama.models.library",
    }
    assert not heavy & imported(*argv)


def test_a_broken_pipe_is_quiet(env: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m vllama --help | true"],
        env=env,
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert done.stderr == b""
