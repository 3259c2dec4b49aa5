"""The connections that bytes come over: kept, redirected, through a proxy, broken."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from vllama.net.web.connections import BadAddress, ConnectionBroken, Connections

BODY = bytes(range(256)) * 4096


class Server(ThreadingHTTPServer):
    """`asked` are (client's port, target, headers in lower case) of all requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[int, str, dict[str, str]]] = []
        self.to: dict[str, str] = {}  # path → where it is redirected
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        pass  # clients that leave


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.server.asked.append((self.client_address[1], self.path, headers))
        if self.path in self.server.to:
            self.send_response(302)
            self.send_header("Location", self.server.to[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        if self.path.endswith("/chunked"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\r\nhello\r\n0\r\n\r\n")
            return
        announced = len(BODY) + (1 if self.path.endswith("/short") else 0)
        self.send_header("Content-Length", str(announced))
        if self.path.endswith("/last"):
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(BODY)
        if self.path.endswith(("/short", "/last", "/hangup")):
            self.close_connection = True

    def do_CONNECT(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.server.asked.append((self.client_address[1], self.path, headers))
        self.send_error(403)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.002,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def wire() -> Connections:
    return Connections(connect_s=5.0, silence_s=5.0)


def body(wire: Connections, url: str, headers: dict[str, str] | None = None) -> bytes:
    with wire.ask(url, headers or {}) as answer:
        assert answer.status == 200
        return b"".join(iter(answer.read, b""))


def test_a_connection_is_kept_until_the_server_ends_it(server: Server) -> None:
    with wire() as connections:
        for path in ("/a", "/b", "/last", "/c", "/hangup", "/d"):
            assert body(connections, server.url + path) == BODY
    ports = [port for port, _, _ in server.asked]
    assert ports[0] == ports[1] == ports[2] != ports[3] == ports[4] != ports[5]


def test_half_read_answers_do_not_spoil_the_next(server: Server) -> None:
    with wire() as connections:
        for _ in range(3):
            with connections.ask(server.url, {}) as answer:
                assert BODY.startswith(answer.read())
            assert body(connections, server.url) == BODY


def test_lengths(server: Server) -> None:
    with wire() as connections:
        with connections.ask(server.url + "/a", {}) as answer:
            assert answer.length == len(BODY)
        assert body(connections, server.url + "/chunked") == b"hello"
        # less than announced is for the caller to see: it knows what it wants
        assert body(connections, server.url + "/short") == BODY


def test_redirects_keep_credentials_at_home(server: Server) -> None:
    with Server() as other:
        threading.Thread(target=other.serve_forever, args=(0.002,), daemon=True).start()
        server.to = {"/a": "/b?x=%20y", "/b?x=%20y": f"{other.url}/c"}
        other.to = {"/c": f"{server.url}/d"}
        with wire() as connections:
            headers = {"Authorization": "Bearer secret", "Range": "bytes=0-"}
            assert body(connections, server.url + "/a", headers) == BODY
        other.shutdown()
    seen = [(path, "authorization" in headers) for _, path, headers in server.asked + other.asked]
    assert seen == [("/a", True), ("/b?x=%20y", True), ("/d", False), ("/c", False)]
    assert all(headers["range"] == "bytes=0-" for _, _, headers in server.asked + other.asked)


@pytest.mark.parametrize("to", ["/a", "ftp://127.0.0.1/x", "http://", "http://[::bad/x"])
def test_redirects_to_nowhere(server: Server, to: str) -> None:
    server.to = {"/a": to}
    with wire() as connections, pytest.raises(BadAddress):
        body(connections, server.url + "/a")


def test_a_proxy_is_asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url.replace("://", "://me:pass%20word@"))
    monkeypatch.setenv("https_proxy", server.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with wire() as connections:
        assert body(connections, "http://storage.example/a?b=c") == BODY
        with pytest.raises(ConnectionBroken, match="403"):
            body(connections, "https://storage.example:8443/a")
        assert body(connections, server.url + "/here") == BODY
    (_, first, headers), (_, tunnel, _), (_, direct, _) = server.asked
    assert direct == "/here"
    assert (first, headers["host"]) == ("http://storage.example/a?b=c", "storage.example")
    assert headers["proxy-authorization"] == "Basic bWU6cGFzcyB3b3Jk"
    assert tunnel == "storage.example:8443"


def test_a_proxy_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:9")
    with wire() as connections, pytest.raises(BadAddress, match="socks5"):
        body(connections, "http://storage.example/")


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with wire() as connections, pytest.raises(ConnectionBroken):
            body(connections, f"http://127.0.0.1:{free.getsockname()[1]}/")


def test_silence_ends_and_reads_can_be_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        quick = Connections(connect_s=5.0, silence_s=0.1)
        with quick, pytest.raises(ConnectionBroken, match="stopped responding"):
            body(quick, url)
        connections, ended = wire(), threading.Event()

        def ask() -> None:
            with connections, pytest.raises(ConnectionBroken), connections.ask(url, {}):
                pass
            ended.set()

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        while not ended.wait(0.01):
            connections.end_reads([asking])
        asking.join(60)


@pytest.mark.parametrize(("method", "times"), [("GET", 2), ("POST", 1)])
def test_what_may_change_something_is_sent_once(method: str, times: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asked = []

        def hang_up() -> None:
            while True:
                connection, _ = listening.accept()
                with connection:
                    if not (head := connection.recv(4096)):
                        return
                    asked.append(head.split()[0])

        answering = threading.Thread(target=hang_up, daemon=True)
        answering.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        with (
            wire() as connections,
            pytest.raises(ConnectionBroken),
            connections.ask(url, {}, method=method),
        ):
            pass
        socket.create_connection(listening.getsockname()).close()
        answering.join(60)
    assert asked == [method.encode()] * times


def test_every_address_is_checked_before_it_is_asked(server: Server) -> None:
    server.to = {"/a": "/b"}

    def check(address: str) -> None:
        if address.endswith("/b"):
            raise PermissionError(address)

    with Connections(connect_s=5.0, silence_s=5.0, check=check) as connections:
        with pytest.raises(PermissionError):
            body(connections, server.url + "/a")
        with connections.ask(server.url + "/a", {}, follow=False) as answer:
            assert (answer.status, answer.url) == (302, server.url + "/a")
    assert [path for _, path, _ in server.asked] == ["/a", "/a"]


def test_a_direct_connection_asks_no_proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Connections(connect_s=5.0, silence_s=5.0, direct=True) as connections:
        assert body(connections, server.url + "/a") == BODY
