"""A web server of its own for each test that wants one."""

from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer

import pytest

from tests.doctor.facts import Ollama


@pytest.fixture
def web():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ollama)
    server.answer, server.seen = {}, []
    threading.Thread(target=server.serve_forever, args=(0.002,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
