"""The error for a port that is taken, and the end of a listening socket."""

from __future__ import annotations

import os
import socket
import sys
import threading

import psutil
import pytest

from tests.server_process import LIMIT_S
from vllama.base.errors import PortTaken, VllamaError
from vllama.net.http.listener import bind, refuse_new_connections


@pytest.mark.parametrize(
    ("answer", "owner"),
    [
        (b"", "another program"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"version":"0.9"}', "an Ollama server"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"version":"0.9","vllama":"1"}', "another vllama"),
    ],
)
def test_the_owner_of_a_taken_port_is_named(answer: bytes, owner: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:

        def serve() -> None:
            connection, _ = taken.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken) as caught:
            bind("127.0.0.1", port)
        thread.join()
    process = f"pid {os.getpid()}, {psutil.Process().name()}"
    assert f"127.0.0.1:{port}: {owner} ({process}) is using it" in caught.value.message


def test_an_address_that_is_not_here_yet_is_no_wrong_setting() -> None:
    """A service manager starts the server again, as for a network that is slow at boot."""
    with pytest.raises(VllamaError, match=r"cannot listen on 192\.0\.2\.1:0") as caught:
        bind("192.0.2.1", 0)
    assert caught.value.exit_code == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="filters of sockets are Linux's")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_has_connected_can_be_accepted_and_nothing_new_connects(host) -> None:
    with bind(host, 0) as listener:
        where = listener.getsockname()[:2]
        with socket.create_connection(where) as early:
            early.sendall(b"a request")
            assert refuse_new_connections(listener)
            with pytest.raises(TimeoutError):  # its system goes on trying
                socket.create_connection(where, timeout=0.2)
            accepted, _ = listener.accept()
            with accepted:
                early.sendall(b", the rest")
                accepted.settimeout(LIMIT_S)
                text = accepted.recv(9)
                assert text + accepted.recv(99) == b"a request, the rest"
            with pytest.raises(BlockingIOError):
                listener.accept()
