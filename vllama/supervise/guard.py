"""The supervisor's end of the guard: starts the program `shim`, holds its pipe, reads its status.

Knows no event loop: all methods block, and are called in the child's thread.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import resource
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from vllama.supervise import shim
from vllama.supervise.spec import Grace

MOST_FILES = 32_768
FILES, _HARD = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The soft limit of open files that engines get: the one that the server was started with."""


LOADER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # for Python; a guard gets no others of ours


def raise_file_limit() -> None:
    """Raise this process's soft limit of open files toward the hard one, as Go programs do."""
    with contextlib.suppress(OSError, ValueError):  # the system may allow less
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(FILES, min(_HARD, MOST_FILES)), _HARD))


def divide_control_group() -> None:
    """Move this process into a part of its control group if systemd lets it divide that.

    Only a group without processes of its own has parts with limits (the kernel's
    Documentation/admin-guide/cgroup-v2.rst); systemd marks the groups of `Delegate=` since 251 (its
    CGROUP_DELEGATION).
    """
    if shim.LINUX:
        with contextlib.suppress(OSError):
            group = f"{shim.GROUPS}{shim.read_own_group()}"
            if os.getxattr(group, "user.delegate") == b"1":
                Path(group, shim.SERVER_GROUP).mkdir(exist_ok=True)
                shim.write(f"{group}/{shim.SERVER_GROUP}/cgroup.procs", "0")


class GuardFailed(Exception):
    """The guarded program could not be executed; the text is the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The command to run. `env` is its whole environment; its output is appended to `log_path`.

    `scratch` is a folder that is removed when no process of the tree is left. `oom_score` is the
    least `oom_score_adj` (Linux). `memory_limit_bytes`: see `LaunchSpec`.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    log_path: Path
    cwd: Path | None
    grace: Grace
    scratch: Path | None = None
    oom_score: int = 0
    memory_limit_bytes: int | None = None


class Guard:
    """A running guard, and the pipe whose closing makes it end the tree; a context manager."""

    def __init__(self, command: Command) -> None:
        """Start the guard. Raises GuardFailed."""
        stdin_r, self._pipe_w = os.pipe()
        status_r, status_w = os.pipe()
        try:
            self._popen = _popen(command, stdin_r, status_w)
        except (OSError, ValueError) as error:
            os.close(self._pipe_w)
            os.close(status_r)
            raise GuardFailed(_explain(command, error)) from error
        finally:
            os.close(stdin_r)
            os.close(status_w)
        self._status = os.fdopen(status_r, "rb", buffering=0)
        self.pid = self._popen.pid

    def read_pid(self, limit_s: float) -> int:
        """Wait until the program has been executed; return its pid. Raises GuardFailed."""
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        if not poll.poll(limit_s * 1000):
            self._popen.kill()
            raise GuardFailed(f"the guard did not respond within {limit_s:g} s")
        word, rest = self._read_line()
        if word != "pid":
            raise GuardFailed(rest or "the guard exited before it started anything")
        return int(rest)

    def read_exit(self, on_excess: Callable[[int], object] = bool) -> int | None:
        """Wait for the program's exit code; None if the guard was killed before it reported one.

        `on_excess` gets the bytes of a tree that was stopped at its limit of memory.
        """
        word, rest = self._read_line()
        if word == "memory":
            on_excess(int(rest))
            word, rest = self._read_line()
        return int(rest) if word == "exit" else None

    def wait(self) -> int:
        """Wait until the whole tree and the guard have ended; return the guard's code."""
        return self._popen.wait()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipe, so that the guard ends all remaining processes, and wait for it."""
        os.close(self._pipe_w)
        self._popen.wait()
        self._status.close()

    def _read_line(self) -> tuple[str, str]:
        line = self._status.readline().decode("utf-8", "replace")
        word, _, rest = line.strip().partition(" ")
        return word, rest


def _popen(command: Command, stdin: int, status_fd: int) -> subprocess.Popen[bytes]:
    pairs = b"\0".join(os.fsencode(f"{name}={value}") for name, value in command.env.items())
    encoded = binascii.b2a_base64(pairs, newline=False).decode("ascii")
    grace = command.grace
    argv = [
        *(
            sys.executable,
            "-I",
            "-S",
            shim.__file__,
        ),  # -I: shim.py's folder is not searched for modules
        *("--status-fd", str(status_fd)),
        *("--grace", str(grace.term_s + grace.second_term_s)),
        *("--second-term", str(grace.term_s)),
        *("--files", str(FILES)),
        *(("--oom-score", str(command.oom_score)) if command.oom_score else ()),
        *(("--memory", str(limit)) if (limit := command.memory_limit_bytes) else ()),
        *(("--scratch", str(command.scratch)) if command.scratch else ()),
        "--",
        *command.argv,
    ]
    with command.log_path.open("ab", buffering=0) as log:
        return subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=log,
            stderr=log,
            cwd=command.cwd,
            env={name: value for name, value in os.environ.items() if name in LOADER}
            | {shim.ENV_VARIABLE: encoded},
            start_new_session=True,  # a Ctrl-C in the terminal is for the supervisor only
            pass_fds=(status_fd,),
        )


def _explain(command: Command, error: Exception) -> str:
    if not isinstance(error, OSError):
        return f"cannot run '{command.argv[0]}': {error}"
    if command.cwd is not None and not command.cwd.is_dir():
        return f"cannot run '{command.argv[0]}' in '{command.cwd}': {error.strerror}"
    return f"cannot run '{command.argv[0]}': {error.strerror}"
