"""`make demo`: the main job for real, on a free port and in a folder of its own.

Starts `vllama serve` with the engine that `make demo` has installed, asks it a question with
`vllama run`, shows `vllama ps`, and stops everything.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

MODEL = "smollm2:135m"
SERVE = ["serve", "--engine", "llama-server", "--model", MODEL]  # the engine that the demo brings
DATA = Path(".venv/data")  # where the Makefile installs it
QUESTION = "Explain in two sentences why the sky is blue."
VLLAMA = [sys.executable, "-m", "vllama"]
READY_LIMIT_S = 180
NEXT = f"""
To go on by yourself:
  export VLLAMA_DATA_DIR=$PWD/{DATA}     (or: .venv/bin/vllama engines install llama-server)
  .venv/bin/vllama serve --model {MODEL}
  .venv/bin/vllama run {MODEL}          (in another terminal)
docs/guide/quick-start.md shows the rest."""


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def show(*command: str) -> None:
    """Print a command as a person would type it."""
    print(
        f"\n\033[1m$ {' '.join(command)}\033[0m"
        if sys.stdout.isatty()
        else f"\n$ {' '.join(command)}"
    )
    sys.stdout.flush()


def wait_loaded(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until the model is loaded, or the server has ended."""
    deadline = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"{log.read_text()}\nthe server ended with exit code {server.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/api/ps", timeout=2) as answer:
                if b'"state":"ready"' in answer.read():
                    return
        except (OSError, urllib.error.URLError):
            pass
        time.sleep(0.1)
    sys.exit("the model was not loaded in time")


def main() -> int:
    """Run the demo."""
    home = Path(".venv/demo").resolve()
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OLLAMA_", "VLLAMA_"))
    } | {"OLLAMA_HOST": f"127.0.0.1:{port}", "VLLAMA_DATA_DIR": str(DATA.resolve())}
    show("vllama", *SERVE)
    log = home / "serve.log"
    with log.open("wb") as output:
        server = subprocess.Popen([*VLLAMA, *SERVE], env=env, stdout=output, stderr=output)
    try:
        wait_loaded(server, f"http://127.0.0.1:{port}", log)
        print(log.read_text(), end="")
        show("vllama", "run", MODEL, f'"{QUESTION}"')
        subprocess.run([*VLLAMA, "run", MODEL, QUESTION], env=env, check=True)
        show("vllama", "ps")
        subprocess.run([*VLLAMA, "ps"], env=env, check=True)
    finally:
        server.terminate()
        code = server.wait(timeout=60)
    print(f"\nstopped, exit code {code}")
    if not code:
        print(NEXT)
    return code


if __name__ == "__main__":
    sys.exit(main())
