"""Argument lists as tables: what each engine is started with."""

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tests.facts import INFO, bundle
from vllama.base.errors import BadRequest, ConfigError
from vllama.chat.engine.request import map_role
from vllama.engines.base import Installation, Mode, Settings
from vllama.engines.child_env import build_child_env
from vllama.engines.external import ENGINE as EXTERNAL
from vllama.engines.llamacpp.llama_cpp_python import ENGINE as LLAMA_CPP
from vllama.engines.registry import discover_engines, find_engine
from vllama.engines.vllm.adapter import ENGINE as VLLM
from vllama.models.settings import UpstreamSettings
from vllama.supervise.spec import Endpoint

ENDPOINT = Endpoint(port=4321, api_key="secret")
PYTHON = Installation(engine="e", version="1", python=Path("/env/bin/python"))
PROGRAM = Installation(engine="e", version="1", executable=Path("/env/bin/vllm"))


def flags(argv):
    """Return the options of an argument list as a mapping."""
    return {name: value for name, value in pairwise(argv) if name.startswith("--")}


def launch(engine, installation, **changes):
    values = {"mode": Mode.CHAT, "alias": "m:latest", "context_length": 4096} | changes
    return engine.launch(bundle(), Settings(**values), installation, ENDPOINT, {"PATH": "/bin"})


def test_every_default_that_matters_is_passed():
    got = flags(launch(LLAMA_CPP, PYTHON, threads=3, batch_threads=4, gpu_layers=-1).argv)
    assert got == {
        "--model": "/models/m.gguf",
        "--model_alias": "m:latest",
        "--host": "127.0.0.1",
        "--port": "4321",
        "--n_ctx": "4096",
        "--n_batch": "512",
        "--n_ubatch": "512",
        "--n_gpu_layers": "-1",
        "--n_threads": "3",
        "--n_threads_batch": "4",
        "--embedding": "false",
        "--flash_attn": "true",
        "--logits_all": "false",
        "--use_mmap": "true",
        "--use_mlock": "false",
        "--interrupt_requests": "false",
        "--verbose": "true",
    }


def test_the_key_is_not_for_everybody_to_read():
    spec = launch(LLAMA_CPP, PYTHON)
    assert "secret" not in spec.argv and spec.env["API_KEY"] == "secret"


def test_one_adapter_is_passed():
    made = bundle(adapters=(Path("/models/a.gguf"),))
    settings = Settings(mode=Mode.CHAT, alias="m:latest", context_length=4096)
    argv = LLAMA_CPP.launch(made, settings, PYTHON, ENDPOINT, {}).argv
    assert flags(argv)["--lora_path"] == "/models/a.gguf"
    assert LLAMA_CPP.max_adapters == 1


def test_an_embedding_process_evaluates_its_whole_context_in_one_batch():
    got = flags(launch(LLAMA_CPP, PYTHON, mode=Mode.EMBED).argv)
    assert got["--embedding"] == "true"
    assert got["--n_batch"] == got["--n_ubatch"] == got["--n_ctx"]


def test_it_is_run_by_the_python_that_has_it_and_never_from_the_current_folder():
    assert launch(LLAMA_CPP, PYTHON).argv[:4] == (
        "/env/bin/python",
        "-P",
        "-m",
        "llama_cpp.server",
    )


def test_readiness_does_not_wait_for_the_lock_of_the_model():
    probe = launch(LLAMA_CPP, PYTHON).probe
    assert probe.path == "/health"
    assert probe.ready_statuses == {404}


def test_the_kv_cache_may_be_quantized():
    argv = launch(LLAMA_CPP, PYTHON, kv_cache_type="q8_0").argv
    assert (flags(argv)["--type_k"], flags(argv)["--type_v"]) == ("8", "8")


def test_parallel_requests_where_the_engine_can():
    settings = Settings(mode=Mode.CHAT, alias="m", context_length=512, parallel=4)
    assert VLLM.traits(bundle(), settings).max_concurrency == 4
    assert LLAMA_CPP.traits(bundle(), settings).max_concurrency == 1
    assert flags(launch(VLLM, PROGRAM, parallel=4).argv)["--max-num-seqs"] == "4"


