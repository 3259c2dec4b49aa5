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

import jsonschema
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


def render(values: Path, *words: str) -> str:
    done = helm(
        "template", "here", CHART, "--kube-version", "1.34.0", "--values", values,
        "--namespace", "models", *words,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(text: str) -> dict[str, dict]:
    """Return the objects by kind; of claims the last one."""
    return {item["kind"]: item for item in yaml.safe_load_all(text) if item}


SCHEMAS = HERE / "schemas"
FOREIGN = {"ServiceMonitor", *(file.stem for file in SCHEMAS.iterdir())}
"""Objects of others, which Kubernetes does not know."""


def validate(text: str, folder: Path) -> None:
    """Check all objects that Kubernetes knows, and those of Gateway API by their schemas."""
    items = [item for item in yaml.safe_load_all(text) if item]
    for item in items:
        if (schema := SCHEMAS / f"{item['kind']}.json").exists():
            jsonschema.validate(item, json.loads(schema.read_text()))
    known = [item for item in items if item["kind"] not in FOREIGN]
    built = folder / "built.yaml"
    built.write_text(yaml.safe_dump_all(known))
    done = subprocess.run(
        [BIN / "kubernetes-validate", "--strict", built], capture_output=True, text=True, check=True
    )
    assert (done.stdout + done.stderr).count("passed") == len(known)


def find(text: str, kind: str, part: str = "") -> dict:
    """Return the only object of a kind with a component."""
    label = "app.kubernetes.io/component"
    (found,) = (
        item
        for item in yaml.safe_load_all(text)
        if item and item["kind"] == kind and item["metadata"]["labels"].get(label, "") == part
    )
    return found


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
        "Deployment", "Service", "PersistentVolumeClaim", "Secret", "ConfigMap",
        "Job",  # before an upgrade
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
    "nodes": [{}, {"nodes": {"count": 2, "keySecret": "between", "tls": {"secret": "pair"}}}],
    "network": [{}, {"ingress": {"enabled": True}, "networkPolicy": {"enabled": True}}],
}


def test_any_combination_of_values_is_valid(tmp_path: Path) -> None:
    for number, parts in enumerate(itertools.product(*CHOICES.values())):
        if number % 5:  # a fifth of them meets each pair
            continue
        values = {name: value for part in parts for name, value in part.items()}
        text = render(write(tmp_path, values))
        validate(text, tmp_path)
        part = "node" if "nodes" in values else ""
        assert find(text, "Secret", part)["stringData"]["config.toml"] == values.get("config", "")
        lists = find(text, "ConfigMap", part)["data"]["models"].splitlines()
        assert lists == values["models"]


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
                "nodes": {
                    "count": 1,
                    "keySecret": "x",
                    "pools": [
                        {"name": "big", "count": 1, "resources": {"requests": {"memory": "9Gi"}}}
                    ],
                }
            },
            "nodes.pools.big.resources.limits.memory is only 8Gi",
        ),
        ({"nodes": {"pools": [{"name": "big", "count": 1, "modles": []}]}}, "modles"),
        (
            {
                "fullnameOverride": "a" * 46,
                "nodes": {"count": 1, "keySecret": "x", "pools": [{"name": "big", "count": 1}]},
            },
            "it has more than 52 characters",
        ),
        (
            {
                "nodes": {"count": 1, "keySecret": "x"},
                "inferencePool": {"enabled": True, "endpointPicker": "picker"},
            },
            "set nodes.count to 0",
        ),
        ({"inferencePool": {"enabled": True}}, "set inferencePool.endpointPicker"),
        ({"engine": "vllm"}, "no image of this chart has it"),
        ({"engine": "mlx-lm"}, "no image of this chart has it"),
        ({"gpu": {"count": 1}, "models": ["a:b", "org/weights"]}, "cannot choose the image"),
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
    urls = [word for word in front["args"] if "://" in word]
    assert urls == [f"dns+http://{nodes['serviceName']}:11434"]
    assert inner["spec"]["clusterIP"] == "None"
    assert not inner["spec"].get("publishNotReadyAddresses")
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
    file.write_text(find(text, "Secret")["stringData"]["config.toml"])
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


NODES = {"count": 2, "keySecret": "between"}


