"""Two servers behind nginx are restarted in turn, and no request is lost."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lacking import lacking
from tests.ports import free_port
from tests.routes.test_ollama_chat import until, user
from tests.server_process import LIMIT_S, Server

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parents[2] / "deploy" / "nginx" / "vllama.conf"
CLIENTS = 12
LONG = "@tokens=40 @delay=0.005"
"""An answer that takes a while, so that some are under way when a server is told to stop."""


@dataclass(frozen=True)
class Kind:
    """One kind of request, and what the end of its answer looks like."""

    path: str
    body: dict
    end: bytes


OPENAI, MAX = {"model": "m"}, {"max_tokens": 50}
KINDS = (
    Kind("/api/chat", {"model": "m", **user(LONG)}, b'"done":true'),
    Kind("/api/chat", {"model": "m", **user(), "stream": False}, b'"done":true'),
    Kind("/api/generate", {"model": "m", "prompt": "hello"}, b'"done":true'),
    Kind("/v1/chat/completions", OPENAI | user(LONG) | {"stream": True}, b"data: [DONE]"),
    Kind("/v1/chat/completions", OPENAI | user(), b'"finish_reason":"stop"'),
    Kind("/v1/responses", OPENAI | {"input": "hello", "stream": True}, b"response.completed"),
    Kind("/v1/messages", OPENAI | MAX | user() | {"stream": True}, b"message_stop"),
    Kind("/api/embed", {"model": "m", "input": "hello"}, b'"embeddings"'),
)


ERROR = re.compile(rb'"error":(?!null)')


@dataclass(frozen=True)
class Failure:
    """A request that was not answered to its end; times are those of `time.monotonic`."""

    begun_s: float
    path: str
    reason: str


class Clients:
    """Threads that send one request after the other until `stop`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.answered = 0
        self.failures: list[Failure] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the requests that have begun end."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, count: int) -> None:
        """Wait until `count` more requests have been answered."""
        goal = self.answered + count
        until(lambda: self.answered >= goal or self.failures)

    def _run(self) -> None:
        while not self._stop.is_set():
            kind = KINDS[next(self._numbers) % len(KINDS)]
            begun_s = time.monotonic()
            try:
                reason = self._find_fault(kind)
            except (OSError, http.client.HTTPException) as error:
                reason = repr(error)
            with self._lock:
                if reason:
                    self.failures.append(Failure(begun_s, kind.path, reason))
                else:
                    self.answered += 1

    def _find_fault(self, kind: Kind) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT_S)
        try:
            connection.request("POST", kind.path, json.dumps(kind.body))
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status == 200 and kind.end in data and not ERROR.search(data):
            return ""
        return f"{answer.status}: {data[-300:]!r}"


@contextmanager
def nginx(folder: Path, ports: list[int], change: Callable[[str], str]) -> Iterator[int]:
    """Run nginx with our example, in front of servers on `ports`; yield its own port."""
    port, example = free_port(), CONFIG.read_text()
    for old, new in zip((11434, 11435, 11436), (port, *ports), strict=True):
        example = example.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
    with run_nginx(folder, port, change(example)):
        yield port


@contextmanager
def run_nginx(folder: Path, port: int, servers: str) -> Iterator[None]:
    """Run nginx with a configuration of servers, which listens on `port`."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        lacking("nginx is missing")
    folder.mkdir()
    own = "".join(
        f"{name}_temp_path {folder / name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; worker_processes 2; pid {folder / 'pid'}; error_log {folder / 'log'};"
        f"events {{}} http {{ access_log off; {own} {servers} }}"
    )
    with subprocess.Popen([program, "-p", str(folder), "-c", str(config)]) as process:
        try:
            until(lambda: accepts(port) or process.poll() is not None)
            assert process.poll() is None, (folder / "log").read_text()
            yield
        finally:
            process.send_signal(signal.SIGQUIT)


def accepts(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.connect()
    except OSError:
        return False
    connection.close()
    return True


def is_ready(server: Server) -> bool:
    return server.request("GET", "/readyz")[0] == 200


def restart(server: Server) -> None:
    """End the server as a service manager does, and start it again on its port."""
    assert server.process
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(LIMIT_S) == 0
    server.start()
    until(lambda: is_ready(server))


@contextmanager
def two_servers(folder: Path, env: dict[str, str]) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        servers = []
        for name in ("first", "second"):
            port = str(free_port())
            server = Server(folder / name, "--port", port, "--model", "m", env=env)
            server.model("m")
            servers.append(stack.enter_context(server))
        for server in servers:
            until(lambda server=server: is_ready(server))
        yield servers


# Some requests wait for a slot when their server is told to stop, and no answer may be cut off only
# because the machine is slow.
SETTINGS = {"VLLAMA_NUM_PARALLEL": "4", "VLLAMA_DRAIN_TIMEOUT": "600s"}
NO_POOL: Callable[[str], str] = lambda example: re.sub(r"keepalive \d+;", "", example)  # noqa: E731
CASES = {
    "as in the example": (str, {}, 1000),
    "with a delay, and a connection for each request": (
        NO_POOL,
        {"VLLAMA_SHUTDOWN_DELAY": "1s"},
        300,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rolling_update_loses_no_request(tmp_path: Path, case: str) -> None:
    change, env, requests = CASES[case]
    with (
        two_servers(tmp_path, SETTINGS | env) as servers,
        nginx(tmp_path / "nginx", [server.port for server in servers], change) as port,
    ):
        clients = Clients(port)
        try:
            for server in servers:
                clients.wait_for(requests // 4)
                restart(server)
            clients.wait_for(max(requests // 4, requests - clients.answered))
        finally:
            clients.stop()
        assert clients.failures == []
        assert clients.answered >= requests


def test_a_killed_server_loses_only_what_it_was_answering(tmp_path: Path) -> None:
    with (
        two_servers(tmp_path, SETTINGS) as (first, second),
        nginx(tmp_path / "nginx", [first.port, second.port], str) as port,
    ):
        clients = Clients(port)
        try:
            clients.wait_for(100)
            assert first.process
            first.process.kill()
            first.process.wait()
            gone_s = time.monotonic()
            goal = clients.answered + 100
            until(lambda: clients.answered >= goal)
        finally:
            clients.stop()
        assert [failure for failure in clients.failures if failure.begun_s > gone_s] == []
