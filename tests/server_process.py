"""A real `vllama serve` as a process of its own, with a home of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

FAKE = Path(__file__).parent / "fake_engine"
LIMIT_S = 240.0
"""For what happens by itself, on the slowest of machines; only a failure takes so long."""


class Server:
    """A running server. Use it as a context manager; leaving checks that nothing is left."""

    def __init__(
        self, home: Path, *arguments: str, fake: bool = True, env=None, python=sys.executable
    ):
        self.python = str(python)
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.models = home / "models"
        self.models.mkdir(exist_ok=True)
        keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.env = keep | {
            "HOME": str(home),
            "VLLAMA_DATA_DIR": str(home / "data"),
            "VLLAMA_FOLDERS": str(self.models),
            "HF_HOME": str(home / "hf"),
            "PYTHONUNBUFFERED": "1",
            **({"PYTHONPATH": str(FAKE)} if fake else {}),
            **(env or {}),
        }
        self.arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None
        self.log = home / "server.log"
        self.port = 0

    @property
    def command(self) -> list[str]:
        """Return the command line of the server."""
        return [self.python, "-m", "vllama", "serve", "--port", "0", *self.arguments]

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is None:
            return
        tree = self.tree()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise AssertionError(f"the server did not stop:\n{self.output}") from None
        _, alive = psutil.wait_procs(tree, timeout=LIMIT_S)
        for process in alive:
            process.kill()
        assert not alive, f"left behind: {alive}"

    def start(self) -> None:
        """Start it and wait until it says where it listens."""
        self.port = 0  # until it listens: its last one may belong to another process by now
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, env=self.env, stdout=log, stderr=subprocess.STDOUT
            )
        self.wait_for(r"https?://[^\s]*:(\d+)")
        found = re.search(r"https?://[^\s]*:(\d+)", self.output)
        assert found
        self.port = int(found[1])

    def wait_for(self, pattern: str, limit_s: float = LIMIT_S) -> str:
        """Wait until `pattern` is in its output; return all output."""
        assert self.process
        deadline = time.monotonic() + limit_s
        while not re.search(pattern, self.output):
            ended = self.process.poll() is not None
            if re.search(pattern, self.output):
                break
            assert not ended, f"it ended without {pattern!r}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.output}"
            time.sleep(0.01)
        return self.output

    @property
    def output(self) -> str:
        """All that it has printed; it may answer first, and log that later: see `wait_for`."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tree(self) -> list[psutil.Process]:
        """Return the processes below the server, itself not included."""
        assert self.process
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def commands(self) -> dict[psutil.Process, list[str]]:
        """Return the command lines of `tree`, without those of processes that have just ended."""
        found = {}
        for process in self.tree():
            with suppress(psutil.NoSuchProcess):
                found[process] = process.cmdline()
        return found

    # -- HTTP ---------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def open(self, path: str, body):
        """POST and yield the answer as soon as its head is there."""
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps(body))
            with connection.getresponse() as answer:
                yield answer
        finally:
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)

    def request(self, method: str, path: str, body=None, headers=None):
        """Return status, headers and body of one request."""
        connection = self.connect()
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def get(self, path: str):
        """Return the JSON of a GET that must succeed."""
        status, _, body = self.request("GET", path)
        assert status == 200, body
        return json.loads(body)

    def post(self, path: str, body) -> tuple[int, dict]:
        """Return status and JSON of a POST."""
        status, _, data = self.request("POST", path, body)
        return status, json.loads(data) if data else {}

    def lines(self, path: str, body) -> list[dict]:
        """Return the NDJSON objects of a streamed POST."""
        status, headers, data = self.request("POST", path, body)
        assert status == 200, data
        assert headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in data.splitlines()]

    # -- engines ------------------------------------------------------------------------------

    def model(
        self,
        name: str,
        *switches: str,
        once: bool = False,
        template: str | None = None,
        ranks: bool = False,
    ) -> str:
        """Make a model that the fake engine serves with `switches`; return its name.

        `once`: only the first start has them. `template` None: the usual one. `ranks`: its file
        says that it scores documents.
        """
        from tests.tiny import TEMPLATE, write_tiny_gguf

        path = self.models / f"{name}.gguf"
        if not path.exists():
            more = (lambda writer: writer.add_uint32("llama.pooling_type", 4)) if ranks else None
            write_tiny_gguf(path, n_ctx=4096, template=template or TEMPLATE, extra=more)
        path.with_suffix(".once" if once else ".args").write_text("\n".join(switches))
        return name

    def take(self, folder: Path) -> None:
        """Have the models of another folder too."""
        for file in folder.iterdir():
            (self.models / file.name).symlink_to(file)

    def engine(self, name: str) -> psutil.Process:
        """Return the engine process of a loaded model.

        It may be listed under the name of another model with the same files, which was asked for
        later; loading it by this name changes that. One that is being restarted is waited for.
        """
        for _ in range(2):
            for row in self.get("/api/ps")["models"]:
                if row["name"].startswith(name) and row["pid"]:
                    return psutil.Process(row["pid"])
            self.post("/api/generate", {"model": name})
        raise AssertionError(f"{name} is not loaded")

    def engine_log(self, name: str) -> str:
        """Return all that the newest engine of a model has printed: what `vllama logs` shows.

        The server itself prints the newest line of a load now and then: no test can wait for one.
        """
        from vllama.supervise.log_reader import Logbook, Reader

        book = Logbook(self.home / "data" / "logs")
        attempts = [
            path for one in book.find(name, f"{name}:latest") for path in book.list_attempts(one)
        ]
        newest = attempts[-1:]
        return "\n".join(line for path in newest for line in Reader(path).read_all())

    def stats(self, name: str) -> dict:
        """Return what the fake engine of `name` has seen."""
        return self.ask_engine(name, "/__stats")

    def ask_engine(self, name: str, path: str) -> dict:
        """Ask the fake engine of `name` directly."""
        return self.ask_process(self.engine(name), path)

    def ask_process(self, engine: psutil.Process, path: str) -> dict:
        """Ask a fake engine directly."""
        arguments = engine.cmdline()
        port = int(arguments[arguments.index("--port") + 1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def sent(self, name: str) -> dict:
        """Return the body of the last inference that the fake engine of `name` was asked for."""
        return next(body for body in reversed(self.stats(name)["bodies"]) if "stream" in body)