@pytest.mark.parametrize(
    ("values", "replaced"),
    [
        ({"config": "max_queue = 5\n"}, set()),
        ({"models": ["smollm2:135m", "b"]}, set()),
        ({"models": ["b"]}, {"Deployment"}),  # it is loaded at the start
        ({"resources": {"limits": {"memory": "9Gi"}}}, {"Deployment"}),
        ({"nodes": NODES | {"count": 3}}, set()),
        ({"nodes": NODES | {"head": {"config": "max_queue = 5\n"}}}, set()),
        ({"nodes": NODES | {"pools": [{"name": "big", "count": 1}]}}, set()),
        ({"nodes": NODES, "config": "max_queue = 5\n"}, set()),
        ({"nodes": NODES, "engine": "llama-server"}, {"StatefulSet"}),
        ({"nodes": NODES | {"head": {"extraArgs": ["--debug"]}}}, {"Deployment"}),
    ],
    ids=str,
)
def test_what_a_running_server_can_read_replaces_no_pod(
    tmp_path: Path, values: Mapping[str, object], replaced: set[str]
) -> None:
    before, after = (
        render(write(tmp_path, given))
        for given in ({"nodes": NODES} if "nodes" in values else {}, values)
    )
    part = (
        {"Deployment": "head", "StatefulSet": "node"} if "nodes" in values else {"Deployment": ""}
    )
    pods = {
        kind: [find(text, kind, name)["spec"]["template"] for text in (before, after)]
        for kind, name in part.items()
    }
    assert {kind for kind, (old, new) in pods.items() if old != new} == replaced


