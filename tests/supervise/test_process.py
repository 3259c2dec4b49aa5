"""The child behind its guard: environment, descriptors, output, exit codes, ends."""

from __future__ import annotations

import asyncio
import binascii
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.loops import in_loop
from tests.supervise.conftest import ENV, LIMIT_S, SHORT, Lab, eventually, until
from vllama.base.errors import EngineStartFailed
from vllama.supervise import shim
from vllama.supervise.process import Child
from vllama.supervise.spec import Grace

pytestmark = pytest.mark.slow


def python(code: str, marker: Path) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code, str(marker))


async def run_to_end(code: str, folder: Path, **changes: object) -> tuple[int, str]:
    """Run Python code as a child; return its exit code and output."""
    log_path = folder / "log"
    options: dict[str, object] = {"env": ENV, "grace": SHORT, **changes}
    child = await Child.spawn(python(code, folder), log_path=log_path, **options)  # type: ignore[arg-type]
    async with asyncio.timeout(LIMIT_S):
        ended = await child.wait()
        await child.gone
    assert await child.kill_tree(5.0) == ()
    return ended, log_path.read_text()


@pytest.mark.parametrize("code", [0, 3, 127, 255])
def test_exit_code(tmp_path: Path, code: int) -> None:
    assert asyncio.run(run_to_end(f"import os; os._exit({code})", tmp_path))[0] == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT])
def test_death_by_signal(tmp_path: Path, number: signal.Signals) -> None:
    code = f"import os; os.kill(os.getpid(), {int(number)})"
    assert asyncio.run(run_to_end(code, tmp_path))[0] == -number


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"A": "x=y\nz", "LC_CTYPE": "C", "PYTHONPATH": "/nowhere", "EMPTY": "", "Ü": "ß€"},
        {"LD_PRELOAD": "/no/such/library.so", "PYTHONHOME": "/nowhere", "BIG": "x" * 60_000},
    ],
)
def test_the_environment_is_exactly_the_given_one(tmp_path: Path, env: dict[str, str]) -> None:
    code = "print(open('/proc/self/environ', 'rb').read())"
    if not Path("/proc/self/environ").exists():
        pytest.skip("needs /proc")
    _, output = asyncio.run(run_to_end(code, tmp_path, env=env))
    pairs = b"".join(os.fsencode(f"{name}={value}\0") for name, value in env.items())
    assert repr(pairs) in output


@in_loop
async def test_descriptors_session_and_signals_are_clean(tmp_path: Path) -> None:
    code = """if True:
        import json, os, signal
        fds = []
        for fd in range(256):
            try:
                os.fstat(fd)
                fds.append(fd)
            except OSError:
                pass
        ignored = [n for n in (1, 2, 10, 15, 17) if signal.getsignal(n) == signal.SIG_IGN]
        print(json.dumps({
            "fds": fds, "ignored": ignored, "stdin": os.read(0, 10).decode(),
            "leader": os.getsid(0) == os.getpid() == os.getpgid(0),
            "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "cwd": os.getcwd(),
        }))"""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        _, output = await run_to_end(code, tmp_path, cwd=tmp_path)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
    seen = json.loads(output)
    assert seen["fds"] == [0, 1, 2]
    assert seen["leader"] and not seen["ignored"] and not seen["blocked"]
    assert seen["stdin"] == ""
    assert seen["cwd"] == str(tmp_path)


def test_output_of_any_size_does_not_block(tmp_path: Path) -> None:
    code = "import sys; sys.stdout.write('x' * 3_000_000); sys.stderr.write('y' * 3_000_000)"
    ended, output = asyncio.run(run_to_end(code, tmp_path))
    assert ended == 0
    assert output.count("x") == output.count("y") == 3_000_000


@pytest.mark.parametrize(
    ("argv", "cwd", "text"),
    [
        (("/no/such/engine",), None, "cannot run '/no/such/engine': No such file"),
        (("no-such-engine-on-path",), None, "cannot run 'no-such-engine-on-path': No such file"),
        ((str(Path(__file__)),), None, "Permission denied"),
        (("/bin/true",), Path("/no/such/folder"), "in '/no/such/folder': No such"),
        (("/bin/true", "a\0b"), None, "cannot run '/bin/true': embedded null byte"),
        (("/bin/true", "x" * 3_000_000), None, "Argument list too long"),
    ],
)
@in_loop
async def test_what_cannot_be_executed(
    tmp_path: Path, argv: tuple[str, ...], cwd: Path | None, text: str
) -> None:
    with pytest.raises(EngineStartFailed) as failed:
        await Child.spawn(argv, env=ENV, cwd=cwd, log_path=tmp_path / "log")
    assert text in failed.value.message


@in_loop
async def test_exited_comes_before_gone_when_something_is_left_behind(lab: Lab) -> None:
    flags = ("--spawn-daemon", "--ignore-term", "--exit-after", "0", "--exit-code", "4")
    grace = Grace(term_s=900, second_term_s=900)
    child = await Child.spawn(lab.argv(*flags), env=ENV, grace=grace, log_path=lab.folder / "log")
    assert await child.wait() == 4
    await until(lambda: "daemon" in lab.pids())
    assert not child.gone.done()
    assert await child.kill_tree(20.0) == ()
    assert child.gone.done()


