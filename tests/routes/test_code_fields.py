"""Fields that an engine may run as code reach it only from administrators, with --inspect-code."""

import json
import subprocess
import sys

import pytest

from tests.routes.test_external import Elsewhere
from tests.server_process import Server
from vllama.chat.engine.request_fields import CODE_FIELDS

MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES = {
    "/api/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": "Hi"},
    "/api/embed": {"input": "Hi"},
    "/api/embeddings": {"prompt": "Hi"},
    "/api/tokenize": {"text": "Hi"},
    "/api/detokenize": {"tokens": [1]},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/rerank": {"query": "q", "documents": ["a"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v1/decisions": {"input": "a", "questions": [{"type": "predicate", "instructions": "b"}]},
    "/v1/systemone": {},
    "/v1/audio/speech": {"input": "a", "voice": "b"},
    "/v1/images/generations": {"prompt": "a"},
}
FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits")
XARGS = {"vllm_xargs": {"apply_hooks": "import os"}}


def make_form(**fields):
    parts = "".join(
        f'--B\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
        for name, text in fields.items()
    )
    file = '--B\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n'
    return f"{parts}{file}--B--\r\n".encode(), {"content-type": "multipart/form-data; boundary=B"}


def read_error(path, answer):
    if path.startswith(("/api/", "/v1/systemone")):
        return answer["error"]
    if path.startswith("/v1/messages"):
        assert answer["type"] == "error" and answer["request_id"]
    return answer["error"]["message"]


@pytest.mark.parametrize("path", BODIES)
def test_without_keys_nobody_may(server, path):
    body = {"model": "plain", **BODIES[path], **XARGS}
    status, answer = server.post(path, body)
    assert status == 403 and "'vllm_xargs'" in read_error(path, answer)


@pytest.mark.parametrize("path", FORMS)
def test_without_keys_nobody_may_in_a_form(server, path):
    for name in ("vllm_xargs", "vllm_xargs[apply_hooks]"):
        form, headers = make_form(model="plain", **{name: "x"})
        status, _, data = server.request("POST", path, form, headers)
        assert status == 403 and "'vllm_xargs'" in read_error(path, json.loads(data))


@pytest.mark.parametrize("name", sorted(CODE_FIELDS))
def test_each_field(server, name):
    for path in ("/v1/chat/completions", "/api/chat"):
        body = {"model": "plain", **BODIES[path], name: "x"}
        assert server.post(path, body)[0] == 403


def test_options_of_a_plain_request(server):
    body = {"model": "plain", "messages": MESSAGES, "options": {"vllm_xargs": "x"}}
    assert server.post("/api/chat", body)[0] == 403


def test_addresses_in_tools_reach_no_engine(server):
    tool = {"type": "mcp", "server_label": "x", "server_url": "http://169.254.169.254/"}
    path = "/v1/chat/completions"
    body = {"model": "plain", **BODIES[path], "tools": [tool]}
    status, headers, _ = server.request("POST", path, body)
    assert (status, headers["x-vllama-ignored"]) == (200, "mcp")
    assert "tools" not in server.sent("plain")


def test_what_is_left_out_is_named(server):
    body = {"model": "plain", "messages": MESSAGES, "provider": {"x": 1}, "a\r\nb": 1, "y" * 999: 1}
    for stream in (False, True):
        status, headers, _ = server.request(
            "POST", "/v1/chat/completions", body | {"stream": stream, "min_tokens": 1}
        )
        named = headers["x-vllama-ignored"].split(", ")
        assert (status, named) == (200, ["provider", "a__b", "y" * 80])
        sent = server.sent("plain")
        assert sent["min_tokens"] == 1 and "provider" not in sent
    for path in ("/v1/responses", "/v1/messages"):
        body = {"model": "plain", **BODIES[path], "provider": 1, "metadata": {}}
        status, headers, _ = server.request("POST", path, body)
        assert (status, headers["x-vllama-ignored"]) == (200, "provider")
    status, headers, _ = server.request(
        "POST", "/v1/completions", {"model": "plain", "prompt": "a", "best_of": 2, "provider": 1}
    )
    assert (status, headers["x-vllama-ignored"]) == (200, "best_of, provider")
    for path in ("/v1/embeddings", "/v1/messages/count_tokens"):
        body = {"model": "plain", **BODIES[path], "provider": 1}
        status, headers, _ = server.request("POST", path, body)
        assert (status, headers["x-vllama-ignored"]) == (200, "provider")


@pytest.mark.slow
def test_with_the_flag_an_administrator_may(tmp_path):
    there = Elsewhere("--counts", "messages")
    config = tmp_path / "config.toml"
    config.write_text(f'[upstreams.big]\nurl = "{there.url}"\npass = ["provider"]\n')
    try:
        options = ("--config", str(config), "--inspect-code")
        with Server(tmp_path / "x", *options, fake=False) as server:
            env = server.env | {"OLLAMA_HOST": server.url}
            body = {"model": "org/big", "messages": MESSAGES, **XARGS, "provider": "a", "b": 1}
            assert server.post("/v1/chat/completions", body)[0] == 403  # without keys: nobody
            command = [sys.executable, "-m", "vllama", "keys", "add"]
            keys = {}
            for scope in ("admin", "infer"):
                run = subprocess.run(
                    [*command, scope, "--scope", scope],
                    env=env | {"OLLAMA_API_KEY": keys.get("admin", "")},
                    check=True, capture_output=True, text=True,
                )  # fmt: skip
                keys[scope] = run.stdout.strip()

            def ask(scope, path, body):
                head = {"authorization": f"Bearer {keys[scope]}"}
                return server.request("POST", path, body, head)

            before = len(there.stats()["bodies"])
            for path in ("/v1/chat/completions", "/v1/completions"):
                body = {"model": "org/big", **BODIES[path], **XARGS, "provider": "a", "b": 1}
                assert ask("infer", path, body)[0] == 403
                assert len(there.stats()["bodies"]) == before
                status, headers, _ = ask("admin", path, body)
                assert (status, headers["x-vllama-ignored"]) == (200, "b")
                before += 1
                sent = there.stats()["bodies"][-1]
                assert (sent["vllm_xargs"], sent["provider"]) == (XARGS["vllm_xargs"], "a")
                assert "b" not in sent
            body = {"model": "org/big", **BODIES["/v1/messages"], "b": 1}
            assert ask("infer", "/v1/messages/count_tokens", body)[0] == 200
            assert "b" not in there.stats()["bodies"][-1]
            speech = {"model": "org/big", "input": "a", "voice": "b", "ref": "http://x", **XARGS}
            assert ask("infer", "/v1/audio/speech", speech)[0] == 403
            status, headers, sent = ask("admin", "/v1/audio/speech", speech)
            assert (status, headers["x-vllama-ignored"]) == (200, "ref")
            assert json.loads(sent).keys() == speech.keys() - {"ref"}
    finally:
        there.stop()


def test_the_grammar_of_a_custom_tool_is_named(server):
    form = {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}
    custom = {"name": "patch", "format": form}
    for path, body in (
        ("/v1/responses", {"input": "hi", "tools": [{"type": "custom", **custom}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "tools": [
            {"type": "custom", "custom": {**custom, "format": {"type": "grammar", "grammar": form}}}
        ]}),
    ):  # fmt: skip
        body |= {"model": "plain", "tool_choice": "required"}
        status, headers, _ = server.request("POST", path, body)
        assert (status, headers["x-vllama-ignored"]) == (200, "tools[0].format"), path
