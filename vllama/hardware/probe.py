"""How a vendor's probe answers, and how it runs a short command; knows no vendor."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllama.hardware.types import Accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What one probe found: accelerators, and sentences about what it could not find out."""

    accelerators: tuple[Accelerator, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Result of a command: exit status (None: it did not run or took too long) and its text."""

    status: int | None
    text: str
    problem: str = ""


def run_command(
    argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> Output:
    """Run a short command and return what it printed, errors included; never raises.

    `env` is its whole environment (None: ours).
    """
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=env,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Output(
            status=None, text="", problem=f"{argv[0]} gave no answer in {timeout_s:.0f} s"
        )
    except OSError as error:
        return Output(status=None, text="", problem=f"cannot run {argv[0]}: {error.strerror}")
    text = (done.stdout or done.stderr).decode(errors="replace")
    return Output(status=done.returncode, text=text)
