"""The official converter, and llama.cpp loading what it made (`test_release_real` quantizes).

The converter's environment has torch: `make test-engines` makes it, by the same code that `vllama
convert` makes it with.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import engine_at
from tests.hub import StandInHub
from tests.lacking import lacking
from tests.server_process import Server
from vllama.models.convert.tools import FOLDER, find_converter

pytestmark = [pytest.mark.slow, pytest.mark.other_engines, pytest.mark.timeout(900)]

DATA = Path(__file__).parents[2] / ".venv" / "data"


@pytest.fixture(scope="module")
def converter():
    """Return the Python of the converter's environment."""
    found = find_converter(DATA)
    return found.python if found else lacking("there is no converter; run: make test-engines")


@pytest.fixture(scope="module")
def originals(converter, tmp_path_factory):
    """Return a folder of models with safetensors."""
    folder = tmp_path_factory.mktemp("originals")
    maker = Path(__file__).with_name("make_models.py")
    env = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"}
    subprocess.run([converter, maker, folder], env=env, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def home(converter, tmp_path_factory):
    """Return a home whose data folder has the converter.

    It has no engine: one that reads safetensors would leave nothing to convert.
    """
    home = tmp_path_factory.mktemp("home")
    place = home / "data" / FOLDER
    place.parent.mkdir(parents=True)
    place.symlink_to(converter.parents[1])
    return home


@pytest.fixture(scope="module")
def hub(originals):
    with StandInHub() as hub:
        hub.add_repo("Org/Tiny", originals / "shards")
        yield hub


@pytest.fixture(scope="module")
def converted(home, hub, originals):
    """Convert all of them; return what was told."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "VLLAMA_DATA_DIR": str(home / "data"),
        "HF_HOME": str(home / "hf"),
        "HF_ENDPOINT": hub.url,
    }

    def convert(*arguments):
        command = [sys.executable, "-m", "vllama", "convert", *arguments, "--json"]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return {
        "hub": convert("org/tiny", "--quantize", "Q8_0", "--yes"),
        "sees": convert(str(originals / "sees"), "--quantize", "F16"),
    }


@pytest.fixture(scope="module")
def server(home, hub, converted):
    env = {"HF_ENDPOINT": hub.url, "VLLAMA_ENGINE_PATHS": f"llama-server={engine_at()}"}
    with Server(home, "--engine", "llama-server", fake=False, env=env) as running:
        yield running


@pytest.mark.parametrize(
    ("what", "name", "quant"),
    [
        ("hub", "hf.co/Org/Tiny:Q8_0", "Q8_0"),
        ("sees", "sees:latest", "F16"),
    ],
)
def test_llama_cpp_loads_what_was_converted(server, converted, what, name, quant):
    assert (converted[what]["name"], converted[what]["quantization"]) == (name, quant)
    asked = "org/tiny" if what == "hub" else name
    body = {"model": asked, "prompt": "hello", "raw": True, "stream": False}
    status, reply = server.post("/api/generate", {**body, "options": {"num_predict": 4}})
    assert status == 200, reply
    assert reply["done"] and reply["prompt_eval_count"] > 0
    details = server.post("/api/show", {"model": asked})[1]["details"]
    assert (details["family"], details["quantization_level"]) == ("llama", quant)
    assert server.engine(name).pid


@pytest.fixture(scope="module")
def tuned(home, originals):
    """Create a model with an adapter, and one of the merged weights."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "VLLAMA_DATA_DIR": str(home / "data"),
        "VLLAMA_ENGINE_PATHS": f"llama-server={engine_at()}",
    }
    for name, text in (
        ("plain", "FROM ./shards"),
        ("adapted", "FROM ./shards\nADAPTER ./lora"),
        ("merged", "FROM ./merged"),
    ):
        (originals / "Modelfile").write_text(text)
        command = [sys.executable, "-m", "vllama", "create", name, "-f", originals / "Modelfile"]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "converting model\n" in done.stderr


def test_an_adapter_does_what_the_merged_weights_do(tuned, server):
    def ask(name):
        body = {"model": name, "prompt": "hello world", "raw": True, "stream": False}
        more = {"logprobs": True, "top_logprobs": 5, "options": {"num_predict": 1}}
        status, reply = server.post("/api/generate", body | more)
        assert status == 200, reply
        return {one["token"]: one["logprob"] for one in reply["logprobs"][0]["top_logprobs"]}

    plain, adapted, merged = ask("plain"), ask("adapted"), ask("merged")
    assert adapted == pytest.approx(merged, abs=0.02)
    assert adapted.keys() != plain.keys()


def test_its_template_and_tokenizer_came_with_it(server):
    shown = server.post("/api/show", {"model": "sees"})[1]
    assert "assistant: " in shown["template"]
    assert shown["model_info"]["llama.context_length"] == 512
    assert shown["model_info"]["tokenizer.ggml.model"] == "llama"


def test_eyes_become_a_projector(converted):
    projector = Path(converted["sees"]["projector"])
    assert projector.read_bytes()[:4] == b"GGUF"
    assert converted["hub"]["projector"] is None


def test_nothing_else_is_left(home, converted, server):
    for name in ("plain", "adapted", "merged"):
        server.request("DELETE", "/api/delete", {"model": name})
    names = {Path(one[key]).name for one in converted.values() for key in ("path", "projector")
             if one[key]}  # fmt: skip
    assert {path.name for path in (home / "data" / "blobs").iterdir()} == names
