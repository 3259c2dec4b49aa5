"""What clients meet while a server starts: answers at once, waiting, and the reason if it fails."""

from __future__ import annotations

import http.client
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from vllama.routes.route import Route
from vllama.routes.route_table import ROUTES

ROOT = Path(__file__).parents[2]
STARTING = """
import sys
from vllama.base.errors import NoPlan
from vllama.__main__ import main
from vllama.server import startup

def compose(*parts):
    print("composing", flush=True)
    sys.stdin.readline()  # until the test has its answers
    raise NoPlan("cannot serve: no such engine", hint="install one")

startup.compose = compose
sys.exit(main())
"""
"""A real start that stops, and then fails, where it looks for engines."""


def test_a_server_answers_before_it_is_composed(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-c", STARTING, "serve", "--port", str(port)]
    env = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin and process.stdout and process.stderr
        assert process.stdout.readline() == b"composing\n"
        first = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
        first.request("GET", "/api/version")
        assert "vllama" in json.load(first.getresponse())
        waiting = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
        waiting.request("GET", "/api/tags")
        for _ in range(2):  # the second request is accepted during the one, read during the other
            first.request("GET", "/")
            assert first.getresponse().read() == b"Ollama is running"
        first.request("GET", "/readyz")
        assert (ready := first.getresponse()).status == 503 and b"it is starting" in ready.read()
        process.stdin.write(b"\n")
        process.stdin.flush()
        answer = waiting.getresponse()
        assert answer.status == 500
        assert "no such engine" in json.load(answer)["error"]
        first.close()
        waiting.close()
        _, told = process.communicate(timeout=240)
    assert b"cannot serve: no such engine" in told
    assert process.returncode == 3


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.spelling)
def test_every_route_has_its_handler(route: Route) -> None:
    assert inspect.iscoroutinefunction(route.handler)
    gateway, request = inspect.signature(route.handler).parameters.values()
    assert gateway.annotation in ("Gateway", "Starting") and request.annotation == "Request"
    if route.starting is not None:
        assert inspect.iscoroutinefunction(route.starting)
        starting, request = inspect.signature(route.starting).parameters.values()
        assert starting.annotation == "Starting" and request.annotation == "Request"
