"""Addresses of upstreams: administrators see them, and others the names."""

import json
import re
import subprocess

import pytest

from tests.ports import free_port
from tests.routes.test_ollama_chat import until, user
from tests.scripted import Scripted, list_models
from tests.server_process import Server
from vllama.routes.guards import make_pattern
from vllama.supervise.spec import Endpoint

ADMIN = "a" * 20


@pytest.mark.parametrize(
    ("endpoint", "text", "shown"),
    [
        (
            Endpoint(port=8000),
            "at http://127.0.0.1:8000, 127.0.0.1:8000#m, HTTP://127.0.0.1:8000/v1.",
            "at bee, bee#m, bee/v1.",
        ),
        (Endpoint(port=8000), "http://127.0.0.1:80001 1127.0.0.1:8000", None),
        (
            Endpoint(scheme="https", host="api.x.com", port=443, prefix="/p"),
            "https://api.x.com/p#m https://api.x.com. https://API.x.com:443/p",
            "bee#m bee. bee",
        ),
        (Endpoint(scheme="https", host="x.com", port=443), "https://x.community x.com", None),
        (Endpoint(host="::1", port=80), "http://[::1]:80 http://[::1]/v1", "bee bee/v1"),
    ],
)
def test_an_address_is_found_in_all_its_forms(endpoint, text, shown):
    assert make_pattern(endpoint).sub(b"bee", text.encode()).decode() == (shown or text)


ASKED = {
    "GET": ["/api/ps", "/api/tags", "/v1/models", "/api/engines", "/readyz", "/health", "/metrics",
            "/api/requests", "/api/usage", "/instance/previews?model_id=m"],
    "POST": ["/api/plan", "/api/show", "/api/chat", "/v1/chat/completions", "/v1/messages"],
}  # fmt: skip


def collect(server, url, key):
    """Return all that a server says with `key`, which is asked about the models of an upstream."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    said, served = [], []
    for model in ("m", "bee:m", "chained", "broken", f"{url}#m", f"{url}/v1#m"):
        # a chain that none can answer takes its pauses
        for path in ASKED["POST"] if model != "broken" else ("/api/chat",):
            body = {"model": model, **user(), "stream": False, "max_tokens": 4}
            status, got, data = server.request("POST", path, body, headers)
            echoed = f'"model":"{model}"'  # what the client has said itself
            told = data.decode().replace(echoed, "")
            said.append(f"{path} {status} {dict(got)} {told}")
            served.append(got["x-vllama-served-by"])
    for path in ASKED["GET"]:
        status, got, data = server.request("GET", path, None, headers)
        said.append(f"{path} {status} {dict(got)} {data.decode()}")
    connection = server.connect()
    connection.request("GET", "/api/events", headers=headers)
    answer = connection.getresponse()
    said.append(f"/api/events {answer.read1().decode()}")
    connection.close()
    return said, [each for each in served if each]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with settings, and the addresses of their upstreams."""
    folder, dead = tmp_path_factory.mktemp("addresses"), free_port()
    chat = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
    event = [b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(chat).encode()]
    stream = (200, {"Content-Type": "text/event-stream"}, event)
    routes = {"/v1/models": list_models("m"), "/v1/chat/completions": stream}
    with Scripted(routes) as there:
        (folder / "config.toml").write_text(
            f'[upstreams.bee]\nurl = "{there.url}/v1"\n'
            f'[upstreams.gone]\nurl = "http://127.0.0.1:{dead}"\nmodels = {{ x = "x" }}\n'
            f'[models.chained]\nfallback = ["{there.url}#m"]\n'
            f'[models.broken]\nfallback = ["http://127.0.0.1:{dead}#n", "gone:x"]\n'
        )
        yield folder, there, f"127.0.0.1:{dead}"


@pytest.mark.slow
def test_only_administrators_see_addresses(place):
    folder, there, dead = place
    options = ("--config", str(folder / "config.toml"), "--upstream", there.url, "--api-key", ADMIN)
    secret = re.compile(rf"127\.0\.0\.1:{there.port}|{re.escape(dead)}")
    with Server(folder / "keyed", *options, fake=False) as server:
        command = [server.python, "-m", "vllama", "keys", "add", "reader", "--scope", "infer,read"]
        added = subprocess.run(command, env=server.env, capture_output=True, text=True, check=True)
        key = re.search(r"sk-[\w-]+", added.stdout)[0]
        until(lambda: server.request("GET", "/api/ps", None, {"x-api-key": key})[0] == 200)
        for model in ("m", "chained"):
            server.request("POST", "/api/chat", {"model": model, **user()}, {"x-api-key": ADMIN})
        said, served = collect(server, there.url, key)
        assert not [each for each in said if secret.search(each)]
        assert "bee:m" in served
        assert {"upstream#m", "bee#m"} & set(served)
        for unknown in (None, "sk-wrong"):
            told, _ = collect(server, there.url, unknown)
            assert not [each for each in told if secret.search(each)]
        told, served = collect(server, there.url, ADMIN)
        assert f"{there.url}#m" in served
        with_address = {each.split()[0] for each in told if secret.search(each)}
        assert {"/api/ps", "/api/engines", "/api/plan", "/api/chat"} <= with_address


@pytest.mark.slow
def test_without_keys_clients_of_this_machine_see_them(place):
    folder, there, _ = place
    options = ("--config", str(folder / "config.toml"), "--upstream", there.url)
    with Server(folder / "open", *options, fake=False) as server:
        _, served = collect(server, there.url, None)
        assert f"{there.url}#m" in served
        (row, *_) = server.get("/api/ps")["models"]
        assert there.url in row["engine_version"]
