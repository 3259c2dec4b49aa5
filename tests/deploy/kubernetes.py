"""The chart on a real Kubernetes: any cluster that KUBECONFIG names. See `make test-kubernetes`.

Installs a head with two nodes into a namespace of its own, which enforces the `restricted`
standard, and counts what is lost meanwhile: by changes of the settings, a rolling change, scaling,
and the death of a node. Removes the namespace at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

HERE = Path(__file__).parent
CHART = HERE.parents[1] / "deploy" / "helm" / "vllama"
HELM = Path(sys.executable).parent / "helm"
NODES = "statefulset/vllama-node"
LIMIT_S = 300.0


class Cluster:
    """A release of the chart, and the commands that look at it and change it."""

    def __init__(self, image: str, model: str, values: list[str]) -> None:
        self.namespace = f"vllama-test-{secrets.token_hex(3)}"
        repository, _, tag = image.rpartition(":")
        self.image, self.model = image, model
        self.key, self.failed = "", False
        self.given = [
            *(f"--set=image.{one}" for one in (f"repository={repository}", f"tag={tag}")),
            f"--set=models={{{model}}}",
            "--set=nodes.count=2,nodes.keySecret=between,nodes.sharedMachines=true",
            "--set=resources.requests.cpu=300m,resources.requests.memory=512Mi",
            "--set=resources.limits.memory=2Gi,storage.size=2Gi",
            "--set=nodes.head.resources.requests.cpu=100m",
            *values,
        ]

    def kubectl(self, *words: str, given: str = "", check: bool = True) -> str:
        """Return the output of kubectl in the namespace."""
        command = ["kubectl", "--namespace", self.namespace, *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def upgrade(self, *values: str) -> str:
        """Install or upgrade the release with further values; return the error, "" if none."""
        program = str(HELM) if HELM.exists() else shutil.which("helm") or "helm"
        command = [program, "upgrade", "--install", "vllama", str(CHART), "-n", self.namespace]
        done = subprocess.run(
            [*command, *self.given, *values], capture_output=True, text=True, check=False
        )
        return done.stderr if done.returncode else ""

    def roll(self) -> None:
        """Wait until all pods are as they should be."""
        for what in (NODES, "deployment/vllama-head"):
            self.kubectl("rollout", "status", what, f"--timeout={LIMIT_S:g}s")

    def list_pods(self) -> set[str]:
        """Return the identities of all servers."""
        found = json.loads(self.kubectl("get", "pods", "-l", "app.kubernetes.io/name=vllama",
                                        "-o", "json"))["items"]  # fmt: skip
        return {
            pod["metadata"]["uid"]
            for pod in found
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] in ("head", "node")
        }

    def run_in_head(self, *words: str) -> str:
        """Return the output of a command of vllama in the head's pod."""
        env = ["env", f"VLLAMA_CLIENT_KEY={self.key}"] if self.key else []
        return self.kubectl("exec", "deployment/vllama-head", "--", *env, "vllama", *words)

    def read_setting(self, key: str) -> str:
        """Return a setting that the head uses now."""
        script = (
            "import json, sys, urllib.request as web; "
            "head = {'Authorization': 'Bearer ' + sys.argv[1]}; "
            "asked = web.Request('http://127.0.0.1:11434/api/config', headers=head); "
            "rows = json.load(web.urlopen(asked))['settings']; "
            "print(*(row['text'] for row in rows if row['key'] == sys.argv[2]))"
        )
        words = ("exec", "deployment/vllama-head", "--", "python", "-c", script, self.key, key)
        return self.kubectl(*words).strip()

    def count_nodes(self) -> int:
        """Return how many nodes the head can use."""
        rows = json.loads(self.run_in_head("nodes", "--json"))["nodes"]
        return sum(row["state"] == "up" for row in rows)

    def wait_for(self, holds: Callable[[], bool]) -> float:
        """Return how long it took until something holds."""
        begun_s = time.monotonic()
        while not holds():
            if time.monotonic() > begun_s + LIMIT_S:
                raise SystemExit("it took too long")
            time.sleep(1)
        return time.monotonic() - begun_s

    @contextlib.contextmanager
    def load(self, what: str, seconds: int, *, most_lost: int = 0) -> Iterator[None]:
        """Send requests for so long, and report how many were lost."""
        name = f"load-{secrets.token_hex(3)}"
        arguments = ["http://vllama:11434", self.model, str(seconds), "3", self.key]
        values = yaml.safe_load((CHART / "values.yaml").read_text())
        container = {
            "name": "load", "image": self.image, "imagePullPolicy": "IfNotPresent",
            "command": ["python", "/load/load.py", *arguments],
            "securityContext": values["securityContext"],
            "volumeMounts": [{"name": "load", "mountPath": "/load"}],
        }  # fmt: skip
        pod = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never", "containers": [container], "enableServiceLinks": False,
                "securityContext": values["podSecurityContext"],
                "volumes": [{"name": "load", "configMap": {"name": "load"}}],
            },
        }  # fmt: skip
        self.kubectl("apply", "-f", "-", given=json.dumps(pod))
        self.kubectl("wait", f"pod/{name}", "--for=condition=Ready", f"--timeout={LIMIT_S:g}s")
        time.sleep(5)
        yield
        phase = "jsonpath={.status.phase}"
        self.wait_for(lambda: self.kubectl("get", "pod", name, "-o", phase) != "Running")
        counts = json.loads(self.kubectl("logs", name))
        sent = sum(counts.values())
        lost = sent - counts.pop("complete", 0)
        self.report(what, lost <= most_lost and sent > 0, f"lost {lost} of {sent} {counts or ''}")

    def report(self, what: str, holds: bool, text: str) -> None:
        """Print a result."""
        self.failed |= not holds
        print(f"{'ok  ' if holds else 'FAIL'} {what}: {text}", flush=True)


