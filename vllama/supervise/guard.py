"""The supervisor's end of the guard: start the program `shim`, hold its pipe, read what it says.

Knows no event loop: everything blocks, and is called in the thread that belongs to the child.
"""

from __future__ import annotations

import binascii
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from vllama.supervise import shim
from vllama.supervise.spec import Grace


class GuardFailed(Exception):
    """The guarded program could not be executed; the text is the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to execute: `env` is all of its environment, `log_path` gets its output appended.

    `scratch` is a folder that goes when nobody of the tree is left.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    log_path: Path
    cwd: Path | None
    grace: Grace
    scratch: Path | None = None


class Guard:
    """A running guard, with the pipe whose end makes it clear up; a context manager."""

    def __init__(self, command: Command) -> None:
        """Start it; raises `GuardFailed`."""
        stdin_r, self._pipe_w = os.pipe()
        status_r, status_w = os.pipe()
        try:
            self._popen = _popen(command, stdin_r, status_w)
        except (OSError, ValueError) as error:
            os.close(self._pipe_w)
            os.close(status_r)
            raise GuardFailed(_cause(command, error)) from error
        finally:
            os.close(stdin_r)
            os.close(status_w)
        self._status = os.fdopen(status_r, "rb", buffering=0)
        self.pid = self._popen.pid

    def read_pid(self, limit_s: float) -> int:
        """Wait until the program was executed and return its pid; raises `GuardFailed`."""
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        if not poll.poll(limit_s * 1000):
            self._popen.kill()
            raise GuardFailed(f"the guard has not answered within {limit_s:g} s")
        word, rest = self._line()
        if word != "pid":
            raise GuardFailed(rest or "the guard ended before it started anything")
        return int(rest)

    def read_exit(self) -> int | None:
        """Wait for the program's end; None if the guard was killed before it could tell."""
        word, rest = self._line()
        return int(rest) if word == "exit" else None

    def wait(self) -> int:
        """Wait until nobody is left and the guard has ended; return its code."""
        return self._popen.wait()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let go of the pipe, so that the guard ends what still runs, and wait for it."""
        os.close(self._pipe_w)
        self._popen.wait()
        self._status.close()

    def _line(self) -> tuple[str, str]:
        line = self._status.readline().decode("utf-8", "replace")
        word, _, rest = line.strip().partition(" ")
        return word, rest


def _popen(command: Command, stdin: int, status_fd: int) -> subprocess.Popen[bytes]:
    pairs = b"\0".join(os.fsencode(f"{name}={value}") for name, value in command.env.items())
    encoded = binascii.b2a_base64(pairs, newline=False).decode("ascii")
    grace = command.grace
    argv = [
        *(sys.executable, "-I", "-S", shim.__file__),  # -I: its folder hides no standard module
        *("--status-fd", str(status_fd)),
        *("--grace", str(grace.term_s + grace.second_term_s)),
        *("--second-term", str(grace.term_s)),
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
            env={**os.environ, shim.ENV_VARIABLE: encoded},
            start_new_session=True,  # a Ctrl-C in the terminal is for the supervisor only
            pass_fds=(status_fd,),
        )


def _cause(command: Command, error: Exception) -> str:
    if not isinstance(error, OSError):
        return f"'{command.argv[0]}' cannot be run: {error}"
    if command.cwd is not None and not command.cwd.is_dir():
        return f"'{command.argv[0]}' cannot be run in '{command.cwd}': {error.strerror}"
    return f"'{command.argv[0]}' cannot be run: {error.strerror}"
