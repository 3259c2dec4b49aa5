"""The server that `vllama run` starts if none is running: shared by runs, gone with the last.

Two files in the folder of run files belong to a port. The locks on them (flock(2)) tell who is
there, since the kernel releases them however a process ends, by SIGKILL too:

* `run-PORT.used`: every run holds a shared lock. The server waits for an exclusive one; when it
  gets it, no run is left, and the server ends. It keeps the lock to its end, so that a later run
  waits for that and then starts a server of its own.
* `run-PORT.server`: locked by the run that starts a server, and by the server, which inherits the
  lock. Runs that come meanwhile wait for that server.

The first file says where the server listens, and whether a run wants it to stay (`--keep`). A
server that somebody else has started has nothing to do with these files, and is never ended.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN
from pathlib import Path
from typing import BinaryIO, Self

import typer

from vllama.base import private
from vllama.base.errors import EngineMissing, NoPlan, PortTaken, ServerUnreachable
from vllama.base.threads import begin
from vllama.cli.chat.answer_view import Waiting
from vllama.cli.client import Client
from vllama.cli.output import can_ask, say_aside
from vllama.config import Config
from vllama.config.address import is_loopback, leads_to, reachable_host

KEEP = "keep"
LOOK_EVERY_S = 0.05
NOTICE_S = 0.5
"""A server without runs has noticed it by then."""
STOP_MARGIN_S = 60.0
"""Beyond the time for running answers; a server that takes longer is stuck."""


class LockFile:
    """A file with a lock that ends with this process, unless a child inherits it."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises OSError."""
        self.path = path
        private.make_folder(path.parent)
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, private.FILE)

    def lock(self, kind: int) -> bool:
        """Take the lock LOCK_SH or LOCK_EX; return False if LOCK_NB says not to wait for it."""
        try:
            fcntl.flock(self.descriptor, kind)
        except BlockingIOError:
            return False
        return True

    def read(self) -> list[str]:
        """Return the words in the file."""
        return os.pread(self.descriptor, 4096, 0).decode(errors="replace").split()

    def write(self, *words: str) -> None:
        """Replace the words in the file."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, " ".join(words).encode(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close it; the lock stays with a child that has inherited it."""
        os.close(self.descriptor)


@contextmanager
def open_server(settings: Config, *, keep: bool) -> Iterator[Client]:
    """Yield a client of the server that the settings name; start one if none is running.

    One that runs have started ends with the last of them, unless one of them says `keep`. Nothing
    is started where the settings name another machine, or TLS, which takes more than a command.
    Raises VllamaError.
    """
    host = reachable_host(settings.host)
    is_here = is_loopback(host) or leads_to(host, "0.0.0.0")
    if not is_here or settings.scheme != "http":
        with Client(settings.url, key=settings.key_to_send) as client:
            yield client
        return
    try:
        used = LockFile(find_lock(settings, "used"))
    except OSError:  # a home that is read-only, or another user's folder
        settings = replace(settings, run_dir=Path(tempfile.mkdtemp(prefix="vllama-")))
        used = LockFile(find_lock(settings, "used"))
    with used:
        run = Run(settings, used)
        try:
            with Client(run.find_server(), key=settings.key_to_send) as client:
                if keep:
                    run.keep_server()
                yield client
        finally:
            run.leave()


def find_lock(settings: Config, purpose: str) -> Path:
    """Return the lock file for a purpose, `used` or `server`."""
    return settings.run_dir / f"run-{settings.port}.{purpose}"


