"""create, copy, delete and blobs over a real socket, with the official client too."""

import hashlib
import json
import re
import socket
import threading

import ollama
import pytest

from tests.hub import StandInHub
from tests.routes.test_ollama_chat import until, user
from tests.server_process import LIMIT_S, Server
from tests.tiny import TEMPLATE, write_tiny_gguf

pytestmark = pytest.mark.slow

SAID = "{{ range .Messages }}{{ .Content }};{{ end }}"


@pytest.fixture
def client(server):
    made = ollama.Client(host=server.url)
    yield made
    made._client.close()


def names(server):
    return [row["name"] for row in server.get("/api/tags")["models"]]


def blobs(server):
    return sorted(path.name for path in (server.home / "data" / "blobs").glob("*"))


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_the_life_of_a_created_model(server, client):
    server.model("sea")
    server.post("/api/generate", {"model": "sea"})  # one engine, under the name that loaded it
    said = [
        part.status
        for part in client.create(
            "Pirate",
            from_="sea",
            system="You are a pirate.",
            template=SAID,
            license=["A", "B"],
            parameters={"temperature": 0.25, "stop": ["x"], "num_ctx": 1024},
            messages=[{"role": "user", "content": "who?"}, {"role": "assistant", "content": "me"}],
            stream=True,
        )
    ]
    assert said[-2:] == ["writing manifest", "success"]
    assert re.fullmatch(r"using existing layer sha256:[0-9a-f]{64}", said[0])
    rows = {row.model: row for row in client.list().models}
    assert rows["Pirate:latest"].digest != rows["sea:latest"].digest
    assert rows["Pirate:latest"].size == rows["sea:latest"].size
    assert rows["Pirate:latest"].details.format == "gguf"
    _, shown = server.post("/api/show", {"model": "PIRATE"})
    assert shown["system"] == "You are a pirate."
    assert shown["template"] == SAID
    assert shown["license"] == "A\n\nB"
    assert shown["messages"][1] == {"role": "assistant", "content": "me"}
    assert shown["parameters"].splitlines()[-1].split() == ["temperature", "0.25"]
    assert "FROM sea:latest" in shown["modelfile"]
    reply = client.chat("pirate", [{"role": "user", "content": "hello"}])
    assert reply.message.content
    body = server.sent("Pirate")
    assert body["temperature"] == 0.25
    assert body["prompt"] == "You are a pirate.;who?;me;hello;"
    own = [{"role": "system", "content": "no"}, {"role": "user", "content": "hello"}]
    client.chat("pirate", own)
    assert server.sent("Pirate")["prompt"] == "who?;me;no;hello;"
    client.generate("pirate", "hello", system="other")
    assert server.sent("Pirate")["prompt"] == "other;who?;me;hello;"
    client.copy("pirate", "team/second")
    assert "team/second:latest" in names(server)
    client.delete("Pirate:LATEST")
    assert "Pirate:latest" not in names(server)
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat("pirate", [{"role": "user", "content": "hello"}])
    assert caught.value.status_code == 404
    assert client.chat("team/second", [{"role": "user", "content": "x"}]).message.content
    client.delete("team/second")
    assert server.post("/api/generate", {"model": "sea", "keep_alive": 0})[0] == 200


def test_it_is_loaded_under_its_own_name_and_shares_the_engine(server):
    server.model("shared")
    assert server.post("/api/create", {"name": "alias", "from": "shared", "stream": False}) == (
        200,
        {"status": "success"},
    )
    server.post("/api/chat", {"model": "alias", **user(), "stream": False})
    pid = server.engine("alias").pid
    server.post("/api/chat", {"model": "shared", **user(), "stream": False})
    assert server.engine("shared").pid == pid
    assert server.request("DELETE", "/api/delete", {"model": "alias"})[0] == 200
    assert pid in [row["pid"] for row in server.get("/api/ps")["models"]]
    assert server.post("/api/generate", {"model": "shared", "keep_alive": 0})[0] == 200