@in_loop
async def test_the_guard_ends_by_itself_what_is_left_behind(lab: Lab) -> None:
    flags = ("--spawn-setsid", "--spawn-daemon", "--ignore-term", "--exit-after", "0")
    child = await Child.spawn(lab.argv(*flags), env=ENV, grace=SHORT, log_path=lab.folder / "log")
    await child.gone
    assert not lab.survivors()


@in_loop
async def test_terminate_twice_reaches_everybody_each_time(lab: Lab) -> None:
    code = """if True:
        import os, signal, sys, time
        def note(*_):
            with open(sys.argv[1] + "/terms", "a") as file:
                file.write(kind)
        kind = "e"
        signal.signal(signal.SIGTERM, note)
        if not os.fork():
            kind = "s"
            os.setsid()
        elif not os.fork():
            kind = "g"
        print(kind, flush=True)
        while True:
            time.sleep(60)"""

    def terms() -> str:
        path = lab.folder / "terms"
        return "".join(sorted(path.read_text())) if path.exists() else ""

    log_path = lab.folder / "log"
    child = await Child.spawn(python(code, lab.folder), env=ENV, grace=SHORT, log_path=log_path)
    await until(lambda: len(log_path.read_text().split()) == 3)
    await child.terminate()
    await until(lambda: terms() == "egs")
    await child.terminate()
    await until(lambda: terms() == "eeggss")
    assert not child.exited.done()
    assert await child.kill_tree(20.0) == ()
    assert await child.wait() == -signal.SIGKILL


@in_loop
async def test_kill_tree_of_a_tree_that_keeps_forking(lab: Lab) -> None:
    code = """if True:
        import os, time
        print("forking", flush=True)
        while True:
            if not os.fork():
                if os.getpid() % 2:
                    os.setsid()
                time.sleep(0.02)
                if os.fork():
                    os._exit(0)
                time.sleep(0.2)
                os._exit(0)
            time.sleep(0.005)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass"""
    log_path = lab.folder / "log"
    child = await Child.spawn(python(code, lab.folder), env=ENV, grace=SHORT, log_path=log_path)
    await until(lambda: "forking" in log_path.read_text())
    await until(lambda: len(child.remember()) > 3)
    assert await child.kill_tree(20.0) == ()
    assert not lab.survivors()


@in_loop
async def test_cancelled_spawn_leaves_nothing(lab: Lab) -> None:
    spawning = asyncio.ensure_future(
        Child.spawn(lab.argv("--ignore-term"), env=ENV, log_path=lab.folder / "log")
    )
    await asyncio.sleep(0)
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    assert not lab.survivors()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@in_loop
async def test_a_signal_to_the_guard_ends_the_tree(lab: Lab, number: signal.Signals) -> None:
    flags = ("--spawn-daemon", "--ignore-term")
    child = await Child.spawn(lab.argv(*flags), env=ENV, grace=SHORT, log_path=lab.folder / "log")
    await until(lambda: "daemon" in lab.pids())
    os.kill(child.guard_pid, number)
    assert await child.wait() == -signal.SIGKILL
    await child.gone
    assert not lab.survivors()


@in_loop
async def test_sigkill_of_the_guard_ends_the_engine(lab: Lab) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("needs PDEATHSIG")
    child = await Child.spawn(
        lab.argv("--ignore-term", "--spawn-child"), env=ENV, log_path=lab.folder / "log"
    )
    await until(lambda: "child" in lab.pids())
    kin = child.remember()
    os.kill(child.guard_pid, signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL
    await child.gone
    assert await child.kill_tree(20.0) == ()  # the orphan, by its session
    assert not [p for p in kin if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_without_linux_the_guard_ends_group_and_sessions(lab: Lab) -> None:
    # What macOS has: no subreaper, no PDEATHSIG, no /proc. Only a daemon's orphan is out of reach.
    if not Path("/bin/ps").exists():
        pytest.skip("needs /bin/ps")
    folder = Path(shim.__file__).parent
    code = f"""if True:
        import sys
        sys.path.append({str(folder)!r})
        import shim
        shim.LINUX = False
        shim.main(sys.argv[1:])"""
    status_r, status_w = os.pipe()
    pairs = b"\0".join(os.fsencode(f"{name}={value}") for name, value in ENV.items())
    argv = lab.argv("--spawn-child", "--spawn-setsid", "--ignore-term")
    options = ["--status-fd", str(status_w), "--grace", "0.1", "--"]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, *options, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={shim.ENV_VARIABLE: binascii.b2a_base64(pairs).decode()},
        pass_fds=(status_w,),
    ) as guard:
        os.close(status_w)
        with os.fdopen(status_r) as status:
            eventually(lambda: len(lab.pids()) == 3)
            assert guard.stdin is not None
            guard.stdin.close()  # the supervisor's death
            assert status.read() == f"pid {lab.pids()['engine']}\nexit -9\n"
        assert guard.wait(timeout=LIMIT_S) == -signal.SIGKILL
    assert not lab.survivors()
