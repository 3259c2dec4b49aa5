"""How a program is installed on this machine: the words of its own package manager."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

CXX = "c++"
# manager → (how it is called, what it calls the packages of the programs that recipes want)
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


def how_to_install(programs: Sequence[str], search: str | None = None) -> str:
    """Return a hint such as `install clang (apt install clang)`.

    `search` is written as PATH is; None: PATH itself. Without a manager that is known, only what
    is wanted is named.
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