def test_show_modelfile_makes_the_same_model(server, client):
    from vllama.models.modelfile import parse_modelfile

    client.create("first", from_="plain", system='a\n"b"', parameters={"seed": 3})
    order = parse_modelfile(client.show("first").modelfile)
    assert order.template == TEMPLATE
    client.create(
        "second",
        from_=order.sources[0],
        system=order.system,
        template=order.template,
        parameters=order.parameters,
    )
    first, second = (client.show(name) for name in ("first", "second"))
    assert first.modelfile.splitlines()[3:] == second.modelfile.splitlines()[3:]
    assert first.parameters == second.parameters
    for name in ("first", "second"):
        client.delete(name)


def test_from_an_uploaded_file(server, client, tmp_path):
    path = write_tiny_gguf(tmp_path / "up.gguf", n_ctx=512, seed=3)
    digest = client.create_blob(path)
    assert server.request("HEAD", f"/api/blobs/{digest}")[::2] == (200, b"")
    status, _, data = server.request("POST", f"/api/blobs/{digest}", path.read_bytes())
    assert (status, data) == (200, b"")
    assert client.create("up", files={"up-F16.gguf": digest}).status == "success"
    assert client.show("up").modelinfo["llama.context_length"] == 512
    assert client.chat("up", [{"role": "user", "content": "x"}]).message.content
    client.delete("up")
    assert blobs(server) == []
    until(lambda: "up:latest" not in [row["name"] for row in server.get("/api/ps")["models"]])


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "missing request body"),
        ({"from": "plain"}, 400, "invalid model name"),
        ({"model": "a b", "from": "plain"}, 400, "invalid model name"),
        ({"model": "hf.co/a/b", "from": "plain"}, 400, "invalid model name"),
        ({"model": "x:cloud", "from": "plain"}, 400, "invalid model name"),
        ({"model": "x"}, 400, "neither 'from' or 'files' was specified"),
        ({"model": "x", "files": {}}, 400, "unknown type"),
        ({"model": "x", "from": 3}, 400, "Invalid value for 'from': expected a string"),
        ({"model": "x", "from": "plain", "parameters": {"top_k": "a"}}, 400, 'option "top_k"'),
        ({"model": "x", "from": "plain", "messages": ["a"]}, 400, "Invalid value for 'messages"),
        ({"model": "x", "from": "plain", "license": [3]}, 400, "Invalid value for 'license[0]'"),
        ({"model": "x", "from": "plain", "quantize": "Q"}, 400, 'unsupported quantization "Q"'),
        ({"model": "x", "from": "plain", "adapters": {"a": "sha256:0"}}, 400, "invalid digest"),
        ({"model": "x", "from": "plain", "template": "{{ .A"}, 400, "cannot use the template: li"),
        ({"model": "x", "from": "/etc/passwd"}, 400, "invalid model name"),
        ({"model": "x", "from": "/no/such.gguf"}, 404, "cannot find a model at '/no/such.gguf'"),
        ({"model": "x", "from": "m:cloud"}, 403, "ollama cloud is disabled: remote model is"),
        ({"model": "x", "from": "plain", "remote_host": "h"}, 403, "ollama cloud is disabled"),
        ({"model": "x", "files": {"a.gguf": "sha256:1"}}, 400, "invalid digest format"),
        ({"model": "x", "files": {"a.gguf": 1}}, 400, "Invalid value for 'files[...]'"),
        ({"model": "x", "files": {"a.gguf": "sha256:" + "0" * 64}}, 404, "blob sha256:0000"),
    ],
)  # fmt: skip
def test_what_cannot_be_created_is_a_status(server, body, status, text):
    if isinstance(body, dict):  # a stream tells in a line what comes after its first one
        body = body | {"stream": False}
    got, headers, data = server.request("POST", "/api/create", body)
    assert (got, headers["content-type"][:16]) == (status, "application/json")
    assert json.loads(data)["error"].startswith(text)
    assert "x:latest" not in names(server)


