"""What a start imports, and what it leaves for later: without a clock, that is what it costs."""

from __future__ import annotations

import http.client
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.ports import free_port
from vllama.routes import route_table

ROOT = Path(__file__).parents[2]
NAMES = sorted(
    {name for table in route_table.ROUTES.values() for name in table.values()}
    | {name for _, table in route_table.PREFIXES for name in table.values()}
)
OPENING = """
import sys
from vllama.server import startup
from vllama.__main__ import main
from vllama.errors import NoPlan

def composed(config, reporter, load):
    print(*sys.modules, flush=True)
    sys.stdin.readline()  # until the test has its answer
    {end}

startup._composed = composed
sys.exit(main())
"""
"""A real start that says what it has imported when it would go on to make the rest."""


def modules_after(code: str, environ: Mapping[str, str] | None = None) -> set[str]:
    """Return the modules that a new interpreter has after running `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return set(done.stdout.split())


def test_a_server_answers_before_it_makes_the_rest(tmp_path: Path) -> None:
    end = "raise NoPlan('cannot serve: no such engine', hint='install one')"
    port = free_port()
    command = [sys.executable, "-c", OPENING.format(end=end), "serve", "--port", str(port)]
    env = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin and process.stdout and process.stderr
        there = set(process.stdout.readline().decode().split())
        first = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
        first.request("GET", "/api/version")
        assert "vllama" in json.load(first.getresponse())
        waiting = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
        waiting.request("GET", "/api/tags")
        for _ in range(2):  # the other is accepted beside the one, read beside the other
            first.request("GET", "/")
            assert first.getresponse().read() == b"Ollama is running"
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
    assert "vllama.server.startup" in there


def test_all_of_the_gateway_is_there_soon_after() -> None:
    there = modules_after("from vllama.server import daemon, startup\ndaemon.import_the_rest()")
    files = (path.relative_to(ROOT) for path in (ROOT / "vllama/routes").rglob("[a-z]*.py"))
    gateway = {".".join(path.with_suffix("").parts) for path in files}
    assert not (gateway | {"vllama.supervise.supervisor"}) - there
    assert "jinja2" not in there  # that is for a model with a template of its own


@pytest.mark.parametrize("name", NAMES)
def test_every_route_has_its_handler(name: str) -> None:
    handler = route_table.handler(name)
    assert inspect.iscoroutinefunction(handler)
    assert list(inspect.signature(handler).parameters) == ["gateway", "request"]


def test_what_is_answered_first_is_routed() -> None:
    assert set(NAMES) >= route_table.FIRST
