"""The files of a service, checked by the programs that read them."""

from __future__ import annotations

import grp
import json
import os
import plistlib
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lacking import lacking
from vllama.base.errors import (
    ConfigError,
    EngineMissing,
    NotEnoughMemory,
    Offline,
    PortTaken,
    VllamaError,
)
from vllama.cli.commands.service import (
    Service,
    install,
    make_launchd_service,
    make_service,
    make_systemd_service,
    quote,
    uninstall,
)

COMMAND = ["/usr/bin/true", "serve", "--model", "a b", "--alias", 'say "hi" 100% $HOME']


def make(*, system: bool, config: Path = Path("/home/me/.config")) -> Service:
    return make_systemd_service(COMMAND, system=system, config=config, stop_timeout_s=60)


def analyse(*words: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        lacking("no systemd-analyze is here")
    return subprocess.run([str(program), *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("system", [True, False])
def test_systemd_takes_the_unit(tmp_path: Path, system: bool) -> None:
    unit = tmp_path / "vllama.service"
    unit.write_text(make(system=system).text)
    done = analyse("verify", "--man=no", str(unit))
    # it reads the units of this machine, too, and complains of theirs
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []


def test_the_service_of_the_machine_may_use_gpus() -> None:
    groups = [
        name for name in ("render", "video") if name in {one.gr_name for one in grp.getgrall()}
    ]
    for system, wanted in ((True, groups), (False, [])):
        lines = make(system=system).text.splitlines()
        found = [line for line in lines if line.startswith("SupplementaryGroups=")]
        assert found == ([f"SupplementaryGroups={' '.join(wanted)}"] if wanted else [])


def test_only_a_wrong_setting_ends_the_service_for_good() -> None:
    lines = make(system=True).text.splitlines()
    assert {"Restart=on-failure", "RestartSec=10", "StartLimitIntervalSec=0"} <= set(lines)
    finals = [line for line in lines if line.startswith("RestartPreventExitStatus=")]
    assert finals == ["RestartPreventExitStatus=2"]
    # memory that others hold, an engine that is installed later, a port that is still taken
    codes = {error.exit_code for error in (NotEnoughMemory, EngineMissing, PortTaken, Offline)}
    assert ConfigError.exit_code == 2 and 2 not in codes


def test_launchd_is_not_told_of_a_wrong_setting(tmp_path: Path) -> None:
    """It has no list of final exit codes, and would start the server again for ever."""
    agent = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XPC_SERVICE_NAME": "vllama"}
    command = [sys.executable, "-m", "vllama", "serve", "--port"]
    for environ, code in ((agent, 0), (agent | {"XPC_SERVICE_NAME": "0"}, 2)):
        done = subprocess.run(
            [*command, "x"], env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == code
        assert 'cannot use port "x"' in done.stderr


def test_the_unit_of_the_machine_is_confined(tmp_path: Path) -> None:
    """systemd's own measure: 10 is a service that may do everything."""
    unit = tmp_path / "vllama.service"
    unit.write_text(make(system=True).text)
    if int(analyse("--version").stdout.split()[1]) < 250:
        pytest.skip("this systemd-analyze cannot judge a file that is not installed")
    words = ("security", "--offline=true", "--json=short")
    done = analyse(*words, "--threshold=30", str(unit))
    assert done.returncode == 0, done.stdout
    rows = json.loads(done.stdout)
    assert next(row for row in rows if row["json_field"] == "PrivateNetwork")["set"] is False


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("a b", '"a b"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("100%", "100%%"),
        ("$HOME", "$$HOME"),
        ("a\\b", '"a\\\\b"'),
        ("a;b", '"a;b"'),
        ("a\nb\tc", '"a\\x0ab\\x09c"'),
        ("a\r[Service]\rExecStart=x", '"a\\x0d[Service]\\x0dExecStart=x"'),
        ("\x7f\x1b\x85\udcff", '"\\x7f\\x1b\\xc2\\x85\\xff"'),
    ],
)
def test_words_of_the_command_line(word: str, written: str) -> None:
    assert quote(word) == written


@pytest.mark.parametrize("sign", [*map(chr, range(1, 32)), *map(chr, range(127, 160))])
def test_no_word_is_a_line_of_the_unit(tmp_path: Path, sign: str) -> None:
    word = f"a{sign}ExecStart=/nonexistent"
    made = make_systemd_service(["x", word], system=False, config=tmp_path, stop_timeout_s=1)
    assert not any(line.startswith("ExecStart=/non") for line in made.text.splitlines())
    assert sign not in quote(word)


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", "sk-1"],
        ["--api-key=sk-1"],
        ["--model", "m", "--upstream-key", "sk-1"],
        ["--model", "m", "--", "--api-key", "sk-1"],
        ["--", "--hf-token=sk-1"],
    ],
)
@pytest.mark.parametrize("system", [True, False])
def test_no_key_is_in_a_unit(words: list[str], system: bool) -> None:
    with pytest.raises(ConfigError, match="cannot store a key in the service") as caught:
        make_service(words, system=system)
    assert "sk-1" not in str(caught.value)


def test_files_with_keys_are_named_in_a_unit() -> None:
    words = ["--api-key-file", "/k", "--tls-cert=/c", "--tls-key", "/t", "--node-key-file=/n"]
    assert " ".join(words) in make_service(words, system=False).text


def test_the_agent_is_a_property_list() -> None:
    made = make_launchd_service(
        COMMAND,
        home=Path("/Users/me"),
        log=Path("/Users/me/vllama.log"),
        search_path="/opt/homebrew/bin:/usr/bin",
        stop_timeout_s=60,
    )
    agent = plistlib.loads(made.text.encode())
    assert agent["ProgramArguments"] == COMMAND
    assert agent["EnvironmentVariables"] == {"PATH": "/opt/homebrew/bin:/usr/bin"}
    assert agent["ExitTimeOut"] == 60
    assert agent["KeepAlive"] == {"SuccessfulExit": False} and agent["ThrottleInterval"] == 10
    assert made.file == Path("/Users/me/Library/LaunchAgents/vllama.plist")


def with_program(folder: Path, code: int = 0) -> Service:
    """Return a service whose manager is a program that notes what it was asked."""
    program = folder / "control"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/calls\necho no such bus >&2\nexit {code}\n'
    )
    program.chmod(0o755)
    made = make(system=False, config=folder / "config")

    def replaced(words: tuple[str, ...]) -> tuple[str, ...]:
        return (str(program), *words[1:])

    return replace(made, start=tuple(map(replaced, made.start)), stop=replaced(made.stop))


def test_installed_twice_and_removed(tmp_path: Path) -> None:
    made = with_program(tmp_path)
    install(made)
    install(made)
    assert made.file == tmp_path / "config/systemd/user/vllama.service"
    assert made.file.read_text() == made.text
    assert uninstall(made) is True
    assert not made.file.exists()
    assert uninstall(made) is False
    started = ["--user enable vllama.service", "--user restart vllama.service"]
    ended = "--user disable --now vllama.service"
    assert (tmp_path / "calls").read_text().splitlines() == [*started, *started, ended]


def test_what_the_manager_says_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(VllamaError, match=r"enable vllama\.service' failed: no such bus") as caught:
        install(with_program(tmp_path, code=1))
    assert caught.value.hint == "see the reason: systemctl --user status vllama"
