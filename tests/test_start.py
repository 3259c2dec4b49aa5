"""What a start imports, and what it leaves for later: without a clock, that is what it costs."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllama.gateway import routes

ROOT = Path(__file__).parents[1]
NAMES = sorted(
    {name for table in routes.ROUTES.values() for name in table.values()}
    | {name for _, table in routes.PREFIXES for name in table.values()}
)
BEFORE_AN_ANSWER = (
    "vllama.cli.serve",
    "vllama.cli.serve_ui",
    "vllama.cli.server_log",
    "vllama.cli.told",
    "vllama.daemon",
    "vllama.gateway.alive",
    "uvicorn.protocols.http.httptools_impl",
)
HEAVY = (
    *("filelock", "http.cookiejar", "httpx", "httpx2", "huggingface_hub", "jinja2", "numpy"),
    *("prometheus_client", "prompt_toolkit", "pydantic", "rich", "tomlkit", "typer"),
    *("vllama.gateway.inference", "vllama.models.info", "vllama.supervise.supervisor"),
    *("vllama.translate.adapt", "vllama.translate.prompt", "vllama.translate.types"),
)


def modules_after(code: str) -> set[str]:
    """Return the modules that a new interpreter has after running `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    return set(done.stdout.split())


def test_a_server_answers_before_it_imports_what_is_heavy() -> None:
    there = modules_after(f"import {', '.join(BEFORE_AN_ANSWER)}")
    assert set(BEFORE_AN_ANSWER) <= there
    assert not there & set(HEAVY)


def test_all_of_the_gateway_is_there_soon_after() -> None:
    there = modules_after("from vllama import daemon\ndaemon.import_the_rest()")
    gateway = {
        f"vllama.gateway.{path.stem}" for path in (ROOT / "vllama/gateway").glob("[a-z]*.py")
    }
    assert not (gateway | {"vllama.supervise.supervisor"}) - there
    assert "jinja2" not in there  # that is for a model with a template of its own


@pytest.mark.parametrize("name", NAMES)
def test_every_route_has_its_handler(name: str) -> None:
    handler = routes.handler(name)
    assert inspect.iscoroutinefunction(handler)
    assert list(inspect.signature(handler).parameters) == ["gateway", "request"]
