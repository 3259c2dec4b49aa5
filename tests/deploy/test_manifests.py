"""The container files and manifests, checked by the programs of the formats."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.lacking import lacking
from vllama.admin.service import STOP_MARGIN_S
from vllama.config import SETTINGS

DEPLOY = Path(__file__).parents[2] / "deploy"
BIN = Path(sys.executable).parent
USER = 10001
STOP_SETTINGS = ("SHUTDOWN_DELAY", "DRAIN_TIMEOUT")


def run(*words: str | Path) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(overlay: str) -> list[dict]:
    """Return the objects that `kubectl apply -k` would send."""
    kubectl = shutil.which("kubectl") or lacking("kubectl is missing, which builds the manifests")
    return list(yaml.safe_load_all(run(kubectl, "kustomize", DEPLOY / "kubernetes" / overlay)))


def find(objects: list[dict], kind: str) -> dict:
    return next(item for item in objects if item["kind"] == kind)


@pytest.mark.parametrize("overlay", ["base", "cuda"])
def test_kubernetes_takes_the_manifests(tmp_path: Path, overlay: str) -> None:
    objects = [item for item in build(overlay) if item["kind"] != "ServiceMonitor"]
    built = tmp_path / "built.yaml"
    built.write_text(yaml.safe_dump_all(objects))
    told = run(BIN / "kubernetes-validate", "--strict", built)
    assert told.count("passed") == len(objects)


@pytest.mark.parametrize("overlay", ["base", "cuda"])
def test_a_pod_is_confined_and_drained(overlay: str) -> None:
    pod = find(build(overlay), "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsUser"] == USER
    assert container["securityContext"]["readOnlyRootFilesystem"]
    environ = {item["name"]: item.get("value", "") for item in container["env"]}
    delay_s, drain_s = (int(environ[f"VLLAMA_{name}"]) for name in STOP_SETTINGS)
    probe_s = container["readinessProbe"]["periodSeconds"]
    assert probe_s < delay_s
    assert delay_s + drain_s + STOP_MARGIN_S <= pod["terminationGracePeriodSeconds"]
    flags = {word for word in container["args"] if word.startswith("--")}
    assert flags <= {setting.flag for setting in SETTINGS}
    assert set(environ) <= {setting.env for setting in SETTINGS}


def test_parts_that_name_each_other() -> None:
    objects = build("base")
    pod = find(objects, "Deployment")["spec"]["template"]
    labels = pod["metadata"]["labels"]
    for item in (find(objects, "Service")["spec"]["selector"],
                 find(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"],
                 find(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]):  # fmt: skip
        assert item == labels
    claim = pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert find(objects, "PersistentVolumeClaim")["metadata"]["name"] == claim
    metric = find(objects, "HorizontalPodAutoscaler")["spec"]["metrics"][0]["pods"]["metric"][
        "name"
    ]
    rules = yaml.safe_load((DEPLOY / "kubernetes" / "prometheus-adapter.yaml").read_text())
    assert rules["rules"]["custom"][0]["name"]["as"] == metric


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
