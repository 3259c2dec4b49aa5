"""create with `quantize`, and of uploaded safetensors; the tools are stand-ins."""

import json
import os

import pytest

from tests.models.convert.conftest import local
from tests.models.convert.test_adapter import write
from tests.models.convert.tools import Tools, write_quantizer
from tests.routes.test_create import blobs, client, digest_of, names
from tests.server_process import Server
from tests.tiny import write_tiny_gguf

__all__ = ["client"]
pytestmark = pytest.mark.slow


def with_quantizer(home):
    """Return the variables of a server that finds a quantizer on PATH."""
    folder = write_quantizer(home / "bin").parent
    return {"PATH": os.pathsep.join([str(folder), os.environ["PATH"]])}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a server of our own: the others' look for what is left behind."""
    home = tmp_path_factory.mktemp("quantize")
    with Server(home, env=with_quantizer(home)) as running:
        yield running


def test_a_large_model_is_made_smaller(server, client):
    server.model("sea")
    lines = server.lines("/api/create", {"model": "small", "from": "sea", "quantize": "q4_K_M"})
    said = list(dict.fromkeys(line["status"] for line in lines))
    assert said[:2] == ["quantizing F16 model to Q4_K_M", "verifying conversion"]
    assert said[2].startswith("creating new layer sha256:")
    assert said[-2:] == ["writing manifest", "success"]
    moving = [line for line in lines if "quantizing" in line["status"]]
    assert {line["digest"] for line in moving} == {"0000000000000000000"}
    assert moving[-1]["completed"] == moving[-1]["total"] > 0
    assert client.show("small").details.quantization_level == "Q4_K_M"
    assert client.show("sea").details.quantization_level == "F16"
    assert client.chat("small", [{"role": "user", "content": "x"}]).message.content
    answer = server.post("/api/create", {"model": "x", "from": "small", "quantize": "Q8_0"})
    assert answer == (400, {"error": "quantization is only supported for F16, BF16 and F32 models"})
    body = {"model": "same", "from": "small", "quantize": "Q4_K_M", "stream": False}
    assert server.post("/api/create", body) == (200, {"status": "success"})
    for name in ("small", "same"):
        client.delete(name)
    assert blobs(server) == []


def test_an_upload_is_quantized_without_a_stream(server, client, tmp_path):
    path = write_tiny_gguf(tmp_path / "up.gguf", seed=9)
    digest = client.create_blob(path)
    body = {"model": "up", "files": {"up.gguf": digest}, "quantize": "Q8_0", "stream": False}
    assert server.post("/api/create", body) == (200, {"status": "success"})
    assert client.show("up").details.quantization_level == "Q8_0"
    client.delete("up")


@pytest.fixture(scope="module")
def converting(tmp_path_factory):
    """Return a server that has a converter (a stand-in), and what makes its models."""
    home = tmp_path_factory.mktemp("converting")
    tiny = write_tiny_gguf(home / "tiny.gguf")
    tools = Tools(home / "data", tiny)
    with Server(home, env=with_quantizer(home)) as running:
        yield running, tools


def upload(server, folder):
    files = {}
    for path in folder.iterdir():
        files[path.name] = digest_of(path.read_bytes())
        server.request("POST", f"/api/blobs/{files[path.name]}", path.read_bytes())
    return files


@pytest.mark.parametrize(("quantize", "has"), [(None, "F16"), ("Q4_K_M", "Q4_K_M")])
def test_uploaded_safetensors(converting, tmp_path, quantize, has):
    server, tools = converting
    body = {"model": "mine", "files": upload(server, local(tmp_path / "m")), "quantize": quantize}
    lines = server.lines("/api/create", body)
    said = [line.get("status") for line in lines]
    assert said[0] == "converting model"
    assert said[-1] == "success", lines
    assert server.post("/api/show", {"model": "mine"})[1]["details"]["quantization_level"] == has
    assert "code.py" not in tools.calls()[-1][1]
    assert server.request("DELETE", "/api/delete", {"model": "mine"})[0] == 200