@pytest.mark.parametrize(
    "wrong",
    [
        {"files": {"a.gguf": "sha256:1"}},
        {"draft_files": {"a": "x"}},
        {"parameters": {"top_k": "a"}},
    ],
)
def test_a_wrong_body_is_refused_before_a_stream_begins(server, wrong):
    body = {"model": "x", "files": {"a.gguf": "sha256:" + "0" * 64}} | wrong
    assert server.request("POST", "/api/create", body)[0] == 400


def test_what_has_no_effect_is_told(server):
    lines = server.lines(
        "/api/create",
        {"model": "odd", "from": "plain", "info": {"x": 1}, "parameters": {"numa": True}},
    )  # fmt: skip
    said = [line["status"] for line in lines]
    assert "ignoring info: not supported" in said
    assert "ignoring unknown parameters: numa" in said
    server.request("DELETE", "/api/delete", {"model": "odd"})


def test_what_only_ollama_uses_is_kept_and_shown(server):
    given = {"renderer": "qwen3.5", "parser": "qwen3-coder", "requires": "0.14.0"}
    assert server.lines("/api/create", {"model": "kept", "from": "plain", **given})[-1] == {
        "status": "success"
    }
    assert server.post("/api/copy", {"source": "kept", "destination": "copied"})[0] == 200
    # what is made of it has the same, but for what is said again
    above = {"model": "above", "from": "copied", "parser": "x"}
    assert server.lines("/api/create", above)[-1] == {"status": "success"}
    for name, shown in (("kept", given), ("copied", given), ("above", given | {"parser": "x"})):
        status, reply = server.post("/api/show", {"model": name})
        assert (status, reply | shown) == (200, reply)
        assert f"RENDERER {given['renderer']}" in reply["modelfile"]
        server.request("DELETE", "/api/delete", {"model": name})
    assert "renderer" not in server.post("/api/show", {"model": "plain"})[1]


def test_stops_come_from_the_template_of_the_file(server, tmp_path):
    turns = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    write_tiny_gguf(tmp_path / "turns.gguf", template=turns)
    digest = digest_of((tmp_path / "turns.gguf").read_bytes())
    server.request("POST", f"/api/blobs/{digest}", (tmp_path / "turns.gguf").read_bytes())
    body = {"model": "turns", "files": {"turns.gguf": digest}, "parameters": {"top_k": 3}}
    assert server.lines("/api/create", body)[-1] == {"status": "success"}
    # what is made of the model has them too, but for those that are said again
    server.lines("/api/create", {"model": "above", "from": "turns", "parameters": {"stop": ["x"]}})
    for name, stops in (("turns", ["<|im_start|>", "<|im_end|>"]), ("above", ["x"])):
        shown = server.post("/api/show", {"model": name})[1]["parameters"]
        assert re.findall(r'stop +"(.*)"', shown) == stops
        server.request("DELETE", "/api/delete", {"model": name})


@pytest.mark.parametrize(("variable", "prompt"), [("true", "Go: hi"), ("false", "user: hi\n")])
def test_whose_template_makes_the_prompt(tmp_path, variable, prompt):
    with Server(tmp_path, env={"OLLAMA_GO_TEMPLATE": variable}) as server:
        server.model("plain")
        made = {"model": "mine", "from": "plain", "template": "Go: {{ .Prompt }}", "stream": False}
        assert server.post("/api/create", made)[0] == 200
        body = {"model": "mine", "prompt": "hi", "_debug_render_only": True, "stream": False}
        status, reply = server.post("/api/generate", body)
        assert status == 200
        assert reply["_debug_info"]["rendered_template"].startswith(prompt)


