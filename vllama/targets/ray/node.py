"""What Ray runs on each machine of a cluster: one `vllama serve`, which ends with it.

Imported by a worker process of Ray's, which knows nothing of the head but its key.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from pathlib import Path

from vllama.base import private
from vllama.supervise.guard import Command, Guard
from vllama.supervise.spec import Grace

START_LIMIT_S = 60.0
LOOK_EVERY_S = 0.1
NOT_PASSED = ("RAY_", "OMP_NUM_THREADS")
"""Variables of Ray's own, and the one that it sets for what runs on no core of its own."""


class NodeServer:
    """A server in a guard: whatever ends this process ends the server and its engines."""

    def __init__(self, address: str, key: str) -> None:
        """Start it on this machine's `address`; it answers nobody without `key`."""
        folder = Path(tempfile.mkdtemp(prefix="vllama-node-"))
        key_file, self._log = folder / "node.key", folder / "server.log"
        private.replace(key_file, f"{key}\n")
        argv = (sys.executable, "-m", "vllama", "serve", "--host", address)
        env = {name: text for name, text in os.environ.items() if not name.startswith(NOT_PASSED)}
        command = Command(
            argv=(*argv, "--node-key-file", str(key_file)),
            env=env,
            log_path=self._log,
            cwd=None,
            grace=Grace(),
            scratch=folder,
        )
        self._guard = Guard(command)
        self._guard.read_pid(START_LIMIT_S)

    def find_url(self) -> str:
        """Wait until it listens; return where. Raises RuntimeError with what it has printed."""
        deadline_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline_s:
            text = self._log.read_text(errors="replace") if self._log.exists() else ""
            if found := re.search(r"listening on (https?://\S+)", text):
                return found[1]
            time.sleep(LOOK_EVERY_S)
        raise RuntimeError(self._read_last())

    def wait(self) -> str:
        """Wait until it has ended; return its last words."""
        self._guard.read_exit()
        return self._read_last()

    def _read_last(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n") if self._log.exists() else []
        return next((line for line in reversed(lines) if line.strip()), "it has printed nothing")
