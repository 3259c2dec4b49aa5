"""How checks are run: at once, each with its limit; and the whole command."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vllama.base.errors import ConfigError
from vllama.doctor.check import Check, Once, failure, ok, run, warning

pytestmark = pytest.mark.slow  # processes of their own


def test_one_that_hangs_is_told_and_left_behind() -> None:
    never = threading.Event()

    def hang():
        never.wait()
        yield ok("too late")

    found = run(
        [Check(name="dead", ask=hang, limit_s=0.05), Check(name="b", ask=lambda: [ok("x")])]
    )
    never.set()
    assert found == [("dead", warning("no result within 0.05 s")), ("b", ok("x"))]


def test_all_are_asked_at_once() -> None:
    barrier = threading.Barrier(3, timeout=20.0)

    def ask():
        barrier.wait()
        yield ok("met")

    found = run([Check(name=name, ask=ask, limit_s=20.0) for name in "abc"])
    assert found == [(name, ok("met")) for name in "abc"]


def test_one_that_fails_itself_takes_no_other_down() -> None:
    def wrong():
        raise KeyError("x")

    def known():
        raise ConfigError("cannot do it: reason", hint="do that")

    found = run([Check(name="wrong", ask=wrong), Check(name="known", ask=known)])
    assert found == [
        ("wrong", warning("this check failed (KeyError: 'x')")),
        ("known", failure("cannot do it: reason", "do that")),
    ]


def test_what_several_want_is_found_out_once() -> None:
    asked: list[int] = []
    once = Once(lambda: asked.append(1) or "answer")
    found = run([Check(name=str(n), ask=lambda: [ok(once())]) for n in range(5)])
    assert {finding.text for _, finding in found} == {"answer"} and asked == [1]


def doctor(tmp_path: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1",
           "OLLAMA_HOST": "127.0.0.1:0", **environ}  # fmt: skip
    command = [sys.executable, "-m", "vllama", "doctor", *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)


def test_the_command(tmp_path: Path, web) -> None:
    done = doctor(tmp_path, "--json")
    told = json.loads(done.stdout)
    assert told["ok"] is (done.returncode == 0)
    checks = {row["check"] for row in told["findings"]}
    assert {"versions", "GPU", "memory", "engine", "port", "disk", "models", "hub"} <= checks
    assert {row["status"] for row in told["findings"] if row["check"] == "hub"} == {"skipped"}

    web.answer["/api/version"] = (200, {"version": "0.9"})
    done = doctor(tmp_path, OLLAMA_HOST=f"127.0.0.1:{web.server_port}")
    assert done.returncode == 1
    assert f"FAILED  port           port {web.server_port} is used by an Ollama" in done.stdout
    assert "hint: stop it" in done.stdout


def test_settings_that_cannot_be_read_are_one_finding_of_many(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--json", VLLAMA_PORT="many")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    (settings,) = [row for row in told["findings"] if row["check"] == "settings"]
    assert "cannot use port" in settings["text"]
    assert len(told["findings"]) > 10


def test_a_driver_that_hangs_does_not_hold_it_up(tmp_path: Path) -> None:
    """The check that waits is told as such within its limit, and the program ends."""
    code = (
        "import sys, time; from vllama.doctor import check\n"
        "found = check.run([check.Check(name='GPU', ask=lambda: time.sleep(600), limit_s=0.2)])\n"
        "print(found[0][1].text)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout == "no result within 0.2 s\n"
