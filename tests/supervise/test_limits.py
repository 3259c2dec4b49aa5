"""Limits of an engine: its memory, its end before others', and none of the server's secrets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.supervise.conftest import ENV, LIMIT_S, SHORT, Lab, until
from vllama.base.errors import EngineStartFailed
from vllama.supervise import guard, shim, spec
from vllama.supervise.probe import http_status
from vllama.supervise.process import OOM_SCORE, Child
from vllama.supervise.spec import Exit
from vllama.supervise.supervisor import SupervisedProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="as Linux has it"),
]

MIB = 1024**2
LIMIT = 200 * MIB
STRANGER = 65534  # nobody


def run(lab: Lab, code: str) -> tuple[int | None, int]:
    """Run code that has 200 MiB; return the excess (None: there was none), and the exit code."""

    async def main() -> tuple[int | None, int]:
        child = await Child.spawn(
            (sys.executable, "-I", "-S", "-c", code, str(lab.folder)),
            env=ENV,
            grace=SHORT,
            log_path=lab.folder / "log",
            memory_limit_bytes=LIMIT,
        )
        async with asyncio.timeout(LIMIT_S):
            await asyncio.wait({child.excess, child.exited}, return_when="FIRST_COMPLETED")
            excess = child.excess.result() if child.excess.done() else None
            if excess is not None:
                tree = child.remember()
                await until(lambda: {proc.status() for proc in tree} == {psutil.STATUS_STOPPED})
            assert await child.kill_tree(LIMIT_S) == ()
            return excess, await child.wait()

    return asyncio.run(main())


TAKES = "held = bytearray(300 << 20); import time; time.sleep(9999)"
AT_ONCE = "import os, time\nfor _ in range(2): os.fork()\n"


@pytest.mark.parametrize(
    "code",
    [
        TAKES,
        "import mmap; held = mmap.mmap(-1, 300 << 20); held.write(b'x' * (300 << 20))\n"
        "import time; time.sleep(9999)",
        f"import os\nif os.fork() == 0:\n    os.setsid()\n    {TAKES}\nos.wait()",
        f"{AT_ONCE}held = bytearray(80 << 20); time.sleep(9999)",
    ],
    ids=["heap", "shared", "child", "sum"],
)
def test_a_tree_beyond_its_limit_is_frozen_and_reported(lab: Lab, code: str) -> None:
    excess, ended = run(lab, code)
    assert excess is not None and excess > LIMIT
    assert ended == -signal.SIGKILL


@pytest.mark.parametrize(
    "code",
    [
        # 300 MiB of a file
        "import mmap, sys; file = open(sys.argv[1] + '/file', 'r+b')\n"
        "held = mmap.mmap(file.fileno(), 0); sum(held[::4096])",
        # 150 MiB that four processes share
        f"held = bytearray(150 << 20)\n{AT_ONCE}",
        # 300 GiB of addresses, MAP_NORESERVE
        "import mmap; held = mmap.mmap(-1, 300 << 30, mmap.MAP_PRIVATE | 0x4000)",
    ],
    ids=["file", "forks", "addresses"],
)
def test_what_is_not_its_own_does_not_count(lab: Lab, code: str) -> None:
    with (lab.folder / "file").open("wb") as file:
        file.truncate(300 * MIB)
    # long enough for a guard to measure it several times
    assert run(lab, f"{code}\nimport time; time.sleep(2.5)") == (None, 0)


def test_an_engine_that_is_too_large_is_restarted_and_the_cause_told(lab: Lab) -> None:
    causes: list[str] = []

    async def script(proc: SupervisedProcess) -> None:
        first = await proc.ensure_ready()
        body = json.dumps({"messages": [{"role": "user", "content": "@takes=300"}]}).encode()
        path, key = "/v1/chat/completions", first.api_key
        # no answer: it is killed first
        assert await http_status(first, path, timeout_s=LIMIT_S, api_key=key, post=body) is None
        await until(lambda: proc.endpoint not in (None, first))
        (attempt, _) = proc.attempts
        assert attempt.diagnosis is not None
        causes.append(attempt.diagnosis.cause)

    lab.play(lab.process("--token-interval", "9999", memory_limit_bytes=LIMIT), script)
    (cause,) = causes
    assert cause.startswith("it used ") and cause.endswith(
        "of memory, more than its limit of 200 MiB"
    )


def test_a_start_that_takes_too_much_has_failed(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        with pytest.raises(EngineStartFailed, match="more than its limit of 200 MiB"):
            await proc.ensure_ready()

    flags = ("--peak", "300", "--ready-after", "9999")
    lab.play(lab.process(*flags, memory_limit_bytes=LIMIT), script)


def read_score(pid: object) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_what_the_kernel_ends_first(lab: Lab) -> None:
    async def script(proc: SupervisedProcess) -> None:
        await proc.ensure_ready()
        assert read_score(proc.pid) == max(read_score("self"), OOM_SCORE)

    lab.play(lab.process("--spawn-child"), script)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into a guard")
def test_a_guard_has_no_secrets_of_the_server(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    async def script(proc: SupervisedProcess) -> None:
        await proc.ensure_ready()
        engine = psutil.Process(proc.pid)
        names = engine.parent().environ().keys()
        assert names - set(guard.LOADER) == {shim.ENV_VARIABLE}

    lab.play(lab.process(), script)


PEEK = """
import os, sys
os.setgid({stranger}); os.setuid({stranger})
for file in ("environ", "mem", "maps"):
    try:
        open(f"/proc/{{sys.argv[1]}}/{{file}}").read(1)
    except PermissionError:
        continue
    except (OSError, UnicodeDecodeError):
        pass
    sys.exit(f"{{file}} can be read")