class Run:
    """This run's part in a server: it finds or starts it, and leaves it."""

    def __init__(self, settings: Config, used: LockFile) -> None:
        self._settings = settings
        self._used = used
        self._shares = False
        self._child: subprocess.Popen[bytes] | None = None

    def find_server(self) -> str:
        """Return the address of a running server; it stays until `leave`. Raises VllamaError."""
        waiting = Waiting("connecting to a server")
        try:
            self._used.lock(LOCK_SH)  # a server that is about to end holds it
            with LockFile(find_lock(self._settings, "server")) as server:
                while not server.lock(LOCK_EX | LOCK_NB):
                    if words := self._used.read():
                        self._shares = True
                        return words[0]
                    time.sleep(LOOK_EVERY_S)
                if self._is_served():
                    return self._settings.url
                waiting.over()
                waiting = Waiting("starting a server (its log: vllama logs)")
                return self._start(server, waiting)
        finally:
            waiting.over()

    def keep_server(self) -> None:
        """Keep a server of runs alive after the last of them has ended."""
        if self._shares:
            address, pid, *_ = self._used.read()
            self._used.write(address, pid, KEEP)
            say_aside(f"the server keeps running at {address}; to stop it: kill {pid}")

    def leave(self) -> None:
        """Stop using the server; wait for its end, unless others turn out to use it."""
        if not self._shares:
            return
        self._used.lock(LOCK_UN)
        deadline_s = time.monotonic() + NOTICE_S
        with LockFile(find_lock(self._settings, "server")) as server:
            while not server.lock(LOCK_SH | LOCK_NB):
                words = self._used.read()  # none: the server is about to end
                if KEEP in words or (words and time.monotonic() > deadline_s):
                    if self._child is not None:
                        self._child.returncode = 0  # it goes on; else Popen would warn of it
                    return
                time.sleep(LOOK_EVERY_S)
        if self._child is not None:
            self._child.wait()

    def _is_served(self) -> bool:
        try:
            with Client(self._settings.url) as client:
                client.check_server()
        except ServerUnreachable:
            return False
        return True

    def _start(self, server: LockFile, waiting: Waiting) -> str:
        """Start a server, on a free port if a program has ours; offer to install an engine.

        One that ends has its say on stderr, as `vllama serve` would. Raises Exit with its code.
        """
        asks, port = can_ask(), list[str]()
        while True:
            with tempfile.TemporaryFile() as output:
                code = self._spawn(server, output, port)
                said = output.read().decode(errors="replace") if code is not None else ""
            if code is None:
                address, *_ = self._used.read()
                if port:
                    waiting.over()
                    say_aside(f"Port {self._settings.port} is in use; listening on {address}")
                return address
            self._shares, self._child = False, None
            waiting.over()
            if code == PortTaken.exit_code and not port:
                if self._is_served():  # it has been started in the meantime
                    return self._settings.url
                port = ["--port", "0"]
            elif code == NoPlan.exit_code and asks and offer_engine(self._settings):
                asks = False
            else:
                sys.stderr.write(said)
                raise typer.Exit(max(code, 1))

    def _spawn(self, server: LockFile, output: BinaryIO, port: Sequence[str]) -> int | None:
        """Start a server; return its exit code, None if it serves."""
        self._used.write()
        self._shares = True
        command = (sys.executable, "-P", "-m", "vllama", "serve", "--log-format", "text")
        self._child = subprocess.Popen(
            [*command, "--until-unused", str(self._used.path), *port],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for this command
            pass_fds=(server.descriptor,),
        )
        while (code := self._child.poll()) is None and not self._used.read():
            time.sleep(LOOK_EVERY_S)
        output.seek(0)
        return code


def offer_engine(settings: Config) -> bool:
    """Offer to install an engine if none is here; return whether one is here now."""
    from vllama.cli.engine_install import offer_missing
    from vllama.plan.choose import choose_engine
    from vllama.server.preflight import gather_facts

    try:
        choose_engine(gather_facts(settings))
    except EngineMissing as error:
        return offer_missing(settings, error, yes=False)
    except NoPlan:
        pass
    return False


def serve_users(path: Path, stop_limit_s: float) -> Callable[[str], None]:
    """Stop this process in order when no run is left; return what tells runs the address.

    `stop_limit_s` is how long a stop may wait for clients: one that hangs is cut short.
    """

    def watch() -> None:
        with LockFile(path) as used:
            used.lock(LOCK_EX)
            if KEEP in used.read():
                return
            used.write()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(stop_limit_s + STOP_MARGIN_S)
            os._exit(1)  # the guards see their pipes close and end the engines

    def announce(url: str) -> None:
        with LockFile(path) as used, Path(os.devnull).open("w") as nowhere:
            used.write(url, str(os.getpid()))
            os.dup2(nowhere.fileno(), sys.stderr.fileno())  # the log has a file of its own

    begin(watch)
    return announce