def test_a_draft_model(server, tmp_path):
    small = tmp_path / "small.gguf"
    write_tiny_gguf(small, n_embd=32, n_ctx=512)
    content = small.read_bytes()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert server.request("POST", f"/api/blobs/{digest}", content)[0] in (200, 201)
    body = {
        "model": "drafting", "from": "plain", "draft_files": {"small.gguf": digest},
        "parameters": {"draft_num_predict": 7},
    }  # fmt: skip
    assert server.lines("/api/create", body)[-1] == {"status": "success"}
    shown = server.post("/api/show", {"model": "drafting"})[1]
    assert "DRAFT " in shown["modelfile"] and digest.removeprefix("sha256:") in shown["modelfile"]
    assert "draft_num_predict" in shown["parameters"]
    assert (
        server.post("/api/generate", {"model": "drafting", "prompt": "x", "stream": False})[0]
        == 200
    )
    server.request("DELETE", "/api/delete", {"model": "drafting"})
    assert server.request("HEAD", f"/api/blobs/{digest}")[0] == 404


def test_what_cannot_draft(tmp_path):
    content = b"no model"
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    with Server(tmp_path) as server:  # of its own: what was uploaded stays
        server.model("plain")
        assert server.request("POST", f"/api/blobs/{digest}", content)[0] == 201
        body = {"model": "odd", "from": "plain", "draft_files": {"a.gguf": digest}, "stream": False}
        status, reply = server.post("/api/create", body)
    assert status >= 400 and reply["error"].startswith("cannot use")


def test_a_base_that_cannot_be_pulled(server):
    lines = server.lines("/api/create", {"model": "x", "from": "nothing-here"})
    assert lines[0] == {"status": "pulling manifest"}
    assert "no known repository on the hub" in lines[-1]["error"]
    status, reply = server.post(
        "/api/create", {"model": "x", "from": "nothing-here", "stream": False}
    )
    assert status == 404
    assert "nothing-here" in reply["error"]


def test_a_base_that_is_not_here_is_pulled(tmp_path):
    write_tiny_gguf(tmp_path / "Tiny-Q8_0.gguf")
    with StandInHub() as hub:
        hub.add_repo("test/Tiny-GGUF", {"Tiny-Q8_0.gguf": tmp_path / "Tiny-Q8_0.gguf"})
        with Server(tmp_path / "home", env={"HF_ENDPOINT": hub.url}) as server:
            body = {"model": "mine", "from": "test/tiny-gguf", "system": "s"}
            said = [line["status"] for line in server.lines("/api/create", body)]
            assert said[0] == "pulling manifest"
            assert said.count("success") == 1
            assert said[-1] == "success"
            shown = server.post("/api/show", {"model": "mine"})[1]
            assert "FROM hf.co/test/Tiny-GGUF:Q8_0" in shown["modelfile"]


def test_concurrent_creates_of_one_name(server):
    answers = []

    def work(number):
        body = {"model": "same", "from": "plain", "system": str(number), "stream": False}
        answers.append(server.post("/api/create", body))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [(200, {"status": "success"})] * 8
    assert server.post("/api/show", {"model": "same"})[1]["system"] in {str(n) for n in range(8)}
    assert names(server).count("same:latest") == 1
    server.request("DELETE", "/api/delete", {"model": "same"})


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"source": "nope", "destination": "x"}, 404, 'model "nope" not found'),
        ({"source": "", "destination": "x"}, 400, 'source "" is invalid'),
        ({"source": "a b", "destination": "x"}, 400, 'source "a b" is invalid'),
        ({"source": "plain", "destination": ""}, 400, 'destination "" is invalid'),
        ({"source": "plain"}, 400, 'destination "" is invalid'),
        ({"source": "nope", "destination": ""}, 400, 'destination "" is invalid'),
        ({"source": "/etc/passwd", "destination": "x"}, 400, 'source "/etc/passwd" is invalid'),
        ({"source": "plain", "destination": "a/b/c/d/e"}, 400, 'destination "a/b/c/d/e" is'),
        (b"", 400, "missing request body"),
    ],
)
def test_copies_that_cannot_be(server, body, status, text):
    got, reply = server.post("/api/copy", body)
    assert got == status
    assert reply["error"].startswith(text)