open(f"/proc/{{sys.argv[1]}}/stat").read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="has to become another user twice")
def test_other_programs_of_the_user_cannot_read_one_that_is_closed() -> None:
    """As an engine would read its guard and the server."""
    code = (
        "import ctypes, os, sys; there = {'__name__': ''}; exec(open(sys.argv[1]).read(), there)\n"
        f"os.setgid({STRANGER}); os.setuid({STRANGER})\n"
        "there['prctl'](4, 1)  # as after an exec\n"
        "assert sys.argv[2] == 'False' or there['prctl'](there['PR_SET_DUMPABLE'], 0)\n"
        "print('ready', flush=True); input()"
    )
    for is_closed in (False, True):
        with subprocess.Popen(
            (sys.executable, "-I", "-S", "-c", code, shim.__file__, str(is_closed)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None and process.stdout.readline()
            command = (sys.executable, "-I", "-S", "-c", PEEK.format(stranger=STRANGER))
            found = subprocess.run((*command, str(process.pid)), capture_output=True, check=False)
            assert (found.returncode == 0) is is_closed, found.stderr
            process.communicate(b"\n")


GUARDED = """
import sys
there = {"__name__": ""}
exec(open(sys.argv[1]).read(), there)
there.update(GROUPS=sys.argv[2], OWN_GROUP=sys.argv[2] + "/own")
there["main"](["--status-fd", "1", "--grace", "1", "--memory", "1048576000", "--", *sys.argv[3:]])
"""


@pytest.mark.parametrize(
    ("own", "is_made"),
    [
        ("0::/system.slice/vllama.service/server\n", True),
        ("1:name=systemd:/\n0::/system.slice/vllama.service/server\n", True),
        ("0::/system.slice/vllama.service\n", False),  # not divided
        ("0::/user.slice/session-1.scope\n", False),
        ("0::/elsewhere/server\n", False),  # cannot be divided
        ("4:memory:/server\n", False),
    ],
)
@pytest.mark.parametrize("kills", [0, 1])
def test_a_service_has_the_kernel_hold_the_limit(
    tmp_path: Path, own: str, is_made: bool, kills: int
) -> None:
    """On folders that look like control groups: version 2 is not everywhere."""
    unit = tmp_path / "system.slice/vllama.service"
    unit.mkdir(parents=True)
    (tmp_path / "own").write_text(own)
    engine = (
        "import pathlib, sys; made = list(pathlib.Path(sys.argv[1]).glob('engine-*'))\n"
        f"for each in made: (each / 'memory.events').write_text('oom 9\\noom_kill {kills}\\n')"
    )
    stdin, supervisor = os.pipe()  # its closing would end the guard
    found = subprocess.run(
        (
            *(sys.executable, "-I", "-S", "-c", GUARDED, shim.__file__, str(tmp_path)),
            *(sys.executable, "-I", "-S", "-c", engine, str(unit)),
        ),
        env={shim.ENV_VARIABLE: ""},
        stdin=stdin,
        capture_output=True,
        text=True,
        check=True,
    )
    os.close(stdin)
    os.close(supervisor)
    told = [line for line in found.stdout.splitlines() if not line.startswith("pid ")]
    assert told == ["memory 0", "exit 0"][0 if kills and is_made else 1 :]
    groups = {
        file.name: file.read_text()
        for folder in unit.glob("engine-*")
        for file in folder.iterdir()
        if file.name != "memory.events"
    }
    limits = {"memory.max": "1048576000", "memory.oom.group": "1", "cgroup.procs": "0"}
    assert groups == (limits if is_made else {})
    divided = unit / "cgroup.subtree_control"
    assert divided.exists() is is_made and (not is_made or divided.read_text() == "+memory")


@pytest.mark.parametrize(("mark", "moves"), [(b"1", True), (b"0", False), (None, False)])
def test_a_server_divides_only_a_group_that_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: bytes | None, moves: bool
) -> None:
    unit = tmp_path / "vllama.service"
    unit.mkdir()
    (tmp_path / "own").write_text("0::/vllama.service\n")
    if mark is not None:
        os.setxattr(unit, "user.delegate", mark)
    monkeypatch.setattr(shim, "GROUPS", str(tmp_path))
    monkeypatch.setattr(shim, "OWN_GROUP", str(tmp_path / "own"))
    guard.divide_control_group()
    moved = unit / "server/cgroup.procs"
    assert (moved.read_text() if moved.exists() else None) == ("0" if moves else None)


@pytest.mark.parametrize("own", [0, 300, 700])
def test_a_score_is_never_lowered(own: int) -> None:
    code = (
        "exec(open(sys.argv[1]).read(), there)\n"
        "open('/proc/self/oom_score_adj', 'w').write(sys.argv[2])\n"
        "there['raise_oom_score'](500)\n"
        "print(open('/proc/self/oom_score_adj').read())"
    )
    command = (sys.executable, "-I", "-S", "-c", f"import sys; there = {{'__name__': ''}}; {code}")
    found = subprocess.run(
        (*command, shim.__file__, str(own)), capture_output=True, text=True, check=True
    )
    assert int(found.stdout) == max(own, 500)


def test_the_cause_is_the_limit_whatever_the_exit() -> None:
    launch = Lab(Path("/nowhere")).spec(spec.Endpoint(port=1), memory_limit_bytes=LIMIT)
    assert "its limit of 200 MiB" in launch.explain(Exit(code=-9, excess_bytes=2 * LIMIT)).cause
    by_kernel = launch.explain(Exit(code=-9, excess_bytes=0)).cause
    assert by_kernel == "it used more memory than its limit of 200 MiB"
    assert launch.explain(Exit(code=-9)).cause == "killed by signal 9"
