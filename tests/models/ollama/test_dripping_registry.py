"""Registries that never end: a byte now and then, in the head or in the body. Each pull ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from vllama.base.errors import SourceError
from vllama.models.library import open_library
from vllama.models.settings import ModelsSettings

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n"


@contextmanager
def dripping(begin: bytes) -> Iterator[str]:
    """Serve `begin` and then a byte every 50 ms, to each connection."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(begin)
            while not ended.wait(0.05):
                connection.sendall(b"x")

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("begin", [b"", HEAD, HEAD + b"\r\n"], ids=["line", "head", "body"])
def test_a_manifest_that_drips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr("vllama.net.web.bodies.SLOW_AFTER_S", 0.3)
    library = open_library(
        ModelsSettings(
            hf_cache_dir=tmp_path / "hf",
            data_dir=tmp_path / "data",
            ollama_dirs=(tmp_path / "ollama",),
            request_timeout_s=0.1,
            stall_timeout_s=0.3,
            attempts=1,
        )
    )
    with dripping(begin) as url, pytest.raises(SourceError):
        library.remote.pull(f"{url}/library/x", insecure=True)
