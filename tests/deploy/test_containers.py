"""The container files, checked by the programs of the formats."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from vllama.admin.service import STOP_MARGIN_S

DEPLOY = Path(__file__).parents[2] / "deploy"
BIN = Path(sys.executable).parent
USER = 10001


def run(*words: str | Path) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_compose_takes_its_file() -> None:
    file = DEPLOY / "compose.yaml"
    run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", file)
    services = yaml.safe_load(file.read_text())["services"]
    server = services["vllama"]
    assert server["read_only"]
    drain_s, grace_s = server["environment"]["VLLAMA_DRAIN_TIMEOUT"], server["stop_grace_period"]
    assert int(drain_s[:-1]) + STOP_MARGIN_S <= int(grace_s[:-1])
    mounted = [
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", ())
        if volume.startswith("./")
    ]
    assert mounted
    assert not [path for path in mounted if not (DEPLOY / path).exists()]


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.cuda"])
def test_images_run_as_nobody_in_particular(name: str) -> None:
    lines = (DEPLOY / name).read_text().splitlines()
    assert f"USER {USER}" in lines
    entry = next(line for line in lines if line.startswith("ENTRYPOINT"))
    assert json.loads(entry.partition(" ")[2])[:2] == ["vllama", "serve"]
