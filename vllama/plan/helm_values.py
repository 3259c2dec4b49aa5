"""The values of the Helm chart for a node like this machine, made from reports of plans. Pure.

Each value stands below its reason. `deploy/helm/vllama/values.yaml` says what they mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vllama.base.errors import ConfigError
from vllama.base.units import format_bytes_binary as in_memory
from vllama.models.names.ref import Kind, ModelRef
from vllama.plan.fit import GIB

SERVER_BYTES = GIB  # vllama, and what the kernel counts for a container beside its processes
READ_RATE = 100_000_000  # bytes per second, of a volume in the network
START_S = 120  # for what an engine does beside reading


Nodes = Sequence[Sequence[str]]
"""The models that each node of a cluster holds."""


def write_helm_values(
    reports: Sequence[Mapping[str, Any]],
    *,
    fit_together: bool,
    nodes: Nodes = (),
    gpus_per_node: int | None = None,
) -> str:
    """Return a values file in YAML for models that can be planned.

    With `nodes` it is for several machines behind one address; `fit_together` then holds for each
    of them, and `gpus_per_node` is what they have, None: as many as the plans use.
    Raises ConfigError for a model that is a file, because a pod has to download it.
    """
    for report in reports:
        if ModelRef.parse(report["model"]).kind is Kind.PATH:
            raise ConfigError(
                f"cannot write values for '{report['model']}': it is a file of this machine",
                hint="name a model that can be downloaded",
            )
    needs = [
        sum(row["takes_bytes"] for row in report["devices"] if row["pool"] == "ram")
        for report in reports
    ]
    used = {row["pool"] for report in reports for row in report["devices"]} - {"ram"}
    files = [sum(file["size_bytes"] for file in report["files"]) for report in reports]
    engines = sorted({report["engine"] for report in reports})
    # what goes to a GPU is read through the machine's memory
    passing = max(files) if used else 0
    gpus = len(used) if gpus_per_node is None else gpus_per_node
    need_of = {report["model"]: need for report, need in zip(reports, needs, strict=True)}
    fullest = max((sum(map(need_of.__getitem__, node)) for node in nodes), default=sum(needs))
    models = fullest if fit_together else max(needs)
    memory = models + passing + SERVER_BYTES
    lines = [f"# Planned on {reports[0]['platform']}"]
    for report in reports:
        lines += [f"# {report['model']}: {reason}" for reason in report["reasons"]]
    lines += [f"models: {json.dumps([report['model'] for report in reports])}"]
    if len(engines) > 1:
        lines += [f"# several are planned: {', '.join(engines)}"]
    lines += [f"engine: {json.dumps(engines[0] if len(engines) == 1 else '')}"]
    lines += ["# the planned contexts, in tokens", "config: |"]
    for report in reports:
        lines += [f"  [models.{json.dumps(report['model'])}]"]
        lines += [f"  context = {report['context_length']}"]
    all_models = "the models of the fullest node" if nodes else "all models"
    why = all_models if fit_together else "the largest model, since they take turns"
    files_pass = f", {in_memory(passing)} while files are read" if used else ""
    lines += [
        "gpu:",
        "  # the devices of the plans" if gpus_per_node is None else "  # those of each node",
        f"  count: {gpus}",
        "resources:",
        f"  # {in_memory(models)} for {why}{files_pass}, {in_memory(SERVER_BYTES)} for the server",
        f"  requests: {{memory: {count_gib(memory)}Gi}}",
        "  # a quarter more, since engines take memory as requests come",
        f"  limits: {{memory: {count_gib(memory * 5 // 4)}Gi}}",
        "storage:",
        f"  # {in_memory(sum(files))} of files, and room to replace the largest one",
        f"  size: {count_gib(sum(files) + max(files))}Gi",
        f"# {START_S} s, and the largest model read at {READ_RATE // 1_000_000} MB/s",
        f"startupSeconds: {START_S + max(files) // READ_RATE}",
    ]
    if nodes:
        lines += ["nodes:"]
        lines += [f"  # {line}" for line in describe_nodes(nodes) if fit_together]
        lines += [
            f"  count: {len(nodes)}",
            "  # vllama nodes key > node.key; kubectl create secret generic vllama-node "
            "--from-file=node.key",
            "  keySecret: vllama-node",
        ]
    return "\n".join(lines)


def describe_nodes(nodes: Nodes) -> list[str]:
    """Return a sentence for each node."""
    return [
        f"node {number} has room for {', '.join(names) or 'further copies'}"
        for number, names in enumerate(nodes, 1)
    ]


def count_gib(size_bytes: int) -> int:
    """Return the least whole number of GiB that holds `size_bytes`."""
    return -(-size_bytes // GIB)
