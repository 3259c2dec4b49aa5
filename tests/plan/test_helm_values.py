"""The values of the Helm chart that `vllama plan --helm-values` makes of plans."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from vllama.base.errors import ConfigError
from vllama.plan.helm_values import write_helm_values

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "vllama"
GIB = 1024**3


def report(model: str, pools: dict[str, int], files: int, **more: Any) -> dict[str, Any]:
    return {
        "model": model,
        "platform": "a made-up machine",
        "engine": "llama-server",
        "context_length": 4096,
        "reasons": [f"why {model}: is so"],
        "devices": [{"pool": pool, "takes_bytes": size} for pool, size in pools.items()],
        "files": [{"size_bytes": files}],
        **more,
    }


def read(text: str) -> dict[str, Any]:
    values = yaml.safe_load(text)
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.validate(values, schema)
    return values


@pytest.mark.parametrize(("fit", "memory", "most"), [(True, "4Gi", "5Gi"), (False, "3Gi", "4Gi")])
def test_memory_is_for_the_models_that_are_loaded_at_once(
    fit: bool, memory: str, most: str
) -> None:
    told = [
        report("a:1b", {"ram": GIB}, 200_000_000),
        report("org/b", {"ram": 2 * GIB}, GIB, context_length=8192),
    ]
    text = write_helm_values(told, fit_together=fit)
    values = read(text)
    assert values["models"] == ["a:1b", "org/b"]
    assert values["engine"] == "llama-server"
    assert values["gpu"]["count"] == 0
    assert values["resources"] == {"requests": {"memory": memory}, "limits": {"memory": most}}
    assert values["storage"] == {"size": "3Gi"}
    assert values["startupSeconds"] == 130
    assert tomllib.loads(values["config"])["models"] == {
        "a:1b": {"context": 4096},
        "org/b": {"context": 8192},
    }
    assert "# a:1b: why a:1b: is so\n" in text


def test_gpus_of_the_plans_are_counted_and_files_pass_through_memory() -> None:
    told = [
        report("a", {"gpu0": 9 * GIB, "gpu1": 9 * GIB, "ram": GIB}, 16 * GIB, engine="vllm"),
        report("b", {"gpu0": GIB, "ram": GIB}, GIB),
    ]
    values = read(write_helm_values(told, fit_together=True))
    assert values["gpu"] == {"count": 2}
    assert values["engine"] == ""  # each has its own
    assert values["resources"]["requests"] == {"memory": "19Gi"}


def test_nodes_have_memory_for_the_fullest_of_them() -> None:
    told = [
        report("a", {"gpu0": 9 * GIB, "ram": GIB}, GIB),
        report("b", {"gpu0": 9 * GIB, "ram": 2 * GIB}, GIB),
        report("c", {"gpu0": GIB, "ram": 3 * GIB}, GIB),
    ]
    nodes = (("a", "c"), ("b",), ())
    text = write_helm_values(told, fit_together=True, nodes=nodes, gpus_per_node=4)
    values = read(text)
    assert values["nodes"] == {"count": 3, "keySecret": "vllama-node"}
    assert values["gpu"] == {"count": 4}
    assert values["resources"]["requests"] == {"memory": "6Gi"}  # 1 + 3, files of 1, the server
    assert values["storage"] == {"size": "4Gi"}  # each node may have all files
    assert "# node 1 has room for a, c\n" in text
    assert "# node 3 has room for further copies\n" in text
    apart = read(write_helm_values(told, fit_together=False, nodes=((),) * 3))
    assert apart["resources"]["requests"] == {"memory": "5Gi"}
    assert apart["gpu"] == {"count": 1}


@pytest.mark.parametrize("name", ["/models/x.gguf", "./x"])
def test_a_file_of_this_machine_is_no_model_of_a_cluster(name: str) -> None:
    with pytest.raises(ConfigError, match="it is a file of this machine"):
        write_helm_values([report(name, {"ram": GIB}, GIB)], fit_together=True)