def try_all(cluster: Cluster) -> None:
    """Do everything that an operator does."""
    cluster.kubectl("create", "namespace", cluster.namespace)
    label = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", cluster.namespace, label)
    key = f"--from-literal=node.key=sk-{secrets.token_hex(24)}"
    cluster.kubectl("create", "secret", "generic", "between", key)
    cluster.kubectl("create", "configmap", "load", f"--from-file={HERE / 'load.py'}")

    begun_s = time.monotonic()
    if error := cluster.upgrade():
        raise SystemExit(error)
    cluster.roll()
    cluster.wait_for(lambda: cluster.count_nodes() == 2)
    cluster.report("install", True, f"two nodes after {time.monotonic() - begun_s:.0f} s")

    made = cluster.run_in_head("keys", "add", "alice", "--scope", "admin")
    cluster.key = next(word for word in made.split() if word.startswith("sk-"))
    cluster.report(
        "keys", cluster.count_nodes() == 2, "the head needs its key, and the nodes serve"
    )
    with cluster.load("chat", 10):
        pass

    before = cluster.list_pods()
    with cluster.load("changes of settings, and refused upgrades", 120):
        text = "max_queue = 300"
        error = cluster.upgrade(
            f"--set-string=config={text}", f"--set-string=nodes.head.config={text}"
        )
        cluster.report("a changed config", not error, error or "is accepted")
        took_s = cluster.wait_for(lambda: cluster.read_setting("max_queue") == "300")
        cluster.report("the running head", True, f"uses it after {took_s:.0f} s")
        for what, value in (("setting", "config=max_queue = 'x'"), ("image", "image.tag=none")):
            error = cluster.upgrade(f"--set-string={value}", "--set=upgradeCheck.seconds=20")
            cluster.report(f"a wrong {what}", "pre-upgrade" in error, error.strip()[:100])
        cluster.report("pods", cluster.list_pods() == before, "are those from before")

    with cluster.load("a rolling change of the nodes", 200):
        cluster.kubectl("rollout", "restart", NODES)
        cluster.roll()
    with cluster.load("scaling from 2 to 3 to 1 nodes", 90):
        cluster.kubectl("scale", NODES, "--replicas=3")
        took_s = cluster.wait_for(lambda: cluster.count_nodes() == 3)
        cluster.report("a third node", True, f"is used after {took_s:.0f} s")
        cluster.kubectl("scale", NODES, "--replicas=1")
    cluster.kubectl("scale", NODES, "--replicas=2")
    cluster.wait_for(lambda: cluster.count_nodes() == 2)
    with cluster.load("the death of a node", 60, most_lost=3):
        cluster.kubectl("delete", "pod", "vllama-node-0", "--grace-period=0", "--force")


def main() -> None:
    """Try the chart, and remove what was made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", default="vllama:0.2.0", help="REPOSITORY:TAG")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("values", nargs="*", help="further arguments of helm, after --")
    given = parser.parse_args()
    cluster = Cluster(given.image, given.model, given.values)
    try:
        try_all(cluster)
    finally:
        cluster.kubectl("delete", "namespace", cluster.namespace, "--wait=false", check=False)
    sys.exit(cluster.failed)


if __name__ == "__main__":
    main()