def test_uploads_that_cannot_be_converted(converting, tmp_path):
    server, _ = converting
    fine = upload(server, local(tmp_path / "m"))
    body = {"model": "x", "files": {**fine, "../x.json": fine["config.json"]}}
    assert server.post("/api/create", body)[1]["error"] == "file path must be relative"
    del fine["tokenizer.json"]
    status, reply = server.post("/api/create", {"model": "x", "files": fine})
    assert (status, "no tokenizer" in reply["error"]) == (400, True)
    bad = upload(server, local(tmp_path / "bad", model_type="fails"))
    lines = server.lines("/api/create", {"model": "x", "files": bad})
    assert "Model FooForCausalLM is not supported" in lines[-1]["error"]
    assert "x:latest" not in names(server)


def test_a_folder_where_engines_read_gguf(converting, tmp_path):
    server, _ = converting
    body = {"model": "folder", "from": str(local(tmp_path / "m"))}
    said = [line.get("status") for line in server.lines("/api/create", body)]
    assert (said[0], said[-1]) == ("converting model", "success")
    details = server.post("/api/show", {"model": "folder"})[1]["details"]
    assert (details["format"], details["quantization_level"]) == ("gguf", "F16")
    assert server.request("DELETE", "/api/delete", {"model": "folder"})[0] == 200


def test_an_uploaded_adapter_of_peft(server, tmp_path):
    server.model("sea")
    adapters = upload(server, write(tmp_path / "lora")["adapter_config.json"].parent)
    body = {"model": "tuned", "from": "sea", "adapters": adapters, "stream": False}
    assert server.post("/api/create", body) == (200, {"status": "success"})
    shown = server.post("/api/show", {"model": "tuned"})[1]["modelfile"]
    assert "\nADAPTER " in shown
    del adapters["adapter_config.json"]
    status, reply = server.post("/api/create", body)
    assert status == 400
    assert "'adapter_model.safetensors': it has no adapter_config.json" in reply["error"]
    assert server.request("DELETE", "/api/delete", {"model": "tuned"})[0] == 200


def test_without_a_converter(server, tmp_path):
    files = upload(server, local(tmp_path / "m"))
    status, _, data = server.request("POST", "/api/create", {"model": "x", "files": files})
    assert status == 500
    assert "converter is not installed" in json.loads(data)["error"]
    assert "vllama convert" in json.loads(data)["error"]
    folder = local(tmp_path / "f")
    status, reply = server.post("/api/create", {"model": "x", "from": str(folder)})
    assert (status, f"vllama convert {folder} -q F16" in reply["error"]) == (500, True)


def test_a_draft_model_is_quantized(server, client, tmp_path):
    server.model("sea")
    digest = client.create_blob(write_tiny_gguf(tmp_path / "draft.gguf", n_embd=32))
    body = {"model": "drafts", "from": "sea", "draft_files": {"draft.gguf": digest}}
    lines = server.lines("/api/create", body | {"draft_quantize": "q4_k_m"})
    said = [line["status"] for line in lines]
    assert "quantizing F16 model to Q4_K_M" in said and said[-1] == "success"
    shown = server.post("/api/show", {"model": "drafts"})[1]["modelfile"]
    assert "DRAFT " in shown and digest.removeprefix("sha256:") not in shown
    assert client.show("drafts").details.quantization_level == "F16"
    status, reply = server.post("/api/create", body | {"draft_quantize": "x", "stream": False})
    assert status == 400 and reply["error"].startswith('unsupported quantization "x"')
    client.delete("drafts")


def test_a_path_is_the_file_there_and_no_model_made_of_it(server, tmp_path):
    path = str(write_tiny_gguf(tmp_path / "own.gguf", seed=11))
    body = {"model": "terse", "from": path, "system": "Say little.", "stream": False}
    assert server.post("/api/create", body) == (200, {"status": "success"})
    assert server.post("/api/show", {"model": "terse"})[1]["system"] == "Say little."
    assert "system" not in server.post("/api/show", {"model": path})[1]
