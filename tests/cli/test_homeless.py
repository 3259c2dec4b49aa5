"""A user without a name and a home, as containers have: every command works or says why not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

CAPS = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
"""Python itself may lie below root's home."""
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv"
)


@needs_root
@pytest.mark.parametrize("home", [None, "", "/", "/nonexistent"])
def test_commands(home: str | None) -> None:
    env = {"PATH": "/usr/bin:/bin"} | ({} if home is None else {"HOME": home})
    for words in ("--help", "list", "plan smollm2:135m", "config", "show smollm2:135m", "ps"):
        user = ("setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", *CAPS)
        done = subprocess.run(
            [*user, sys.executable, "-m", "vllama", *words.split()],
            env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr and done.returncode in (0, 1, 3), (words, done.stderr)
