"""The metrics that endpoint pickers of Gateway API read, on a port without a key."""

from __future__ import annotations

import threading

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.ports import free_port
from tests.routes.test_ollama_chat import until, user
from tests.server_process import Server

pytestmark = pytest.mark.slow

WAITING, RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"
CACHE = "vllm:kv_cache_usage_perc"
ALWAYS = {WAITING, RUNNING, CACHE}


def read(port: int) -> dict[str, float]:
    """Return the value of each family, which has one row."""
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics")
    assert answer.status_code == 200
    families = list(text_string_to_metric_families(answer.text))
    assert all(len(family.samples) == 1 for family in families), answer.text
    assert len({family.name for family in families}) == len(families)
    return {family.name: family.samples[0].value for family in families}


@pytest.mark.parametrize(
    ("model", "share"),
    [("shows", 0.25), ("hides", 0)],  # the fake engine has metrics for one of these names
)
def test_each_metric_is_there_once_without_a_key(tmp_path, model, share) -> None:
    port = free_port()
    home = Server(
        tmp_path, "--picker-port", str(port), "--api-key", "sesame", "--num-parallel", "1"
    )
    home.model(model, "--token-interval", "0.02")
    key = {"authorization": "Bearer sesame"}
    body = {"model": model, **user("@tokens=5000"), "keep_alive": -1}
    with home as server:
        until(lambda: "listening" in server.output and server.request("GET", "/livez")[0] == 200)
        until(lambda: httpx.get(f"http://127.0.0.1:{port}/x").status_code == 404)
        assert read(port) == dict.fromkeys(ALWAYS, 0)
        assert server.request("GET", "/metrics")[0] == 401
        with httpx.stream("POST", f"{server.url}/api/chat", json=body, headers=key) as stream:
            lines = stream.iter_lines()  # it would end the response if it went away
            next(lines)
            waiting = threading.Thread(target=server.request, args=("POST", "/api/chat", body, key))
            waiting.start()
            until(lambda: read(port)[WAITING] == 1)
            assert read(port)[RUNNING] == 1
            until(lambda: read(port)[CACHE] == share)  # engines are asked once a second
        until(lambda: read(port)[WAITING] == 0)
        for path in ("/", "/api/tags", "/metrics/", "/api/chat"):
            assert httpx.get(f"http://127.0.0.1:{port}{path}").status_code == 404
    waiting.join()
