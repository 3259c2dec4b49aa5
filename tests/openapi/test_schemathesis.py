"""schemathesis, as it is, against a server with the fake engine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_process import Server

CONFIG = Path(__file__).with_name("schemathesis.toml")
PROGRAM = Path(sys.executable).with_name("schemathesis")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_server_does_what_is_described(tmp_path):
    if not PROGRAM.exists():
        pytest.skip("make dev installs schemathesis")
    with Server(tmp_path / "home", env={"HF_HUB_OFFLINE": "1"}) as server:
        server.model("plain")
        command = [str(PROGRAM), "--config-file", str(CONFIG), "run", f"{server.url}/openapi.json"]
        options = ["--max-examples", "5", "--seed", "1", "--continue-on-failure"]
        env = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(
            [*command, *options], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
