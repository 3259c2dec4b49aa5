"""`vllama verify` as a process, with the fake engine: verdicts, failures, and what it leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.server_process import LIMIT_S, Server

pytestmark = pytest.mark.slow

PROMPTS = '["@tokens=4 one", "@tokens=6 two"]'


@pytest.fixture
def home(tmp_path) -> Server:
    """Return a home with an environment in which the fake engine is found; nothing runs in it."""
    return Server(tmp_path)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "vllama", "verify", *arguments]


def verify(home: Server, *arguments: str):
    return subprocess.run(
        command(*arguments, "--prompts", "-"), env=home.env, input=PROMPTS, text=True,
        capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_the_same_answers(home):
    name = home.model("same")
    home.env["VLLAMA_API_KEY"] = "secret"  # its own server wants it too
    done = verify(home, name, "--engines", "fake,fake", "--max-tokens", "5")
    assert done.returncode == 0, done.stderr
    assert (
        "They agree: 100 % of the text is the same" in done.stdout
        and "2 of 2 the same" in done.stdout
    )
    assert "prompts finished" in done.stderr


def test_other_answers(home):
    names = [home.model("one", "--say", '"abcdef"'), home.model("two", "--say", '"abcxyz"')]
    engines = ",".join(f"fake={name}" for name in names)
    done = verify(home, "--engines", engines, "--json", "--min-agreement", "0.6")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert not told["ok"] and [one["model"] for one in told["engines"]] == names
    assert told["agreement"] < 0.6 and told["same_answers"] == 0
    first = told["prompts"][0]
    assert first["answers"][0].startswith("abcdef") and first["difference"]["character"] == 3
    lower = verify(home, "--engines", engines, "--min-agreement", "0.1")
    assert lower.returncode == 0, lower.stdout + lower.stderr


def test_an_engine_that_does_not_start(home):
    fine = home.model("fine")
    broken = home.model("broken", "--exit-before-ready", "--print", "no such color: red")
    done = verify(home, "--engines", f"fake={fine},fake={broken}")
    assert done.returncode == 3 and done.stdout == ""
    assert "cannot verify with fake" in done.stderr and "the color red is unknown" in done.stderr
    assert "Hint: paint it" in done.stderr


def test_an_engine_that_ends_while_it_answers(home):
    name = home.model("short", "--die-after", "2", "--exit-code", "7")
    done = verify(home, name, "--engines", "fake,fake")
    assert done.returncode == 3 and done.stdout == ""
    assert "cannot verify with fake" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_it(home, number):
    name = home.model("slow", "--token-interval", "60")
    log = home.home / "verify.log"
    temporary = home.home / "temporary"
    temporary.mkdir()
    home.env["TMPDIR"] = str(temporary)
    with log.open("wb") as out:
        arguments = command(name, "--engines", "fake,fake")
        process = subprocess.Popen(arguments, env=home.env, stdout=out, stderr=out)
    tree = []
    try:
        deadline = time.monotonic() + LIMIT_S
        # guard, server, guard of the engine, engine
        while not any("engine.py" in " ".join(cmdline(each)) for each in tree):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            tree = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.05)
        process.send_signal(number)
        process.wait(LIMIT_S)
        if number == signal.SIGINT:
            assert process.returncode == 130
    finally:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(tree, timeout=LIMIT_S)
    assert not alive
    assert not list(temporary.iterdir())


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
