# ruff: noqa: E501 (tables of pieces)
"""Fuzzers of a running server: bytes on its socket, and JSON for every route that takes some.

Whatever comes is answered in HTTP, none of it with an error of the server's own, and the next
client is answered too.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.fuzzing import fuzz, varied
from tests.server import LIMIT_S, Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # nothing is fetched: what is pulled by name leads to a port where nobody listens
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:1", "VLLAMA_OLLAMA_REGISTRY": "http://127.0.0.1:1"}
    with Server(tmp_path_factory.mktemp("fuzz"), env=nowhere) as running:
        running.model("sea")
        yield running
        assert running.get("/api/version")
        assert "Traceback" not in running.output


# -- bytes ---------------------------------------------------------------------------------------

BODY = b'{"model":"sea","messages":[{"role":"user","content":"x"}],"stream":false}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
REQUESTS = [
    b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"HEAD / HTTP/1.0\r\n\r\n",
    b"POST /api/show HTTP/1.1\r\nHost: localhost\r\n" + LENGTH + b"\r\n" + BODY,
    b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"%x\r\n%b\r\n0\r\nTrailer: x\r\n\r\n" % (len(BODY), BODY),
    b"OPTIONS /api/chat HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n",
    b"POST /v1/responses HTTP/1.1\r\nHost: a\r\nContent-Encoding: zstd\r\nContent-Length: 4\r\n\r\nxxxx",
    b"GET /api/tags HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
]
BYTES = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"%00", b"%2e%2e/", b"?", b"#", b"*", b"\xff", b"0\r\n\r\n",
    b"Host: evil\r\n", b"Origin: null\r\n", b"Content-Length: 5\r\n", b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Expect: 100-continue\r\n",
    b"Connection: close\r\n", b"Connection: upgrade\r\n", b"HTTP/1.1", b"HTTP/2.0", b"GET ", b"PRI * HTTP/2.0\r\n\r\n",
    b"ffffffffffffffff\r\n", b"-1\r\n", b";x=\"y\"", b"http://evil/", b"X: " + b"y" * 1000 + b"\r\n", b" folded\r\n",
]  # fmt: skip


@fuzz(2500)
@given(asked=st.lists(varied(REQUESTS, BYTES), min_size=1, max_size=3), cut=st.integers(1, 400))
def test_fuzz_http(server: Server, asked: list[bytes], cut: int) -> None:
    data = b"".join(asked)
    with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S) as connection:
        answer = b""
        try:
            for at in range(0, len(data), max(cut, len(data) // 20)):
                connection.sendall(data[at : at + max(cut, len(data) // 20)])
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        except OSError:  # it has been closed while we went on
            pass
    assert not answer or re.match(rb"HTTP/1\.1 [1-5]\d\d ", answer), answer
    assert b"internal error" not in answer
