"""The basis of the vendors' probes: their result, short commands, and hints for installing."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllama.machine.types import Accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of one probe: accelerators, and notes on what could not be detected."""

    accelerators: tuple[Accelerator, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The result of a command: its text and exit status, None if it did not run or timed out."""

    status: int | None
    text: str
    problem: str = ""


def run_command(
    argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> Output:
    """Run a short command and return its output, or that of stderr if there is none; never raises.

    `env` is its whole environment; None for that of this process.
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
            status=None, text="", problem=f"{argv[0]} did not respond in {timeout_s:.0f} s"
        )
    except OSError as error:
        return Output(status=None, text="", problem=f"cannot run {argv[0]}: {error.strerror}")
    text = (done.stdout or done.stderr).decode(errors="replace")
    return Output(status=done.returncode, text=text)


CXX = "c++"
# package manager → (its command, its packages of the programs that recipes need)
MANAGERS: dict[str, tuple[str, dict[str, str]]] = {
    "apt-get": ("apt install", {CXX: "build-essential", "nvcc": "nvidia-cuda-toolkit"}),
    "dnf": ("dnf install", {CXX: "gcc-c++", "nvcc": "cuda-toolkit"}),
    "yum": ("yum install", {CXX: "gcc-c++", "nvcc": "cuda-toolkit"}),
    "zypper": ("zypper install", {CXX: "gcc-c++", "nvcc": "cuda-toolkit"}),
    "pacman": ("pacman -S", {CXX: "base-devel", "nvcc": "cuda"}),
    "apk": ("apk add", {CXX: "build-base"}),
    "xcode-select": ("xcode-select --install", {}),
    "brew": ("brew install", {CXX: "gcc", "clang": "llvm"}),
}
# Apple's command line tools have these
IN_XCODE = frozenset({CXX, "clang", "git", "make"})
TITLES = {CXX: "a C++ compiler", "nvcc": "NVIDIA's CUDA toolkit"}


def make_install_hint(programs: Sequence[str], search: str | None = None) -> str:
    """Return a hint such as `install clang (apt install clang)`.

    `search` is a list of folders to use instead of PATH. If no known package manager is found, the
    hint names only the programs.
    """
    titles = " and ".join(TITLES.get(name, name) for name in programs)
    for manager, (call, packages) in MANAGERS.items():
        if not shutil.which(manager, path=search):
            continue
        if manager == "xcode-select":
            if IN_XCODE.issuperset(programs):
                return f"install {titles} ({call})"
            continue
        names = " ".join(packages.get(name, name) for name in programs)
        return f"install {titles} ({call} {names})"
    return f"install {titles}"
