# SPDX-License-Identifier: MIT
"""Start the synthetic engine and the fronts of a TOML file, and stop them."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILL = {
    "vllama": f"{ROOT}/.venv/bin/vllama",
    "peers": f"{ROOT}/.venv/bench/peers/bin",
    "oai2ollama": f"{ROOT}/.venv/bench/oai2ollama/bin",
    "python": sys.executable,
    "dir": f"{ROOT}/bench",
}


def say(text):
    print(text, file=sys.stderr, flush=True)


def raise_file_limit():
    """Raise the limit on open files: 1,000 streams are 2,000 sockets in a front."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fill(text, values):
    for key, value in values.items():
        text = text.replace(f"{{{key}}}", str(value))
    return text


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ready(port, path, process, limit):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if process.poll() is not None:
            return False
        try:
            if not path:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return True
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2):
                return True
        except urllib.error.HTTPError as e:
            if e.code < 500:
                return True
        except OSError:
            pass
        time.sleep(0.05)
    return False


class Processes:
    """Processes with a temporary folder; the context manager stops them with all descendants.

    Each process writes its log to the folder, `tmp`, which exists within the context.
    """

    def __init__(self):
        self.procs = []

    def __enter__(self):
        # whoever is told to end leaves through __exit__ too
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        self.tmp = Path(tempfile.mkdtemp(prefix="bench-"))
        return self

    def environment(self, more=None):
        """Return our environment with `more`, without settings of an installed server."""
        own = {k: v for k, v in os.environ.items() if not k.startswith(("VLLAMA_", "OLLAMA_"))}
        return own | (more or {})

    def spawn(self, command, name, env=None, cpus=None, cwd=None, out=None):
        pin = (lambda: os.sched_setaffinity(0, cpus)) if cpus else None
        with (self.tmp / name).open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out or log,
                stderr=log,
                cwd=cwd or self.tmp,
                env=self.environment(env),
                start_new_session=True,
                preexec_fn=pin,
            )
        self.procs.append(process)
        return process

    def __exit__(self, *_):
        for sig, wait in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            for p in self.procs:
                if p.poll() is None:
                    os.killpg(p.pid, sig)
            end = time.monotonic() + wait
            while time.monotonic() < end and any(p.poll() is None for p in self.procs):
                time.sleep(0.02)
        for p in self.procs:
            if p.stdout:
                p.stdout.close()
        shutil.rmtree(self.tmp, ignore_errors=True)


class Lab(Processes):
    """One engine and some fronts; use as a context manager.

    `cpus`: processors of the fronts and of the rest, as (set, set), or None.
    """

    def __init__(self, engine_args="", values=None, cpus=None, ready_seconds=90):
        self.cpus = cpus or (None, None)
        self.ready_seconds = ready_seconds
        self.values = FILL | (values or {})
        self.engine_args = engine_args
        super().__init__()

    def __enter__(self):
        raise_file_limit()
        super().__enter__()
        uds = self.tmp / "engine.sock"
        command = [sys.executable, "-m", "bench.engine", "--port", "0", "--uds", str(uds)]
        command += shlex.split(self.engine_args)
        try:
            engine = self.spawn(command, "engine", cpus=self.cpus[1], cwd=ROOT, out=subprocess.PIPE)
            self.engine_pid = engine.pid
            self.engine_port = json.loads(engine.stdout.readline())["port"]
        except BaseException:
            self.__exit__()
            raise
        self.engine_url = f"http://127.0.0.1:{self.engine_port}"
        self.values |= {
            "engine": self.engine_url,
            "engine_host": "127.0.0.1",
            "engine_port": self.engine_port,
            "engine_uds": uds,
            "tmp": self.tmp,
        }
        return self

    def start(self, targets):
        """Start the fronts; return those that run, with `_port` and `_pid`; report the others."""
        live = []
        for target in targets:
            t = dict(target)
            if "cmd" not in t or self.start_one(t):
                live.append(t)
        return live

    def start_one(self, t):
        t["_port"] = free_port()
        values = self.values | {"port": t["_port"]}
        command = shlex.split(fill(t["cmd"], values))
        if shutil.which(command[0]) is None:
            say(f"{t['name']}: not installed; {t.get('hint', 'left out')}")
            return False
        for name, text in t.get("files", {}).items():
            (self.tmp / name).write_text(fill(text, values))
        env = {k: fill(v, values) for k, v in t.get("env", {}).items()}
        begun = time.monotonic()
        process = self.spawn(command, t["name"], env, cpus=self.cpus[0])
        t["_pid"] = process.pid
        if ready(t["_port"], t.get("ready"), process, self.ready_seconds):
            say(f"{t['name']}: ready after {time.monotonic() - begun:.2f} s")
            return True
        end = (self.tmp / t["name"]).read_bytes()[-800:].decode(errors="replace")
        say(f"{t['name']}: did not start; its last words: {end}")
        return False
