"""Requests that are kept in files, for finding errors."""

import json
import stat
import subprocess

import pytest

from tests.server_process import Server

pytestmark = pytest.mark.slow

ROUTES = {
    "/api/generate": {"model": "plain", "prompt": "secret ' $(x)", "stream": False},
    "/v1/chat/completions": {"model": "plain", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/messages": {
        "model": "plain", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}],
    },
}  # fmt: skip


def test_requests_to_models_are_kept_on_demand(tmp_path):
    with Server(tmp_path, env={"OLLAMA_DEBUG_LOG_REQUESTS": "1"}) as server:
        server.model("plain")
        for path, body in ROUTES.items():
            assert server.post(path, body)[0] == 200
        large = {"model": "plain", "prompt": "x" * 300_000, "stream": False}
        assert server.post("/api/generate", large)[0] in (200, 400)
        assert server.post("/api/generate", {})[0] == 404  # Ollama's answer to a missing model
        assert server.post("/api/show", {"model": "plain"})[0] == 200
        folder = next(tmp_path.rglob("requests"))
        bodies = [json.loads(p.read_bytes()) for p in sorted(folder.glob("*_body.json"))]
        assert bodies == [*ROUTES.values(), large, {}]
        modes = {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
        assert modes == {0o700, 0o600}
        script = min(folder.glob("*_request.sh"))
        again = subprocess.run(["sh", script], capture_output=True, check=True)
        assert json.loads(again.stdout)["done"] is True


def test_nothing_is_kept_otherwise(tmp_path):
    with Server(tmp_path) as server:
        server.model("plain")
        assert server.post("/api/generate", ROUTES["/api/generate"])[0] == 200
    assert not list(tmp_path.rglob("requests"))
