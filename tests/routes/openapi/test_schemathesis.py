"""schemathesis, as it is, against a server with the fake engine.

Nothing in it depends on chance: the versions of what generates requests are pinned, the seed is
fixed, no example is kept from an earlier run, and the server reaches no network. The stateful phase
is left out, because it makes requests of the ids in answers, which differ from run to run.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_process import LIMIT_S, Server

CONFIG = Path(__file__).with_name("schemathesis.toml")
PROGRAM = Path(sys.executable).with_name("schemathesis")
OPTIONS = {
    "--phases": "examples,coverage,fuzzing",
    "--max-examples": "5",
    "--seed": "1",
    "--generation-database": "none",
    "--suppress-health-check": "all",  # they judge the speed of generation
    "--request-timeout": str(LIMIT_S),
}
NOBODY = "http://127.0.0.1:9"
"""The proxy for all hosts: nothing listens there, so that every pull fails at once."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_server_does_what_is_described(tmp_path):
    if not PROGRAM.exists():
        pytest.skip("make dev installs schemathesis")
    env = {"HF_HUB_OFFLINE": "1", "ALL_PROXY": NOBODY}
    with Server(tmp_path / "home", env=env) as server:
        server.model("plain")
        options = [text for option in OPTIONS.items() for text in option]
        command = [str(PROGRAM), "--config-file", str(CONFIG), "run", f"{server.url}/openapi.json"]
        done = subprocess.run(
            [*command, *options, "--continue-on-failure"],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
