"""Ollama's and LM Studio's stores, and Ollama's registry, behind a real server."""

import shutil

import pytest

from tests.registry import PARAMS, OllamaModel, StandInRegistry, store
from tests.registry.models import sha256
from tests.routes.test_ollama_chat import user
from tests.server_process import Server
from tests.tiny import write_tiny_gguf

# real processes, one after another: not for every save
pytestmark = pytest.mark.slow

HELD = "registry.ollama.ai/library/held:1b"
TURNS = [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]
TEMPLATE = "{{ if .System }}[{{ .System }}]{{ end }}{{ range .Messages }}<{{ .Content }}>{{ end }}"


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    weights = write_tiny_gguf(tmp_path_factory.mktemp("m") / "m.gguf", n_ctx=4096, seed=3)
    with StandInRegistry() as running:
        model = OllamaModel([("model", weights), ("system", "Be brief."), ("params", PARAMS)])
        running.add("library/pulled:latest", model)
        yield running


@pytest.fixture(scope="module")
def server(registry, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    weights = write_tiny_gguf(home / "tiny.gguf", n_ctx=4096)
    layers = [
        ("model", weights),
        ("template", TEMPLATE),
        ("system", "Be kind."),
        ("params", {"temperature": 0.25, "stop": ["tok5"]}),
        ("messages", TURNS),
        ("license", "MIT"),
    ]
    models = home / ".ollama" / "models"
    store(models, HELD, OllamaModel(layers, {"file_type": "Q4_K_M"}))
    broken = models / "manifests/registry.ollama.ai/library/broken/latest"
    broken.parent.mkdir()
    broken.write_text("{")
    studio = home / ".lmstudio/models/org/Tiny-GGUF/Tiny-Q8_0.gguf"
    studio.parent.mkdir(parents=True)
    shutil.copy(weights, studio)
    with Server(home, env={"VLLAMA_OLLAMA_REGISTRY": registry.url}) as running:
        yield running


def rows(server):
    return {row["name"]: row for row in server.get("/api/tags")["models"]}


def test_all_stores_are_listed(server):
    found = rows(server)
    held = found["held:1b"]
    assert held["store"] == "ollama"
    (manifest,) = (server.home / ".ollama/models/manifests").rglob("1b")
    assert held["digest"] == sha256(manifest)
    assert held["details"]["format"] == "gguf" and held["details"]["family"] == "llama"
    assert held["details"]["quantization_level"] and held["size"] > 200_000
    studio = found["hf.co/org/Tiny-GGUF:Q8_0"]
    assert (studio["store"], studio["details"]["format"]) == ("lmstudio", "gguf")
    assert "broken:latest" not in found


def test_a_model_of_ollamas_is_shown_and_used_in_place(server):
    status, shown = server.post("/api/show", {"model": "held:1b"})
    assert status == 200
    assert (shown["system"], shown["template"], shown["license"]) == ("Be kind.", TEMPLATE, "MIT")
    assert "temperature" in shown["parameters"] and '"tok5"' in shown["parameters"]
    assert shown["messages"] == TURNS
    blob = f"FROM {server.home}/.ollama/models/blobs/sha256-"
    assert blob in shown["modelfile"]
    status, reply = server.post("/api/chat", {"model": "held:1b", **user(), "stream": False})
    assert (status, reply["model"]) == (200, "held:1b")
    assert "tok4" in reply["message"]["content"]
    sent = server.sent("held:1b")
    assert sent["prompt"] == "[Be kind.]<Be kind.><ping><pong><hello>"
    assert (sent["temperature"], sent["stop"]) == (0.25, ["tok5"])
    (running,) = [row for row in server.get("/api/ps")["models"] if row["name"] == "held:1b"]
    assert running["digest"] == rows(server)["held:1b"]["digest"]


def test_it_is_removed_only_when_told(server):
    status, _, body = server.request("DELETE", "/api/delete", {"model": "held:1b"})
    assert status == 400 and b"vllama did not pull it" in body
    assert "held:1b" in rows(server)


def test_pull_use_and_remove(server, registry):
    lines = server.lines("/api/pull", {"model": "pulled"})
    assert lines[0] == {"status": "pulling manifest"}
    assert [line["status"] for line in lines[-3:]] == [
        "verifying sha256 digest",
        "writing manifest",
        "success",
    ]
    digest = registry.models["library/pulled:latest"].layer("model")
    moving = [line for line in lines if line.get("digest") == f"sha256:{digest}"]
    assert moving[-1]["status"] == f"pulling {digest[:12]}"
    assert moving[-1]["completed"] == moving[-1]["total"]
    assert rows(server)["pulled:latest"]["store"] == "ollama"
    status, _ = server.post("/api/chat", {"model": "pulled", **user(), "stream": False})
    assert status == 200
    made = {"model": "mine", "from": "pulled", "system": "Other.", "stream": False}
    assert server.post("/api/create", made) == (200, {"status": "success"})
    assert server.request("DELETE", "/api/delete", {"model": "mine"})[0] == 200
    assert server.request("DELETE", "/api/delete", {"model": "pulled"})[0] == 200
    assert "pulled:latest" not in rows(server)
    assert not [p for p in (server.home / ".ollama/models/blobs").iterdir() if digest in p.name]


def test_what_cannot_be_pulled_is_told_in_ollamas_words(server, registry):
    missing = {"error": "pull model manifest: file does not exist"}
    assert server.lines("/api/pull", {"model": "missing"})[-1] == missing
    status, reply = server.post("/api/pull", {"model": "missing", "stream": False})
    assert (status, reply) == (500, missing)
    plain = {"model": "http://registry.invalid/a/b", "stream": False}
    assert "insecure protocol http" in server.post("/api/pull", plain)[1]["error"]
    status, reply = server.post("/api/pull", {**plain, "insecure": True})
    assert status == 502 and "cannot reach registry.invalid" in reply["error"]
    local = {"model": f"http://{registry.host}/library/pulled", "stream": False}
    assert server.post("/api/pull", local) == (200, {"status": "success"})
