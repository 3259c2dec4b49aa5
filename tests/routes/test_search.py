"""`GET /api/search`: Ollama's names are known here, the hub is asked where that is allowed."""

import pytest

from tests.server_process import Server


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