def test_log_probabilities_need_the_logits_of_all_tokens():
    assert flags(launch(LLAMA_CPP, PYTHON, logprobs=True).argv)["--logits_all"] == "true"
    assert LLAMA_CPP.traits(
        bundle(), Settings(mode=Mode.CHAT, alias="m", context_length=256, logprobs=True)
    ).takes_logprobs


def test_only_roles_that_the_engine_takes():
    traits = LLAMA_CPP.traits(bundle(), Settings(mode=Mode.CHAT, alias="m", context_length=512))
    assert map_role("developer", traits) == "system"
    assert map_role("wizard", traits) == "user"
    with pytest.raises(BadRequest, match="use system, user, assistant or tool"):
        map_role("", traits)


def test_variables_that_servers_read_do_not_reach_the_child():
    shell = {
        "HOST": "0.0.0.0",
        "PORT": "1",
        "API_KEY": "x",
        "N_CTX": "1",
        "CONFIG_FILE": "/x",
        "MODEL": "x",
        "PYTHONPATH": "/x",
        "LLAMA_ARG_CTX_SIZE": "1",
        "PATH": "/bin",
        "HOME": "/home/u",
        "CUDA_VISIBLE_DEVICES": "1",
        "LC_ALL": "C.UTF-8",
    }
    assert build_child_env(shell, extra={"A": "b"}) == {
        "PATH": "/bin",
        "HOME": "/home/u",
        "CUDA_VISIBLE_DEVICES": "1",
        "LC_ALL": "C.UTF-8",
        "A": "b",
    }


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ({}, {"GOMP_SPINCOUNT": "1000"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),  # the user's own
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_how_threads_wait_for_each_other(given, passed):
    settings = Settings(mode=Mode.CHAT, alias="m", context_length=256)
    env = LLAMA_CPP.launch(bundle(), settings, PYTHON, ENDPOINT, given).env
    assert {name: env[name] for name in env if name.startswith(("OMP", "GOMP"))} == passed


@pytest.mark.parametrize("name", ["llama_cpp", "LLAMA_CPP", " llama-cpp-python "])
def test_an_engine_has_the_names_that_people_type(name):
    assert find_engine([LLAMA_CPP, VLLM], name) is LLAMA_CPP


def test_discovery_says_why_an_engine_is_missing():
    found = discover_engines()
    for name in found.engines:
        assert (name in found.installations) != (name in found.missing)
    for missing in found.missing.values():
        assert missing.reason
        assert missing.hint


def test_a_vocabulary_without_weights_is_refused():
    from dataclasses import replace

    from tests.facts import CPU

    assert LLAMA_CPP.refuses(CPU, INFO) is None
    assert "no weights" in str(LLAMA_CPP.refuses(CPU, replace(INFO, weights_bytes=0)))


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://h:8000", Endpoint(host="h", port=8000, api_key="k", is_elsewhere=True)),
        ("http://h:8000/v1/", Endpoint(host="h", port=8000, api_key="k", is_elsewhere=True)),
        ("h:1", Endpoint(host="h", port=1, api_key="k", is_elsewhere=True)),
        (
            "https://h/api/v1",
            Endpoint(
                scheme="https", host="h", port=443, prefix="/api", api_key="k", is_elsewhere=True
            ),
        ),
    ],
)
def test_an_upstreams_address(url, endpoint):
    assert EXTERNAL.configure({"upstreams": (UpstreamSettings(url=url, key="k"),)}).endpoints == (
        msgspec.structs.replace(endpoint, is_elsewhere=True),
    )


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:99999"])
def test_what_is_no_address_of_an_upstream(url):
    with pytest.raises(ConfigError, match="cannot use upstream"):
        EXTERNAL.configure({"upstreams": (UpstreamSettings(url=url),)})
