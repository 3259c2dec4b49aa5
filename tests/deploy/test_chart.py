"""The Helm chart, rendered by Helm and checked against Kubernetes' schemas.

`RENEW_GOLDEN=1` writes the golden renderings anew: read their difference.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.lacking import lacking
from vllama import config
from vllama.cli.commands.service import STOP_MARGIN_S
from vllama.config import SETTINGS

HERE = Path(__file__).parent
CHART = HERE.parents[1] / "deploy" / "helm" / "vllama"
GUIDE = HERE.parents[1] / "docs" / "guide" / "deployment.md"
GOLDEN = HERE / "golden"
BIN = Path(sys.executable).parent
VALUES = sorted((HERE / "values").glob("*.yaml"))
USER = 10001
OTHER_VARIABLES = {"HF_HOME", "OLLAMA_MODELS", "VLLAMA_CONFIG"}
STOP_SETTINGS = ("SHUTDOWN_DELAY", "DRAIN_TIMEOUT")

pytestmark = pytest.mark.slow


def helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    program = BIN / "helm" if (BIN / "helm").exists() else shutil.which("helm")
    program = program or lacking("helm is missing; run: make .venv/stamps/helm")
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def render(values: Path) -> str:
    done = helm(
        "template", "here", CHART, "--kube-version", "1.34.0", "--values", values,
        "--namespace", "models",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(text: str) -> dict[str, dict]:
    """Return the objects by kind; of claims the last one."""
    return {item["kind"]: item for item in yaml.safe_load_all(text) if item}


def validate(text: str, folder: Path) -> None:
    """Check all objects but those of an operator, which Kubernetes does not know."""
    known = [x for x in yaml.safe_load_all(text) if x and x["kind"] != "ServiceMonitor"]
    built = folder / "built.yaml"
    built.write_text(yaml.safe_dump_all(known))
    done = subprocess.run(
        [BIN / "kubernetes-validate", "--strict", built], capture_output=True, text=True, check=True
    )
    assert (done.stdout + done.stderr).count("passed") == len(known)


def write(folder: Path, values: Mapping[str, object]) -> Path:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values)))
    return file


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_chart_renders_as_recorded(tmp_path: Path, values: Path) -> None:
    done = helm("lint", "--strict", "--kube-version", "1.34.0", CHART, "--values", values)
    assert done.returncode == 0, done.stdout
    text = render(values)
    validate(text, tmp_path)
    golden = GOLDEN / values.name
    if os.environ.get("RENEW_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_parts_that_work_on_every_cluster_are_all_there_is_by_default() -> None:
    assert set(read(render(HERE / "values" / "default.yaml"))) == {
        "Deployment", "Service", "PersistentVolumeClaim",
    }  # fmt: skip


CHOICES: dict[str, list[dict[str, object]]] = {
    "gpus": [{}, {"gpu": {"count": 1, "resource": "amd.com/gpu"}}],
    "models": [{"models": []}, {"models": ["a:b", 'org/with "quotes"', "hf.co/x/y:Q4_K_M"]}],
    "config": [{}, {"config": 'x = "{{ .Values }}"\n\n[a]\ny = 1'}],
    "names": [{}, {"fullnameOverride": "a" * 60}, {"nameOverride": "llm"}],
    "replicas": [
        {},
        {
            "replicas": 3,
            "storage": {"accessMode": "ReadWriteMany"},
            "state": {"enabled": False},
            "podDisruptionBudget": {"enabled": True},
        },
        {"replicas": 0, "resources": {}},
    ],
    "nodes": [{}, {"nodes": {"count": 2, "keySecret": "between"}}],
    "network": [{}, {"ingress": {"enabled": True}, "networkPolicy": {"enabled": True}}],
}


def test_any_combination_of_values_is_valid(tmp_path: Path) -> None:
    for number, parts in enumerate(itertools.product(*CHOICES.values())):
        if number % 5:  # a fifth of them meets each pair
            continue
        values = {name: value for part in parts for name, value in part.items()}
        text = render(write(tmp_path, values))
        validate(text, tmp_path)
        if "config" in values:
            assert read(text)["ConfigMap"]["data"]["config.toml"].strip() == values["config"]
        kind = "StatefulSet" if "nodes" in values else "Deployment"
        pod = read(text)[kind]["spec"]["template"]["spec"]
        wanted = values["models"]
        assert [each["command"][-1] for each in pod.get("initContainers", ())] == wanted


def test_values_come_out_as_they_were_meant(tmp_path: Path) -> None:
    values = {
        "contextLength": 1048576,
        "startupSeconds": 10000000,
        "extraEnv": [{"name": "A", "value": 1048576}, {"name": "B", "value": True},
                     {"name": "C", "value": "text"}],
        "podLabels": {"app.kubernetes.io/name": "other", "team": "ml"},
        "gpu": {"count": 1, "resource": "amd.com/gpu"},
        "networkPolicy": {"enabled": True, "clientLabels": {"name": "ingress"}},
        "priorityClassName": "1000",
        "resources": {"requests": {"memory": "4e9"}, "limits": {"memory": "1Ei"}},
        "storage": {"size": 8e9},
        "podDisruptionBudget": {"enabled": True, "maxUnavailable": "50%"},
        "enabled": True,
        "global": {},
    }  # fmt: skip
    text = render(write(tmp_path, values))
    validate(text, tmp_path)
    found = read(text)
    template = found["Deployment"]["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    (container,) = pod["containers"]
    assert container["args"][-1] == "1048576"
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert env["VLLAMA_LOAD_TIMEOUT"] == "10000000"
    assert (env["A"], env["B"], env["C"]) == ("1048576", "true", "text")
    assert container["image"] != "vllama:cuda"
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == "50%"
    assert labels["app.kubernetes.io/name"] == "vllama" and labels["team"] == "ml"
    sources = found["NetworkPolicy"]["spec"]["ingress"][0]["from"]
    assert {"namespaceSelector": {"matchLabels": {"name": "ingress"}}} in sources


def test_a_head_is_placed_and_probed_by_itself(tmp_path: Path) -> None:
    place = {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}]}
    values = {
        "nodes": {"count": 2, "keySecret": "between", "head": place},
        "nodeSelector": {"gpu": "yes"},
        "podDisruptionBudget": {"enabled": True},
    }
    text = render(write(tmp_path, values))
    validate(text, tmp_path)
    head, nodes = (read(text)[kind]["spec"]["template"] for kind in ("Deployment", "StatefulSet"))
    assert head["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert head["spec"]["tolerations"] == place["tolerations"]
    assert nodes["spec"]["nodeSelector"] == {"gpu": "yes"}
    probes = (one["spec"]["containers"][0]["startupProbe"]["httpGet"] for one in (head, nodes))
    assert [probe["path"] for probe in probes] == ["/livez", "/readyz"]
    budgets = [
        each["spec"]["selector"]["matchLabels"]
        for each in yaml.safe_load_all(text)
        if each and each["kind"] == "PodDisruptionBudget"
    ]
    pods = [one["metadata"]["labels"] for one in (head, nodes)]
    chosen = [[labels.items() <= pod.items() for pod in pods] for labels in budgets]
    assert chosen == [[True, False], [False, True]]


@pytest.mark.parametrize(
    ("release", "service"), [("vllama", "vllama"), ("my.llm", "my-llm-vllama"), ("2024", None)]
)
def test_names_of_releases(release: str, service: str | None) -> None:
    show = ("--kube-version", "1.34.0", "--show-only", "templates/service.yaml")
    done = helm("template", release, CHART, *show)
    if service is None:
        assert "its name has to begin with a letter; set fullnameOverride" in done.stderr
    else:
        assert read(done.stdout)["Service"]["metadata"]["name"] == service


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"replicas": 2}, "set storage.accessMode to ReadWriteMany"),
        ({"autoscaling": {"enabled": True}}, "set storage.accessMode to ReadWriteMany"),
        ({"replicas": 2, "storage": {"existingClaim": "shared"}}, "set state.enabled to false"),
        (
            {
                "storage": {"existingClaim": "shared"},
                "state": {"enabled": False},
                "autoscaling": {"enabled": True, "minReplicas": 5},
            },
            "autoscaling.minReplicas is above",
        ),
        ({"resources": {"requests": {"memory": "16Gi"}}}, "resources.limits.memory is only 8Gi"),
        ({"resources": {"requests": {"memory": 9e9}}}, "resources.limits.memory is only 8Gi"),
        (
            {"nodes": {"head": {"resources": {"requests": {"memory": "1025Mi"}}}}},
            "nodes.head.resources.limits.memory is only 1Gi",
        ),
        ({"podDisruptionBudget": {"maxUnavailable": "half"}}, "maxUnavailable"),
        ({"nodes": {"count": 2}}, "set nodes.keySecret to its name"),
        (
            {
                "nodes": {"count": 2, "keySecret": "x"},
                "storage": {"existingClaim": "shared"},
                "autoscaling": {"enabled": True},
                "state": {"enabled": False},
            },
            "change nodes.count",
        ),
        ({"modles": ["typo"]}, "modles"),
        ({"gpu": {"counts": 1}}, "counts"),
        ({"gpu": {"count": -1}}, "count"),
        ({"storage": {"size": "lots"}}, "size"),
        ({"models": "smollm2"}, "models"),
        ({"service": {"port": 0}}, "port"),
    ],
)
def test_what_cannot_work_is_refused(
    tmp_path: Path, values: Mapping[str, object], told: str
) -> None:
    done = helm(
        "template", "x", CHART, "--kube-version", "1.34.0", "--values", write(tmp_path, values)
    )
    assert done.returncode
    assert told in done.stderr


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_a_pod_is_confined_and_drained(values: Path, kind: str) -> None:
    objects = read(render(values))
    if kind not in objects:
        assert values.stem != "nodes"
        return
    pod = objects[kind]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsUser"] == USER
    assert pod["enableServiceLinks"] is False
    for each in (container, *pod.get("initContainers", ())):
        assert each["securityContext"]["readOnlyRootFilesystem"]
    environ = {item["name"]: item.get("value", "") for item in container["env"]}
    delay_s, drain_s = (
        int(environ[f"VLLAMA_{name}"]) for name in ("SHUTDOWN_DELAY", "DRAIN_TIMEOUT")
    )
    assert container["readinessProbe"]["periodSeconds"] < delay_s
    assert delay_s + drain_s + STOP_MARGIN_S <= pod["terminationGracePeriodSeconds"]
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > int(environ["VLLAMA_LOAD_TIMEOUT"])
    flags = {word for word in container.get("args", ()) if word.startswith("--")}
    assert flags <= {setting.flag for setting in SETTINGS}
    known = {setting.env for setting in SETTINGS} | OTHER_VARIABLES
    assert set(environ) <= known


def test_parts_name_each_other() -> None:
    objects = read(render(HERE / "values" / "scaled.yaml"))
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for item in (objects["Service"]["spec"]["selector"],
                 objects["Deployment"]["spec"]["selector"]["matchLabels"],
                 objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
                 objects["ServiceMonitor"]["spec"]["selector"]["matchLabels"]):  # fmt: skip
        assert item.items() <= labels.items()
    metric = objects["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert f"as: {metric}" in GUIDE.read_text()


def test_the_guide_pushes_the_image_that_the_chart_pulls(tmp_path: Path) -> None:
    repository = "registry.example/vllama"
    found = read(render(write(tmp_path, {"image": {"repository": repository}})))
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert f"podman push {container['image']}" in GUIDE.read_text()
    assert f"image: {{repository: {repository}, " in GUIDE.read_text()


def test_nodes_are_behind_the_head_and_nothing_else() -> None:
    text = render(HERE / "values" / "nodes.yaml")
    items = {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(text)}
    head = items["Deployment", "here-vllama-head"]["spec"]["template"]
    nodes = items["StatefulSet", "here-vllama-node"]["spec"]
    labels = {"head": head["metadata"]["labels"], "node": nodes["template"]["metadata"]["labels"]}

    def select(selector: dict[str, str]) -> list[str]:
        return [part for part, found in labels.items() if selector.items() <= found.items()]

    service = items["Service", "here-vllama"]
    assert select(service["spec"]["selector"]) == ["head"]
    inner = items["Service", nodes["serviceName"]]
    assert select(inner["spec"]["selector"]) == ["node"]
    policy = items["NetworkPolicy", "here-vllama-node"]["spec"]
    assert select(policy["podSelector"]["matchLabels"]) == ["node"]
    ((source,),) = [each["from"] for each in policy["ingress"]]
    assert select(source["podSelector"]["matchLabels"]) == ["head"]
    watched = items["ServiceMonitor", "here-vllama"]["spec"]["selector"]["matchLabels"]
    assert watched.items() <= service["metadata"]["labels"].items()
    assert not watched.items() <= inner["metadata"]["labels"].items()

    (front,), (server,) = head["spec"]["containers"], nodes["template"]["spec"]["containers"]
    urls = [word for word in front["args"] if word.startswith("http://")]
    assert urls == [
        f"http://{nodes['serviceName']}-{place}.{nodes['serviceName']}:11434"
        for place in range(nodes["replicas"])
    ]
    key = {"name": "node-key", "mountPath": "/etc/vllama-node", "readOnly": True}
    for container in (front, server):
        assert key in container["volumeMounts"]
        assert "/etc/vllama-node/node.key" in container["args"]
    assert "nvidia.com/gpu" in server["resources"]["limits"]
    assert "nvidia.com/gpu" not in front["resources"]["limits"]
    assert "VLLAMA_API_KEY" in {item["name"] for item in front["env"]}
    assert "VLLAMA_API_KEY" not in {item["name"] for item in server["env"]}


def check_config(text: str, folder: Path) -> None:
    """Have vllama read the config file of a rendering. Raises VllamaError."""
    file = folder / "config.toml"
    file.write_text(read(text)["ConfigMap"]["data"]["config.toml"])
    config.load({}, {}, file)


def test_the_recorded_config_file_is_one(tmp_path: Path) -> None:
    check_config(render(HERE / "values" / "configured.yaml"), tmp_path)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_a_server_has_a_key_or_says_that_it_is_open(values: Path) -> None:
    """The image does not start otherwise; a node has the key between it and the head."""
    for item in filter(None, yaml.safe_load_all(render(values))):
        if item["kind"] in ("Deployment", "StatefulSet"):
            (container,) = item["spec"]["template"]["spec"]["containers"]
            names = {one["name"] for one in container["env"]}
            is_node = item["kind"] == "StatefulSet"
            assert len(names & {"VLLAMA_API_KEY", "VLLAMA_OPEN"}) == (0 if is_node else 1)


def test_the_monitor_shows_a_key_of_its_own(tmp_path: Path) -> None:
    monitor = {"enabled": True, "keySecret": "prometheus"}
    for values in ({}, {"apiKey": {"existingSecret": "clients"}}):
        found = read(render(write(tmp_path, {"serviceMonitor": monitor, **values})))
        (endpoint,) = found["ServiceMonitor"]["spec"]["endpoints"]
        assert endpoint["authorization"]["credentials"] == {"name": "prometheus", "key": "api-key"}


def test_a_change_of_the_config_file_replaces_the_pod(tmp_path: Path) -> None:
    checksums = {
        read(render(write(tmp_path, {"config": f"port = {port}\n"})))["Deployment"]["spec"][
            "template"
        ]["metadata"]["annotations"]["checksum/config"]
        for port in (1, 2)
    }
    assert len(checksums) == 2


def test_every_value_is_described() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def check(schema: dict, values: Mapping[str, object], path: str) -> None:
        for name, value in values.items():
            assert schema["properties"][name]["description"], f"{path}{name}"
            if isinstance(value, dict) and "properties" in schema["properties"][name]:
                check(schema["properties"][name], value, f"{path}{name}.")

    check(schema, yaml.safe_load((CHART / "values.yaml").read_text()), "")
