# SPDX-License-Identifier: MIT
"""Install the programs that vllama is compared with, each set in a venv below .venv/bench.

python -m bench.peers          # stdlib only; what cannot be installed is said and left out
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys

from bench.lab import ROOT, say

HOME = ROOT / ".venv" / "bench"
SETS = {
    # folder: (packages, oldest Python)
    "peers": (
        ["fastapi", "httpx", "uvicorn[standard]", "litellm[proxy]", "ollama-proxy-plus"],
        (3, 11),
    ),
    "oai2ollama": (["oai2ollama"], (3, 12)),
}


def version(python):
    """Return (major, minor) of an interpreter; None if it does not run, like some shims."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return None
    return tuple(int(x) for x in done.stdout.split()) if done.returncode == 0 else None


def interpreter(oldest, given):
    """Return a Python that is new enough: ours, the given one, or one on PATH; or None."""
    named = [f"python3.{minor}" for minor in range(14, 10, -1)]
    for python in [sys.executable, *([given] if given else []), *filter(shutil.which, named)]:
        found = version(python)
        if found and found >= oldest:
            return python
    return None


def install(name, given):
    packages, oldest = SETS[name]
    folder = HOME / name
    stamp = folder / "done"
    if stamp.exists():
        return
    python = interpreter(oldest, given)
    if python is None:
        wanted = ".".join(map(str, oldest))
        say(f"{name}: left out, it needs Python {wanted}; try: make bench PEER_PYTHON=python3.13")
        return
    for command in (
        [python, "-m", "venv", "--clear", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "install", *packages],
    ):
        alive = [sys.executable, str(ROOT / "scripts" / "alive.py")]
        if subprocess.run([*alive, f"installing {', '.join(packages)}", "--", *command]).returncode:
            say(f"{name}: left out, it could not be installed")
            return
    stamp.touch()


def versions(names=("litellm", "ollama-proxy-plus", "fastapi", "httpx", "uvicorn", "oai2ollama")):
    """Return the installed packages as {package: version}."""
    code = (
        "import sys, importlib.metadata as m\n"
        "for d in m.distributions():\n"
        " if d.metadata['Name'].lower() in sys.argv[1:]: print(d.metadata['Name'], d.version)"
    )
    found = {}
    for name in SETS:
        python = HOME / name / "bin" / "python"
        if python.exists():
            done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True)
            found |= dict(line.split() for line in done.stdout.splitlines())
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--python", help="an interpreter for those that need a newer one than ours")
    a = p.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        install(name, a.python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
