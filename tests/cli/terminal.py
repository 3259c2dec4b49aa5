"""A command on a pseudo-terminal of its own, to be talked to like a person would."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# become the session's foreground on this terminal, so that ^C reaches the command
_WRAPPER = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][AB012]|[=>])")
LIMIT_S = 240.0


class Terminal:
    """Runs `python -m vllama ARGS`, or another command, on a terminal of 24 × 80."""

    def __init__(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        *,
        command: Sequence[str] = (sys.executable, "-m", "vllama"),
        cwd: Path | None = None,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WRAPPER, *command, *args],
                cwd=cwd,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env={**env, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
                start_new_session=True,
            )
        finally:
            os.close(slave)
        self._raw = b""
        self._seen = 0

    @property
    def screen(self) -> str:
        """Everything that was shown, without colors and cursor moves."""
        return _ESCAPES.sub("", self._raw.decode(errors="replace")).replace("\r", "")

    def type(self, text: str) -> None:
        """Type, once the command waits: Python heeds a ^C before its read() only after that."""
        state = Path(f"/proc/{self._process.pid}/stat")
        deadline = time.monotonic() + LIMIT_S
        while state.read_text().rpartition(") ")[2].startswith("R"):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        os.write(self._master, text.encode())

    def resize(self, columns: int) -> None:
        """Give the terminal another width."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def expect(self, text: str) -> None:
        """Wait until `text` is shown, after what was expected before."""
        deadline = time.monotonic() + LIMIT_S
        while (at := self.screen.find(text, self._seen)) < 0:
            assert self._read(deadline), f"no {text!r} in:\n{self.screen[self._seen :]}"
        self._seen = at + len(text)

    def finish(self) -> int:
        """Read to the end; return the exit code."""
        deadline = time.monotonic() + LIMIT_S
        while self._read(deadline):
            pass
        return self._process.wait(LIMIT_S)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._master)

    def _read(self, deadline: float) -> bool:
        left_s = max(0.0, deadline - time.monotonic())
        if not select.select([self._master], [], [], left_s)[0]:
            return False
        try:
            chunk = os.read(self._master, 65536)
        except OSError:  # Linux: the other end is closed
            return False
        self._raw += chunk
        return bool(chunk)
