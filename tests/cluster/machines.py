"""Machines on one machine: namespaces of processes, mounts and the network, joined by a bridge.

Everything is made within namespaces of its own, which `enclose` enters, so that nothing of it can
stay, nor reach the machine's own network. No root is needed where users may make namespaces.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.server_process import LIMIT_S, Server

LAN = "10.77.0"
HERE = f"{LAN}.1"
"""The address of the machine on which the test itself runs."""
PORT = 11434
IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "ip"
OWN = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
INIT = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
print("ready", flush=True)
while True:
    signal.sigwait({signal.SIGCHLD})
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
"""What is process 1 of a machine: it only reaps."""


def find_enclosure() -> list[str] | None:
    """Return the command that runs another in namespaces; None where that is not allowed."""
    if not all(shutil.which(name) for name in ("unshare", "nsenter", IP)):
        return None
    for user in (["--user", "--map-root-user"], []):
        command = ["unshare", *user, *OWN, "--"]
        nested = ["unshare", *OWN, "--", IP, "link", "add", "test0", "type", "bridge"]
        if subprocess.run([*command, *nested], capture_output=True, check=False).returncode == 0:
            return command
    return None


def ip(*words: str) -> None:
    """Set up the network."""
    subprocess.run([IP, *words], check=True, capture_output=True, text=True)


def open_lan() -> None:
    """Make the network that machines are plugged into."""
    ip("link", "set", "lo", "up")
    ip("link", "add", "lan", "type", "bridge")
    ip("link", "set", "lan", "up")
    ip("address", "add", f"{HERE}/24", "dev", "lan")


class Machine:
    """A machine with a `vllama serve` that somebody starts again when it has ended."""

    def __init__(
        self, number: int, home: Path, *arguments: str, fake: bool = True,
        env: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.name = self.address = f"{LAN}.{number + 1}"
        self._cable = f"cable{number}"
        self.server = _Server(self, home, *arguments, fake=fake)
        self.server.env |= env or {}
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        self.init_pid = 0

    def boot(self) -> None:
        """Switch it on, and start its server."""
        enclosing = subprocess.Popen(
            ["unshare", *OWN, "--", sys.executable, "-c", INIT], stdout=subprocess.PIPE, text=True
        )
        assert enclosing.stdout and enclosing.stdout.readline() == "ready\n"
        self._enclosing = enclosing
        self.init_pid = psutil.Process(enclosing.pid).children()[0].pid
        peer = ("type", "veth", "peer", "name", "eth0", "netns", str(self.init_pid))
        ip("link", "add", self._cable, *peer)
        ip("link", "set", self._cable, "master", "lan", "up")
        for words in (
            (IP, "address", "add", f"{self.address}/24", "dev", "eth0"),
            (IP, "link", "set", "eth0", "up"),
            (IP, "link", "set", "lo", "up"),
            ("mount", "-t", "tmpfs", "shm", "/dev/shm"),
        ):
            subprocess.run([*self.enter(), *words], check=True)
        self.server.start()

    def enter(self) -> list[str]:
        """Return what runs a command on it."""
        return ["nsenter", "--target", str(self.init_pid), "--net", "--mount", "--pid", "--"]

    def power_off(self) -> None:
        """Switch it off as if by its plug: nobody is told."""
        os.kill(self.init_pid, signal.SIGKILL)
        self._enclosing.wait(LIMIT_S)
        if self._enclosing.stdout:
            self._enclosing.stdout.close()
        if self.server.process:
            self.server.process.wait(LIMIT_S)

    def plug(self, *, into: bool) -> None:
        """Plug its network cable in, or pull it."""
        ip("link", "set", self._cable, "up" if into else "down")

    def find_processes(self) -> list[psutil.Process]:
        """Return what runs on it beside its process 1 and commands of the test."""
        found: list[psutil.Process] = []
        try:
            space = Path(f"/proc/{self.init_pid}/ns/pid").readlink()
        except FileNotFoundError:
            return found  # it is off
        for process in psutil.process_iter():
            try:
                inside = Path(f"/proc/{process.pid}/ns/pid").readlink() == space
            except OSError:
                continue
            if inside and process.pid != self.init_pid:
                found.append(process)
        return found


class _Server(Server):
    """The server of a machine."""

    def __init__(self, machine: Machine, home: Path, *arguments: str, fake: bool) -> None:
        listens = ("--host", machine.address, "--port", str(PORT))
        super().__init__(home, *arguments, *listens, fake=fake, env={"TMPDIR": str(home / "tmp")})
        self.machine = machine

    @property
    def command(self) -> list[str]:
        return [*self.machine.enter(), *super().command]

    @property
    def url(self) -> str:
        return f"http://{self.machine.address}:{PORT}"

    def find_own(self) -> psutil.Process:
        """Return the process that was started on the machine: what is started here waits for it."""
        assert self.process
        return psutil.Process(self.process.pid).children()[0]

    def go_on(self) -> None:
        """Continue what was stopped, and with it what waits for it, which has stopped, too."""
        assert self.process
        self.process.send_signal(signal.SIGCONT)
        for process in self.machine.find_processes():
            process.resume()