OWN = {"state": {"enabled": False}}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({}, "Recreate"),
        (OWN, "Recreate"),  # its models are on a volume of one machine
        ({**OWN, "storage": {"accessMode": "ReadWriteMany"}}, None),
        ({**OWN, "storage": {"accessMode": "ReadWriteMany"}, "gpu": {"count": 1}}, "Recreate"),
        ({"nodes": NODES}, "Recreate"),
        ({**OWN, "nodes": NODES}, None),
        ({**OWN, "nodes": NODES, "gpu": {"count": 1}}, None),
        ({**OWN, "nodes": NODES, "replicas": 2, "autoscaling": {"enabled": True}}, None),
    ],
    ids=str,
)
def test_a_new_pod_starts_first_where_it_can(
    tmp_path: Path, values: Mapping[str, object], kind: str | None
) -> None:
    part = "head" if "nodes" in values else ""
    strategy = find(render(write(tmp_path, values)), "Deployment", part)["spec"]["strategy"]
    assert strategy.get("type") == kind
    assert kind or strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_pools_of_nodes(tmp_path: Path) -> None:
    pool = {
        "name": "big", "count": 1, "models": ["Qwen/Qwen3-8B"], "gpu": {"count": 2},
        "nodeSelector": {"gpu": "h100"}, "storage": {"size": "9Gi"}, "config": "max_queue = 5\n",
    }  # fmt: skip
    head = {"config": '[upstreams.other]\nurl = "http://x"\nkey = "secret"\n'}
    values = {"nodes": NODES | {"pools": [pool], "head": head}, "config": "max_queue = 4\n"}
    text = render(write(tmp_path, {**values, "autoscaling": {"enabled": True}}))
    validate(text, tmp_path)
    sets = {part: find(text, "StatefulSet", part)["spec"] for part in ("node", "node-big")}
    pods = {part: found["template"]["spec"] for part, found in sets.items()}
    selector = find(text, "Service", "node")["spec"]["selector"]
    for part, found in sets.items():
        assert selector.items() <= found["template"]["metadata"]["labels"].items()
        assert found["serviceName"] == "here-vllama-node"
        assert found["minReadySeconds"] > 30
        assert found["selector"]["matchLabels"]["app.kubernetes.io/component"] == part
    assert [found.get("replicas") for found in sets.values()] == [None, 1]
    assert find(text, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"] == {
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "here-vllama-node",
    }  # fmt: skip
    images = {part: pod["containers"][0]["image"] for part, pod in pods.items()}
    assert images == {"node": "vllama:0.2.0", "node-big": "vllama:cuda"}
    assert (
        pods["node-big"]["nodeSelector"] == {"gpu": "h100"} and "nodeSelector" not in pods["node"]
    )
    lists = [find(text, "ConfigMap", part)["data"]["models"] for part in sets]
    assert lists == ["smollm2:135m\n", "Qwen/Qwen3-8B\n"]
    configs = [find(text, "Secret", part)["stringData"]["config.toml"] for part in (*sets, "head")]
    assert configs == ["max_queue = 4\n", "max_queue = 5\n", head["config"]]
    check = find(text, "Secret", "check")["stringData"]
    assert [*check.values()] == [configs[2], *configs[:2]]
    (claim,) = sets["node-big"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "9Gi"


def test_traffic_between_head_and_nodes_is_encrypted_where_there_is_a_certificate(
    tmp_path: Path,
) -> None:
    tls = {"secret": "pair", "trust": "ca.crt"}
    monitor = {"serviceMonitor": {"enabled": True}}
    text = render(write(tmp_path, {"nodes": NODES | {"tls": tls}, **monitor}))
    pods = [
        find(text, *what)["spec"]["template"]["spec"]
        for what in (("Deployment", "head"), ("StatefulSet", "node"))
    ]
    envs = [{one["name"]: one.get("value") for one in pod["containers"][0]["env"]} for pod in pods]
    volumes = [next(one for one in pod["volumes"] if one["name"] == "tls") for pod in pods]
    assert "dns+https://here-vllama-node:11434" in pods[0]["containers"][0]["args"]
    assert envs[0]["VLLAMA_NODE_CERTS"] == "/etc/vllama-tls/trusted.crt"
    assert volumes[0]["secret"]["items"] == [{"key": "ca.crt", "path": "trusted.crt"}]  # no key
    assert envs[1]["VLLAMA_TLS_KEY"] == "/etc/vllama-tls/tls.key" and "items" not in volumes[1]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        schemes = [pod["containers"][0][probe]["httpGet"].get("scheme") for pod in pods]
        assert schemes == [None, "HTTPS"]
    (port,) = find(text, "Service", "node")["spec"]["ports"]
    (endpoint,) = find(text, "ServiceMonitor", "node")["spec"]["endpoints"]
    assert port["name"] == endpoint["port"] == endpoint["scheme"] == "https"


@pytest.mark.parametrize(
    ("values", "tag", "engine"),
    [
        ({}, None, "llamacpp"),
        ({"gpu": {"count": 1, "resource": "amd.com/gpu"}}, None, "llamacpp"),
        ({"gpu": {"count": 1}, "models": ["qwen3:8b"]}, "llama-cuda", "llama-server"),
        ({"gpu": {"count": 1}, "models": ["hf.co/a/b-GGUF:Q4_K_M", "a/b:c", "d/e-gguf"]},
         "llama-cuda", "llama-server"),
        ({"gpu": {"count": 1}, "models": ["Qwen/Qwen3-8B"]}, "cuda", "vllm"),
        ({"gpu": {"count": 1}, "models": []}, "cuda", "vllm"),
        ({"gpu": {"count": 1}, "models": ["qwen3:8b", "Qwen/Qwen3-8B"], "engine": "llama-server"},
         "llama-cuda", "llama-server"),
        ({"gpu": {"count": 1}, "models": ["qwen3:8b"], "engine": "vllm"}, "cuda", "vllm"),
    ],
    ids=str,
)  # fmt: skip
def test_the_image_has_the_engine(
    tmp_path: Path, values: Mapping[str, object], tag: str | None, engine: str
) -> None:
    pod = find(render(write(tmp_path, values)), "Deployment")["spec"]["template"]["spec"]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert pod["containers"][0]["image"] == f"vllama:{tag or version}"
    file = CHART.parents[1] / ("Containerfile" + (f".{tag}" if tag else ""))
    (step,) = (line for line in file.read_text().splitlines() if line.startswith("RUN ")
               and "--version" in line)  # fmt: skip
    assert engine in step  # which is started when the image is built


def test_an_upgrade_is_checked_by_the_new_image_with_the_new_settings(tmp_path: Path) -> None:
    values = {"image": {"tag": "new"}, "config": "max_queue = 5\n", "nodeSelector": {"a": "b"}}
    text = render(write(tmp_path, {**values, "configSecret": ""}))
    hooks = [find(text, kind, "check") for kind in ("Secret", "Job")]
    assert {one["metadata"]["annotations"]["helm.sh/hook"] for one in hooks} == {"pre-upgrade"}
    pod = hooks[1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (container["image"], container["command"]) == ("vllama:new", ["vllama", "config"])
    (mount,) = (one for one in container["volumeMounts"] if "subPath" in one)
    assert hooks[0]["stringData"][mount["subPath"]] == "max_queue = 5\n"
    assert {"name": "VLLAMA_CONFIG", "value": mount["mountPath"]} in container["env"]
    off = render(write(tmp_path, {"upgradeCheck": {"enabled": False}}))
    assert "Job" not in read(off)


def test_contexts_can_be_left_to_the_cluster(tmp_path: Path) -> None:
    users = [f"podSecurityContext.{one}=null" for one in ("runAsUser", "runAsGroup", "fsGroup")]
    text = render(write(tmp_path, {}), "--set", ",".join(users))
    context = find(text, "Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert context["runAsNonRoot"] and not {"runAsUser", "runAsGroup", "fsGroup"} & set(context)
    assert ",".join(users) in (CHART / "values.yaml").read_text()


def test_own_volumes_annotations_and_machines(tmp_path: Path) -> None:
    mount = {"name": "corp", "mountPath": "/etc/corp"}
    values = {
        "extraVolumes": [{"name": "corp", "configMap": {"name": "corp"}}],
        "extraVolumeMounts": [mount],
        "service": {"annotations": {"cloud": "internal"}},
        "nodes": NODES | {"sharedMachines": True, "volumesWhenScaled": "Delete"},
        "listen": "::",
    }
    text = render(write(tmp_path, values))
    validate(text, tmp_path)
    node = find(text, "StatefulSet", "node")["spec"]
    pod = node["template"]["spec"]
    assert "affinity" not in pod
    assert node["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Delete"
    assert all(mount in one["volumeMounts"] for one in (*pod["initContainers"], *pod["containers"]))
    assert find(text, "Service", "head")["metadata"]["annotations"] == {"cloud": "internal"}
    assert {"name": "VLLAMA_HOST", "value": "::"} in pod["containers"][0]["env"]


def test_gateways_and_pools_of_replicas(tmp_path: Path) -> None:
    values = {
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "edge"}],
            "hostnames": ["a.example"],
        },
        "service": {"port": 80},
    }
    text = render(write(tmp_path, values))
    validate(text, tmp_path)
    (rule,) = find(text, "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "here-vllama", "port": 80}]
    values["inferencePool"] = {"enabled": True, "endpointPicker": "picker", "metricsPort": 9500}
    text = render(write(tmp_path, values))
    validate(text, tmp_path)
    (rule,) = find(text, "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"][0]["kind"] == "InferencePool"
    template = find(text, "Deployment")["spec"]["template"]
    pool = find(text, "InferencePool")["spec"]
    assert pool["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    assert pool["targetPorts"] == [{"number": container["ports"][0]["containerPort"]}]
    assert container["ports"][1]["containerPort"] == 9500
    assert {"name": "VLLAMA_PICKER_PORT", "value": "9500"} in container["env"]


def test_a_server_that_hangs_is_back_in_45_seconds() -> None:
    text = render(HERE / "values" / "default.yaml")
    (container,) = find(text, "Deployment")["spec"]["template"]["spec"]["containers"]
    probe = container["livenessProbe"]
    failures = probe.get("failureThreshold", 3)
    found_s = probe["periodSeconds"] * failures + probe["timeoutSeconds"]
    assert found_s + probe["terminationGracePeriodSeconds"] <= 25  # the rest is for the start


def test_every_value_is_described() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def check(schema: dict, values: Mapping[str, object], path: str) -> None:
        for name, value in values.items():
            assert schema["properties"][name]["description"], f"{path}{name}"
            if isinstance(value, dict) and "properties" in schema["properties"][name]:
                check(schema["properties"][name], value, f"{path}{name}.")

    check(schema, yaml.safe_load((CHART / "values.yaml").read_text()), "")
