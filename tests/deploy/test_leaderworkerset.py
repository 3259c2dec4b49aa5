"""The manifest of a model over several machines, checked against the schemas of its kinds."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.deploy.test_chart import validate

HERE = Path(__file__).parent
MANIFEST = HERE.parents[1] / "deploy" / "leaderworkerset" / "vllm.yaml"

pytestmark = pytest.mark.slow


def test_the_manifest_is_valid(tmp_path: Path) -> None:
    group, *others = yaml.safe_load_all(MANIFEST.read_text())
    jsonschema.validate(group, json.loads((HERE / "leaderworkerset.json").read_text()))
    template = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {"name": "pod", **template["metadata"]}
    validate(yaml.safe_dump_all([pod, *others]), tmp_path)


def test_the_service_and_the_policy_mean_these_pods() -> None:
    group, service, policy = yaml.safe_load_all(MANIFEST.read_text())
    name = group["metadata"]["name"]
    labels = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["labels"]
    assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/name"] == name
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