def test_copy_answers_with_nothing(server):
    status, _, data = server.request(
        "POST", "/api/copy", {"source": "PLAIN", "destination": "Other:v1"}
    )
    assert (status, data) == (200, b"")
    assert "Other:v1" in names(server)
    assert server.request("DELETE", "/api/delete", {"name": "other:V1"})[::2] == (200, b"")


# -- blobs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", ["sha256:abc", "nope", f"sha256:{'g' * 64}", f"md5:{'0' * 64}"])
@pytest.mark.parametrize("method", ["HEAD", "POST"])
def test_bad_digests(server, method, digest):
    status, _, data = server.request(method, f"/api/blobs/{digest}", b"abc")
    assert status == 400
    assert method == "HEAD" or json.loads(data) == {"error": "invalid digest format"}


def test_a_blob_that_is_not_what_it_says(server):
    digest = digest_of(b"abc")
    assert server.request("HEAD", f"/api/blobs/{digest}")[0] == 404
    status, _, data = server.request("POST", f"/api/blobs/{digest}", b"abd")
    assert status == 400
    assert json.loads(data)["error"].startswith(f'digest mismatch, expected "{digest}", got "')
    assert server.request("HEAD", f"/api/blobs/{digest}")[0] == 404
    assert server.request("POST", f"/api/blobs/{digest}", b"abc")[0] == 201
    path = server.home / "data" / "blobs" / digest.replace(":", "-")
    assert path.read_bytes() == b"abc"
    path.unlink()


def test_an_upload_that_is_cut_leaves_nothing(server):
    digest = digest_of(b"x" * 3_000_000)
    head = (
        f"POST /api/blobs/{digest} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3000000\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port)) as cut:
        cut.sendall(head.encode() + b"x" * 2_000_000)
        until(lambda: any(name.startswith(".upload") for name in blobs(server)))
    until(lambda: blobs(server) == [])
    assert server.request("HEAD", f"/api/blobs/{digest}")[0] == 404


def test_more_than_the_disk_holds_is_refused_at_once(server):
    head = f"POST /api/blobs/{digest_of(b'')} HTTP/1.1\r\nhost: localhost\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as big:
        big.settimeout(LIMIT_S)
        big.sendall(f"{head}content-length: {10**16}\r\n\r\n".encode())
        # nothing of the body has been sent
        assert b" 507 " in big.recv(65536).splitlines()[0] + b" "
    assert blobs(server) == []


def test_two_uploads_of_one_blob(server):
    content = b"y" * 2_000_000
    answers = []
    work = lambda: answers.append(  # noqa: E731
        server.request("POST", f"/api/blobs/{digest_of(content)}", content)[0]
    )
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) <= {200, 201}
    assert blobs(server) == [digest_of(content).replace(":", "-")]
    (server.home / "data" / "blobs" / blobs(server)[0]).unlink()


def test_openai_clients_get_what_a_created_model_brings(server: Server) -> None:
    base = server.model("brings-base")
    server.post("/api/chat", {"model": base})
    body = {
        "model": "brings",
        "from": base,
        "system": "be brief",
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "stream": False,
    }
    assert server.post("/api/create", body)[0] == 200
    ask = {"model": "brings", "messages": [{"role": "user", "content": "c"}]}
    assert server.post("/v1/chat/completions", ask)[0] == 200
    sent = [message["content"] for message in server.sent("brings")["messages"]]
    assert sent == ["be brief", "a", "b", "c"]
    ask["messages"].insert(0, {"role": "system", "content": "own"})
    assert server.post("/v1/chat/completions", ask)[0] == 200
    sent = [message["content"] for message in server.sent("brings")["messages"]]
    assert sent == ["a", "b", "own", "c"]
