"""Ollama's store and registry with the real engine, and models as Ollama has them."""

import pytest

from tests.e2e.conftest import COUNTS, ENGINE, find_engine
from tests.e2e.conftest import weights as real_weights
from tests.e2e.counting import WIDTH
from tests.e2e.test_templates_real import CHATML, COUNTED, FOUR, OUT, SYSTEM
from tests.lacking import lacking
from tests.registry import OllamaModel, RealRegistry, find_registry, push, store
from tests.server_process import Server
from tests.tiny import write_tiny_gguf, write_tiny_lora

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HELLO = [{"role": "user", "content": "Say hello."}]


def vision(writer):
    """Add what an encoder inside the model's own file looks like."""
    import numpy as np

    writer.add_tensor("v.patch_embd.weight", np.zeros((4, 4), np.float16))


@pytest.fixture(scope="module")
def weights(counting):
    return counting / f"{COUNTS}.gguf"


@pytest.fixture(scope="module")
def smollm(weights):
    """A model as Ollama's library has it, with a Go template, a system message and stops."""
    about = {"file_type": "F16", "model_type": "26.48M"}
    layers = [
        ("model", weights),
        ("template", CHATML),
        ("system", SYSTEM),
        ("params", {"stop": ["<|im_start|>", "<|im_end|>"]}),
        ("license", "Apache-2.0"),
    ]
    return OllamaModel(layers, about)


@pytest.fixture(scope="module")
def server(smollm, weights, counting, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    models = home / ".ollama" / "models"
    store(models, "registry.ollama.ai/library/smol:135m", smollm)
    lora = write_tiny_lora(home / "lora.gguf", n_embd=WIDTH, tensor=OUT, scale=4.0)
    tuned = OllamaModel([("model", weights), ("adapter", lora), ("template", CHATML)])
    store(models, "registry.ollama.ai/library/tuned:latest", tuned)
    whole = write_tiny_gguf(home / "whole.gguf", extra=vision)
    store(models, "registry.ollama.ai/library/gemma3:4b", OllamaModel([("model", whole)]))
    trained = OllamaModel([("model", real_weights()), ("template", CHATML)])
    store(models, "registry.ollama.ai/library/trained:latest", trained)
    with Server(home, *ENGINE, fake=False, env=find_engine()) as running:
        running.take(counting)
        yield running


def said(server, model, **more):
    body = {"model": model, "messages": HELLO, "stream": False, "options": FOUR, **more}
    status, reply = server.post("/api/chat", body)
    assert status == 200, reply
    return reply


def test_the_model_answers_as_from_any_other_place(server, smollm):
    rows = {row["name"]: row for row in server.get("/api/tags")["models"]}
    row = rows["smol:135m"]
    assert (row["digest"], row["size"]) == (smollm.digest, smollm.size)
    for key in ("quantization_level", "parameter_size"):
        assert row["details"][key] == rows[f"{COUNTS}:latest"]["details"][key]
    from_store, from_folder = said(server, "smol:135m"), said(server, COUNTS)
    assert from_store["message"]["content"] == COUNTED
    assert from_store["message"] == from_folder["message"]
    assert from_store["prompt_eval_count"] == from_folder["prompt_eval_count"]


def test_the_real_model_is_served_from_there(server):
    assert said(server, "trained")["done"]


def test_its_adapter_is_used(server):
    assert said(server, "tuned")["message"]["content"] != COUNTED


def test_a_file_for_ollamas_own_engine_is_refused_with_the_hubs_name(server):
    status, shown = server.post("/api/show", {"model": "gemma3:4b"})
    assert status == 200 and shown["model_info"]["general.architecture"] == "llama"
    body = {"model": "gemma3:4b", "messages": HELLO, "stream": False}
    status, reply = server.post("/api/chat", body)
    assert status == 500
    assert "made for Ollama's own engine" in reply["error"]
    assert "vllama pull hf.co/" in reply["error"]


def test_pulled_from_a_real_registry(server, smollm, weights, tmp_path):
    program = find_registry()
    if program is None:
        lacking("docker-registry is not installed; make test fetches it with apt")
    with RealRegistry(program, tmp_path) as registry:
        push(registry, "library/smollm2:135m", smollm)
        name = f"{registry.host}/library/smollm2:135m"
        lines = server.lines("/api/pull", {"model": name})
    assert lines[-1] == {"status": "success"}
    blob = server.home / ".ollama/models/blobs" / f"sha256-{smollm.layer('model')}"
    assert blob.stat().st_size == weights.stat().st_size
    assert said(server, name)["message"]["content"] == COUNTED
    assert server.request("DELETE", "/api/delete", {"model": name})[0] == 200
    assert blob.exists()  # smol:135m has it too
