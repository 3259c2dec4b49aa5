"""The error for a port that is taken."""

from __future__ import annotations

import os
import socket
import threading

import psutil
import pytest

from vllama.base.errors import PortTaken, VllamaError
from vllama.net.http.server import bind


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
    assert f"127.0.0.1:{port}: {owner} ({process}) uses it" in caught.value.message


def test_an_address_that_is_not_here_yet_is_no_wrong_setting() -> None:
    """A service manager starts the server again, as for a network that is slow at boot."""
    with pytest.raises(VllamaError, match=r"cannot listen on 192\.0\.2\.1:0") as caught:
        bind("192.0.2.1", 0)
    assert caught.value.exit_code == 1
