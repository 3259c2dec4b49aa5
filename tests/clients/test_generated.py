"""Clients that generators make of `/openapi.json` without a warning, and that work.

`make test-clients` installs the generators. The calls are in files of their own, which run with
the generated client: ten whole ones, and two streams whose lines or events have generated types.
"""

from pathlib import Path

import pytest

from tests.clients.conftest import TOOLS
from tests.clients.prefix import add_prefix

pytestmark = [pytest.mark.slow, pytest.mark.clients]
HERE = Path(__file__).parent
EXPECTED = {
    "Codegen property is null",  # any JSON
    "Failed to get the schema name",  # an enumeration without a name
    "OpenAPI 3.1 support is still in beta",
}
"""Warnings of openapi-generator that say nothing about the description."""


def test_openapi_python_client(served, run_tool, tmp_path):
    said = run_tool(
        "openapi-python-client", "generate", "--url", f"{served.url}/openapi.json",
        "--output-path", tmp_path / "client", "--config", HERE / "openapi-python-client.yaml",
    )  # fmt: skip
    assert "WARNING" not in said and "Unable" not in said, said
    env = {"PYTHONPATH": str(tmp_path / "client")}
    run_tool("python", HERE / "calls_openapi_python_client.py", served.url, env=env)


def test_openapi_generator(served, run_tool, tmp_path):
    """The client is generated behind a proxy that adds a path, and goes the same way."""
    with add_prefix(served.port, "/llm") as url:
        said = run_tool(
            "openapi-generator-cli", "generate", "-g", "python", "-i", f"{url}/openapi.json",
            "-o", tmp_path / "client",
        )  # fmt: skip
        warnings = [line for line in said.splitlines() if "WARN" in line or "ERROR" in line]
        assert not [x for x in warnings if not any(one in x for one in EXPECTED)], said
        env = {"PYTHONPATH": str(tmp_path / "client")}
        run_tool("python", HERE / "calls_openapi_generator.py", url, env=env)


def test_openapi_typescript(served, run_tool, tmp_path):
    modules = TOOLS / "node_modules"
    (tmp_path / "node_modules").symlink_to(modules)
    calls = tmp_path / "calls.ts"
    calls.write_text((HERE / "calls.ts").read_text())
    script = modules / "openapi-typescript" / "bin" / "cli.js"
    run_tool("node", script, f"{served.url}/openapi.json", "-o", tmp_path / "schema.d.ts")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    options = ("--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck")
    run_tool("node", modules / "typescript" / "bin" / "tsc", *options, calls)
    run_tool("node", tmp_path / "calls.js", served.url)
