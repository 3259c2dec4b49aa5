"""Routes about models, over a real socket."""

import re

import pytest

pytestmark = pytest.mark.slow


def test_the_root_is_the_probe_of_many_clients(server):
    for method, body in (("GET", b"Ollama is running"), ("HEAD", b"")):
        status, headers, data = server.request(method, "/")
        assert (status, data) == (200, body)
        assert headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize("path", ["/api/version", "/api/tags"])
def test_head_is_answered_too(server, path):
    status, headers, data = server.request("HEAD", path)
    assert (status, data) == (200, b"")
    assert int(headers["content-length"]) > 0


def test_the_version_is_one_of_ollamas(server):
    reply = server.get("/api/version")
    assert re.fullmatch(r"\d+\.\d+\.\d+", reply["version"])
    assert tuple(map(int, reply["version"].split("."))) >= (0, 14, 2)


def test_tags_have_every_field_that_clients_read(server):
    models = server.get("/api/tags")["models"]
    names = [row["name"] for row in models]
    assert "plain:latest" in names
    row = models[names.index("plain:latest")]
    assert row["model"] == row["name"]
    assert re.fullmatch(r"[0-9a-f]{64}", row["digest"])
    assert len({item["digest"] for item in models}) == len(models)
    assert row["size"] > 100_000
    assert row["capabilities"] == ["completion"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+([+-]\d\d:\d\d|Z)", row["modified_at"])
    assert row["details"]["parent_model"] == ""
    for key in ("format", "family", "parameter_size", "quantization_level"):
        assert row["details"][key]
    assert row["details"]["families"] == ["llama"]


@pytest.mark.parametrize("field", ["model", "name"])
def test_show(server, field):
    status, reply = server.post("/api/show", {field: "PLAIN"})
    assert status == 200
    assert reply["model_info"]["general.architecture"] == "llama"
    assert reply["model_info"]["llama.context_length"] == 4096
    assert reply["model_info"]["tokenizer.ggml.tokens"] is None
    assert reply["model_info"]["general.parameter_count"] > 0
    assert "tokenizer.chat_template" not in reply["model_info"]
    assert reply["modelfile"].count("FROM ") >= 1
    assert reply["capabilities"] == ["completion"]
    assert reply["details"]["format"] == "gguf"
    assert "vllama" not in reply  # only asked for


def test_show_tells_the_plan(server):
    told = server.post("/api/show", {"model": "plain", "plan": True})[1]["vllama"]
    assert told["engine"] and told["reasons"] and told["command"]
    assert told["context_length"] > 0 and told["memory"]["total_bytes"] > 0
    assert [file["here"] for file in told["files"]] == [True]
    assert "GiB" in told["platform"] and told["devices"]


def test_show_verbose_has_arrays_and_tensors(server):
    _, reply = server.post("/api/show", {"model": "plain", "verbose": True})
    assert len(reply["model_info"]["tokenizer.ggml.tokens"]) > 100
    assert reply["tensors"][0].keys() == {"name", "type", "shape"}


def test_copilot_sees_the_name_it_asked_for(server):
    import json

    _, _, data = server.request(
        "POST", "/api/show", {"model": "plain"}, {"User-Agent": "GitHubCopilotChat/1.0"}
    )
    assert json.loads(data)["model_info"]["general.basename"] == "plain"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("POST", "/api/show", {"model": "nope"}, 404, "model 'nope:latest' not found"),
        ("POST", "/api/show", {"model": "h:5/l/m"}, 404, "model 'h:5/l/m:latest' not found"),
        ("POST", "/api/show", {}, 400, "model is required"),
        ("POST", "/api/show", b"", 400, "missing request body"),
        ("POST", "/api/chat", {"model": "nope"}, 404, "model 'nope' not found"),
        ("POST", "/api/chat", {}, 400, "model is required"),
        ("POST", "/api/generate", {"model": "nope"}, 404, "model 'nope' not found"),
        ("POST", "/api/generate", {}, 404, "model '' not found"),
        ("POST", "/api/embed", {"model": "nope", "input": "x"}, 404,
         'model "nope" not found, try pulling it first'),
        ("POST", "/api/embed", {"input": "x"}, 404, "model '' not found"),
        ("POST", "/api/embeddings", {"model": "nope", "prompt": "x"}, 404,
         'model "nope" not found, try pulling it first'),
        ("DELETE", "/api/delete", {"model": "nope"}, 404, "model 'nope' not found"),
        ("POST", "/api/chat", b"", 400, "missing request body"),
        ("POST", "/api/chat", {"model": "a b/c/d/e/f"}, 400, "invalid model name"),
    ],
)  # fmt: skip
def test_the_wording_of_errors(server, method, path, body, status, text):
    import json

    got, headers, data = server.request(method, path, body)
    assert got == status
    assert headers["content-type"].startswith("application/json")
    assert json.loads(data)["error"].startswith(text)


def test_a_model_that_is_a_users_own_file_is_not_deleted(server):
    path = server.models / "plain.gguf"
    status, _, data = server.request("DELETE", "/api/delete", {"model": "plain"})
    assert status >= 400
    assert path.exists()
    assert b"error" in data


@pytest.mark.parametrize("name", ["/etc/passwd", "/", "/etc", "//"])
def test_files_that_are_no_models_tell_nothing(server, name):
    status, _, data = server.request("POST", "/api/show", {"model": name})
    assert status in (400, 404, 500)
    assert b"root" not in data
    assert server.request("POST", "/api/pull", {"model": name})[0] == 400


