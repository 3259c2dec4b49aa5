"""The container files, checked by the programs of the formats."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.ports import free_port
from tests.server.test_tls import Pair
from tests.server_process import Server
from vllama.cli.commands.service import STOP_MARGIN_S

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


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.cuda"])
def test_no_sources_are_in_the_image(name: str) -> None:
    *_, last = (DEPLOY / name).read_text().split("\nFROM ")
    copied = [line.split()[1] for line in last.splitlines() if line.startswith("COPY")]
    assert copied == ["deploy/healthcheck.py"]


@pytest.mark.slow
def test_a_wheel_and_its_versions_can_be_made_of_what_the_builder_is_sent(tmp_path: Path) -> None:
    lines = (DEPLOY.parent / ".dockerignore").read_text().split()
    assert lines[0] == "*"
    for kept in (line[1:] for line in lines if line[0] == "!"):
        source, target = DEPLOY.parent / kept, tmp_path / "src" / kept
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    env = os.environ | {"SETUPTOOLS_SCM_PRETEND_VERSION": "1.2.3"}
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        tmp_path,
    ]
    subprocess.run([*command, tmp_path / "src"], env=env, check=True)
    (wheel,) = tmp_path.glob("vllama_serve-1.2.3-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert "vllama/ui/main.js" in packed.namelist()
    words = (DEPLOY / "Containerfile").read_text().partition("uv export --project /src ")[2].split()
    options = words[: words.index("-o")]
    versions = run(BIN / "uv", "export", "--quiet", "--project", tmp_path / "src", *options)
    assert "\nmsgspec==" in versions and "\npytest==" not in versions


@pytest.mark.slow
def test_the_health_check_follows_port_and_tls(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "tls", "vllama.example")
    with Server(tmp_path, *pair.flags) as server:
        told = {"VLLAMA_PORT": str(server.port), "VLLAMA_TLS_CERT": str(pair.chain)}
        env = os.environ | told | {"VLLAMA_TLS_KEY": str(pair.key), "VLLAMA_HOST": "0.0.0.0"}
        command = [sys.executable, DEPLOY / "healthcheck.py"]
        subprocess.run(command, env=env, check=True)
        plain = {name: value for name, value in env.items() if "_TLS_" not in name}
        assert subprocess.run(command, env=plain, capture_output=True, check=False).returncode
        port = {"VLLAMA_PORT": str(free_port())}
        assert subprocess.run(command, env=env | port, capture_output=True, check=False).returncode
