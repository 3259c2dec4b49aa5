"""The server that `vllama run` starts where none is running, with a real server and processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.cli.terminal import Terminal
from tests.ports import free_port
from tests.server_process import Server
from vllama.supervise.tree import is_alive

pytestmark = pytest.mark.slow
LIMIT_S = 60.0
HELLO = ("run", "tiny", "@tokens=3 hello")
ANSWER = "tok0 tok1 tok2"
LONG = ("run", "other", "@tokens=100000 @delay=0.02")


class Home:
    """A user without a server, on a port of his own."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(folder)  # never started: its home, its model and its environment
        for name in ("tiny", "other"):  # each takes one request at a time
            self.server.model(name)
        self.port = free_port()
        self.env = self.server.env | {"OLLAMA_HOST": f"127.0.0.1:{self.port}"}
        self.terminals: list[Terminal] = []
        self.known: set[psutil.Process] = set()

    def begin(self, *args: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "vllama", *args],
            env=self.env | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *args: str, **more: str) -> tuple[int, str, str]:
        process = self.begin(*args, **more)
        out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err

    def open(self, *args: str, **more: str) -> Terminal:
        self.terminals.append(Terminal(args, self.env | more))
        return self.terminals[-1]

    def processes(self) -> list[psutil.Process]:
        """Return all processes of this home: runs and servers, and the guards and engines below.

        The environment of a server can be read by root only.
        """
        home = self.env["HOME"]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # it has just ended
                if any(home in word for word in process.cmdline()) or (
                    process.environ().get("HOME") == home
                ):
                    self.known |= {process, *process.children(recursive=True)}
        self.known = set(filter(is_alive, self.known))
        return list(self.known)

    def servers(self) -> list[psutil.Process]:
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if "--until-unused" in process.cmdline():
                    found.append(process)
        return found

    def wait_until_gone(self) -> None:
        wait_for(lambda: not self.processes())

    def is_listened(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def wait_for(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    left = made.processes()
    for process in left:
        process.kill()
    for terminal in made.terminals:
        terminal.close()


def test_a_prompt_is_answered_and_nothing_is_left(home: Home) -> None:
    assert home.run(*HELLO) == (0, f"{ANSWER} \n", "")
    assert home.processes() == []  # it waits for their end
    assert home.run(*HELLO)[:2] == (0, f"{ANSWER} \n")
    log = (home.server.home / "data/logs/vllama.log").read_text()
    assert log.count("listening on") == 2


def test_a_conversation_has_its_server_to_its_end(home: Home) -> None:
    terminal = home.open("run", "tiny")
    terminal.expect(">>> ")
    assert len(home.servers()) == 1
    terminal.type("@tokens=2 hello\r")
    terminal.expect("tok0 tok1")
    terminal.expect(">>> ")
    terminal.type("\x04")
    assert terminal.finish() == 0
    assert home.processes() == []
    assert "listening" not in terminal.screen


def test_ctrl_c_ends_the_server_too(home: Home) -> None:
    terminal = home.open(*LONG)
    terminal.expect("tok3")
    os.write(terminal._master, b"\x03")
    assert terminal.finish() == 130
    assert home.processes() == []


def test_ctrl_c_during_the_start(home: Home) -> None:
    terminal = home.open(*LONG)
    wait_for(home.servers)
    os.write(terminal._master, b"\x03")
    assert terminal.finish() == 130
    home.wait_until_gone()


@pytest.mark.parametrize("waits_for", ["server", "answer"])
def test_sigkill_leaves_neither_server_nor_engine(home: Home, waits_for: str) -> None:
    run = home.begin(*LONG)
    if waits_for == "answer":
        assert run.stdout and run.stdout.read(8)
    wait_for(home.servers)
    tree = home.servers()[0].children(recursive=True)
    assert len(tree) >= 2 or waits_for == "server"  # the guard and the engine
    run.kill()
    run.communicate()
    psutil.wait_procs(tree, timeout=LIMIT_S)
    assert not any(each.is_running() for each in tree)
    home.wait_until_gone()


def test_two_share_a_server_which_ends_with_the_last(home: Home) -> None:
    first, second = home.begin("run", "tiny", LONG[2]), home.begin(*LONG)
    for run in (first, second):
        assert run.stdout and run.stdout.read(8)
    [server] = home.servers()
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=LIMIT_S)
    assert first.returncode == 130
    assert second.stdout and second.stdout.read(800) and server.is_running()
    assert home.run(*HELLO)[:2] == (0, f"{ANSWER} \n")  # a third one comes and goes
    assert home.servers() == [server]
    second.send_signal(signal.SIGINT)
    second.communicate(timeout=LIMIT_S)
    assert home.processes() == []


def test_a_server_that_is_killed_is_not_in_the_way_of_the_next(home: Home) -> None:
    run = home.begin(*LONG)
    assert run.stdout and run.stdout.read(8)
    home.servers()[0].kill()
    _, err = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 1 and "ended early" in err
    home.wait_until_gone()  # the guard ends the engine
    assert home.run(*HELLO) == (0, f"{ANSWER} \n", "")


def test_runs_in_quick_succession(home: Home) -> None:
    """A server that is ending is not the next one's."""
    runs = []
    for _ in range(6):
        runs.append(home.begin(*HELLO))
        time.sleep(0.35)
    for run in runs:
        out, err = run.communicate(timeout=LIMIT_S)
        assert (run.returncode, out, err) == (0, f"{ANSWER} \n", "")
    home.wait_until_gone()


def test_a_server_of_ones_own_is_used_and_stays(home: Home) -> None:
    with home.server as server:
        address = {"OLLAMA_HOST": f"127.0.0.1:{server.port}"}
        assert home.run(*HELLO, **address) == (0, f"{ANSWER} \n", "")
        assert home.run(*HELLO, "--keep", **address) == (0, f"{ANSWER} \n", "")
        assert home.servers() == []
        assert server.get("/api/version")


def test_keep_leaves_the_server_running(home: Home) -> None:
    code, out, err = home.run(*HELLO, "--keep")
    [server] = home.servers()
    assert (code, out) == (0, f"{ANSWER} \n")
    assert err == (
        f"the server keeps running at http://127.0.0.1:{home.port}; to stop it: kill {server.pid}\n"
    )
    assert home.run(*HELLO) == (0, f"{ANSWER} \n", "")
    assert home.servers() == [server] and home.is_listened()
    server.terminate()
    home.wait_until_gone()
    assert home.run(*HELLO) == (0, f"{ANSWER} \n", "")  # with a server that does not stay
    assert home.processes() == []


def test_a_port_that_another_program_has(home: Home) -> None:
    with socket.create_server(("127.0.0.1", home.port)) as other:
        other.setblocking(False)
        first = home.begin(*LONG)
        wait_for(lambda: _refuse(other) or home.servers())
        while first.poll() is None and not _has_output(first):
            _refuse(other)
        code, out, err = home.run(*HELLO)  # shares it, wherever it is
        assert (code, out, err) == (0, f"{ANSWER} \n", "")
        assert len(home.servers()) == 1
        first.send_signal(signal.SIGINT)
        _, err = first.communicate(timeout=LIMIT_S)
        where = f"Port {home.port} is in use; listening on http://127.0.0.1:"
        assert err.startswith(where)
    assert home.processes() == []


def _refuse(other: socket.socket) -> None:
    """Close what has connected, as a program does that does not speak HTTP."""
    with contextlib.suppress(BlockingIOError):
        other.accept()[0].close()


def _has_output(process: subprocess.Popen[str]) -> bool:
    import select

    return bool(select.select([process.stdout], [], [], 0.02)[0])


@pytest.mark.parametrize("address", ["http://192.0.2.1:9", "https://127.0.0.1:9"])
def test_none_is_started_for_another_machine_or_tls(home: Home, address: str) -> None:
    code, _, err = home.run(*HELLO, OLLAMA_HOST=address)
    assert code == 1 and "could not connect to a vllama server at" in err
    assert not (home.server.home / "data/run").exists()


def test_a_home_that_is_read_only_is_no_hindrance(home: Home, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = str(tmp_path / "file" / "run")
    code, out, err = home.run(*HELLO, VLLAMA_RUN_DIR=folder, VLLAMA_LOG_DIR=folder)
    assert (code, err) == (0, "") and out


def test_a_failed_start_shows_its_cause(home: Home) -> None:
    code, out, err = home.run(*HELLO, VLLAMA_UPSTREAMS=f"http://127.0.0.1:{home.port}")
    assert (code, out) == (2, "")
    assert err.startswith(f"Error: cannot use 'http://127.0.0.1:{home.port}' as an upstream")
    assert "\nHint: " in err
    assert home.processes() == []


def test_without_a_terminal_no_engine_is_offered(home: Home) -> None:
    code, out, err = home.run(*HELLO, VLLAMA_ENGINE="vllm")
    assert (code, out) == (3, "")
    assert err.startswith("Error: ") and "vllama engines install vllm" in err
    assert "Install" not in err


def test_on_a_terminal_an_engine_is_offered_once(home: Home) -> None:
    terminal = home.open(*HELLO, VLLAMA_ENGINE="vllm")
    terminal.expect("Install it now (other engines: vllama engines)? [Y/n]")
    terminal.type("n\n")
    assert terminal.finish() == 3
    assert terminal.screen.count("[Y/n]") == 1
    assert home.processes() == []
