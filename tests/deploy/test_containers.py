"""The container files, checked by the programs of the formats."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.ports import free_port
from tests.server.test_tls import Pair
from tests.server_process import Server
from vllama.cli.commands.service import STOP_MARGIN_S

GUIDE = Path(__file__).parents[2] / "docs/guide/deployment.md"
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


IMAGES = ("Containerfile", "Containerfile.cuda", "Containerfile.llama-cuda")


@pytest.mark.parametrize("name", IMAGES)
def test_images_run_as_nobody_in_particular(name: str) -> None:
    lines = (DEPLOY / name).read_text().splitlines()
    assert f"USER {USER}" in lines
    entry = next(line for line in lines if line.startswith("ENTRYPOINT"))
    assert json.loads(entry.partition(" ")[2])[:2] == ["vllama", "serve"]


@pytest.mark.parametrize("name", IMAGES)
def test_images_serve_nobody_without_a_key_unless_told(name: str) -> None:
    """test_open_server.py starts a server with these variables; here it is that they are set."""
    comment, _, steps = (DEPLOY / name).read_text().partition("ARG BASE")
    assert re.search(r"^ENV .* VLLAMA_HOST=0.0.0.0 VLLAMA_OPEN=0 ", steps, re.MULTILINE)
    (run_line,) = re.findall(r"podman run (.*?)\n# It", comment, re.DOTALL)
    assert "-e VLLAMA_API_KEY=" in run_line
    for line in GUIDE.read_text().splitlines():
        if line.startswith("podman run"):
            assert "VLLAMA_API_KEY=" in line or "-p 127.0.0.1:" in line


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("Containerfile", "python -m vllama.engines.llamacpp.xllamacpp_child --version"),
        ("Containerfile.cuda", 'python3 -c "import torch, vllm"'),
        ("Containerfile.llama-cuda", "/app/llama-server --version"),
    ],
)
def test_an_image_whose_engine_does_not_start_is_not_built(name: str, check: str) -> None:
    *_, last = (DEPLOY / name).read_text().split("\nFROM ")
    installs, checks, user = (
        last.index(each) for each in ("pip install", f"RUN {check}", f"USER {USER}")
    )
    assert installs < checks < user
    if name == "Containerfile":
        assert "install --yes --no-install-recommends libgomp1" in last[:installs]


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.llama-cuda"])
def test_what_an_image_installs_is_in_the_lock(name: str) -> None:
    text = (DEPLOY / name).read_text()
    lock = tomllib.loads((DEPLOY.parent / "uv.lock").read_text())
    versions = {package["name"]: package.get("version") for package in lock["package"]}
    assert re.findall(r"(\S+)==(\S+)", text) == [("uv", versions["uv"])]
    assert "pip install --no-cache-dir --require-hashes -r /wheels/lock.txt" in text
    bases = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE))
    assert bases - stages == {"$BASE"}  # which may be given with its digest


@pytest.mark.parametrize("name", IMAGES)
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
    assert "\nxllamacpp==" in versions
    # each line that names a package goes on with its hashes
    assert not re.findall(r"^[a-z].*[^\\]$", versions, re.MULTILINE)


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