def test_unknown_paths_and_methods(server):
    assert server.request("GET", "/nope")[0] == 404
    assert server.request("GET", "/nope")[2] == b"404 page not found"
    assert server.request("GET", "/api/chat")[0] == 405
    status, headers, _ = server.request("GET", "/api/tags/")
    assert (status, headers["location"]) == (301, "/api/tags")
    assert server.request("POST", "/api/chat/", {})[0] == 307


@pytest.mark.parametrize(
    ("method", "path", "status", "place", "page"),
    [
        ("GET", "/api/tags/", 301, "/api/tags", True),
        ("HEAD", "/api/tags/", 307, "/api/tags", True),
        ("PUT", "/api/tags/", 404, None, True),
        ("POST", "/api/show/", 307, "/api/show", False),
        ("GET", "//api/tags", 307, "/api/tags", True),
        ("POST", "/api/./show", 307, "/api/show", False),
        ("GET", "/x/../api/tags", 307, "/api/tags", True),
    ],
)
def test_paths_are_made_clean(server, method, path, status, place, page):
    got, headers, body = server.request(method, path)
    assert (got, headers["location"]) == (status, place)
    assert ("content-type" in headers) is page
    if method == "GET":
        assert f'<a href="{place}">'.encode() in body


def test_copies_and_deletions_answer_nothing(server):
    for method, path, body in (
        ("POST", "/api/copy", {"source": "plain", "destination": "second"}),
        ("DELETE", "/api/delete", {"model": "second"}),
    ):
        status, headers, data = server.request(method, path, body)
        assert (status, data, headers["content-type"]) == (200, b"", None)


def test_show_has_the_shape_of_ollamas(server):
    reply = server.post("/api/show", {"name": "plain"})[1]
    assert reply["modified_at"].endswith("Z") or reply["modified_at"][-6] in "+-"
    assert "context_length" not in reply["details"] and "license" not in reply
    assert reply["model_info"]["tokenizer.ggml.tokens"] is None
    assert reply["model_info"]["llama.attention.layer_norm_rms_epsilon"] == 1e-05
    names = [tensor["name"] for tensor in reply["tensors"]]
    first = next(n for n, name in enumerate(names) if name.startswith("blk."))
    assert names[:first] == sorted(names[:first]) and names[first:] == sorted(names[first:])
    assert server.post("/api/show", {"model": "no"})[1] == {"error": "model 'no:latest' not found"}


def test_openai_models(server):
    reply = server.get("/v1/models")
    assert reply["object"] == "list"
    row = next(item for item in reply["data"] if item["id"] == "plain:latest")
    assert row == row | {"object": "model", "owned_by": "library", "context_length": 4096}
    assert row["capabilities"] == ["completion"]
    assert server.get("/v1/models/plain")["id"] == "plain"
    status, reply = server.post(
        "/v1/chat/completions", {"model": "nope", "messages": [{"role": "user", "content": "x"}]}
    )
    assert status == 404
    assert reply["error"]["type"] == "not_found_error"


def test_openai_models_tell_their_state(server):
    name = server.model("fleeting")
    row = server.get(f"/v1/models/{name}")
    assert (row["state"], row["context_length"], row["max_model_len"]) == ("not-loaded", 4096, 4096)
    assert "loaded_context_length" not in row
    status, _ = server.post("/api/generate", {"model": name, "options": {"num_ctx": 512}})
    assert status == 200
    row = server.get(f"/v1/models/{name}")
    held = next(
        each["context_length"]
        for each in server.get("/api/ps")["models"]
        if each["name"] == "fleeting:latest"
    )
    assert (row["state"], row["loaded_context_length"], row["max_model_len"]) == (
        "loaded", held, held,
    )  # fmt: skip
    assert server.post("/api/generate", {"model": name, "keep_alive": 0})[0] == 200


@pytest.mark.parametrize(
    "origin",
    ["http://localhost:3000", "https://127.0.0.1", "app://x", "vscode-webview://abc", "tauri://l"],
)
def test_local_pages_may_call(server, origin):
    status, headers, _ = server.request("GET", "/api/tags", headers={"Origin": origin})
    assert (status, headers["access-control-allow-origin"]) == (200, origin)
    assert "x-vllama-ignored" in headers["access-control-expose-headers"]
    names = "content-type, x-new-of-an-sdk,traceparent"
    for asked, granted in ((names, names), ("a\tb: c", None), ("", None)):
        wanted = {"Origin": origin, "Access-Control-Request-Headers": asked}
        _, headers, _ = server.request("OPTIONS", "/api/chat", headers=wanted)
        assert headers["access-control-allow-headers"] == (granted or "Authorization, Content-Type")
    status, headers, _ = server.request("OPTIONS", "/api/chat", headers={"Origin": origin})
    assert status == 204
    assert "POST" in headers["access-control-allow-methods"]
    assert "Authorization" in headers["access-control-allow-headers"]
    # a browser refuses an answer that says it twice
    assert headers.get_all("access-control-allow-origin") == [origin]


def test_other_pages_may_not(server):
    for method in ("GET", "OPTIONS"):
        status, headers, _ = server.request(
            method, "/api/tags", headers={"Origin": "http://evil.com"}
        )
        assert status == 403
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:1", 200), ("127.0.0.1", 200), ("x.localhost", 200), ("[::1]:5", 200),
     ("nas.local", 200), ("10.0.0.3", 200), ("evil.com", 403), ("8.8.8.8", 403)],
)  # fmt: skip
def test_the_host_check_stops_dns_rebinding(server, host, status):
    assert server.request("GET", "/api/version", headers={"Host": host})[0] == status
