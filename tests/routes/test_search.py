"""`GET /api/search`: Ollama's names are known here, the hub is asked where that is allowed."""

import pytest

from tests.hub import StandInHub
from tests.server_process import Server
from tests.tiny import write_tiny_gguf

pytestmark = pytest.mark.slow  # servers as processes of their own


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "offline"),
        (
            {"VLLAMA_ALLOW_REGISTRY": "registry.example.com"},
            "may be pulled from registry.example.com only",
        ),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "127.0.0.1:9"),
    ],
)
def test_a_hub_that_cannot_be_asked(tmp_path, env, problem):
    with Server(tmp_path, env=env) as server:
        found = server.get("/api/search?q=Llama3.2")
        assert found["hub"] == []
        assert problem in found["problem"]
        assert found["library"] and all("llama3.2" in name for name in found["library"])
        assert server.get("/api/search?q=no-such-thing")["library"] == []
        assert server.request("GET", "/api/search?q=llama")[0] == 200


def test_names_with_a_tag_and_the_family_that_was_meant_first(tmp_path):
    with Server(tmp_path, env={"HF_HUB_OFFLINE": "1"}) as server:
        assert server.get("/api/search?q=qwen3:0.6")["library"] == ["qwen3:0.6b"]
        assert server.get("/api/search?q=qwen3")["library"][0].startswith("qwen3:")


def test_private_repositories_are_not_named(tmp_path):
    with StandInHub() as hub:
        for name in ("open", "secret"):
            (tmp_path / name).mkdir()
            write_tiny_gguf(tmp_path / name / f"{name}.gguf")
            hub.add_repo(f"org/{name}-finds", tmp_path / name)
        hub.tokens["of-the-server"] = {"org/secret-finds"}
        env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "of-the-server"}
        with Server(tmp_path / "home", env=env) as server:
            found = server.get("/api/search?q=finds")["hub"]
            assert sorted(found) == ["org/open-finds", "org/secret-finds"]
            hub.repos["org/secret-finds"].private = True
            assert server.get("/api/search?q=-finds")["hub"] == ["org/open-finds"]
