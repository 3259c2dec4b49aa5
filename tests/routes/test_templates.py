"""Go templates, gaps to fill, adapters: prompts that are finished here and sent as they are."""

import hashlib
import json

import pytest

from tests.routes.test_ollama_chat import until, user
from tests.tiny import TEMPLATE, write_tiny_gguf, write_tiny_lora

pytestmark = pytest.mark.slow

CHATML = (
    "{{ if .Tools }}<tools>{{ .Tools }}</tools>{{ end }}{{ range .Messages }}<|{{ .Role }}|>"
    "{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}{{ .Content }}{{ end }}<|assistant|>"
)
FIM = "{{ if .Suffix }}<P>{{ .Prompt }}<S>{{ .Suffix }}<M>{{ else }}<{{ .Prompt }}>{{ end }}"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture
def made(server):
    """Return a function that creates a model; it is deleted in the end."""
    names = []

    def create(name, base="plain", **fields):
        body = {"model": name, "from": base, "stream": False, **fields}
        assert server.post("/api/create", body) == (200, {"status": "success"})
        names.append(name)
        return name

    yield create
    for name in names:
        server.request("DELETE", "/api/delete", {"model": name})


def upload(server, path):
    content = path.read_bytes()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert server.request("POST", f"/api/blobs/{digest}", content)[0] in (200, 201)
    return digest


def test_the_template_of_a_request(server):
    body = {"model": "plain", "prompt": "hello", "stream": False, "options": {"stop": ["x"]}}
    body |= {"template": "{{ .System }}|{{ .Prompt }}|{{ .Response }}", "system": "S"}
    status, reply = server.post("/api/generate", body)
    assert (status, reply["done_reason"]) == (200, "stop")
    assert reply["response"].startswith("tok0 ")
    sent = server.sent("plain")
    assert (sent["prompt"], sent["stop"]) == ("S|hello|", ["x"])
    assert "messages" not in sent
    # the fake engine's tokens are characters
    assert reply["prompt_eval_count"] == len("S|hello|")
    assert reply["context"] == [ord(char) for char in "S|hello|" + reply["response"]]
    # a continued conversation: earlier tokens, then the new turn
    more = body | {"context": reply["context"], "prompt": "more", "system": ""}
    server.post("/api/generate", more)
    assert server.sent("plain")["prompt"] == "S|hello|" + reply["response"] + "|more|"


def test_a_template_that_is_wrong_is_a_400_with_its_line(server):
    body = {"model": "plain", "prompt": "x", "template": "a\n{{ .Prompt"}
    status, reply = server.post("/api/generate", body)
    assert (status, reply["error"][:38]) == (400, "cannot use the template: line 2: unclo")
    # a request that only loads the model does not use it
    assert server.post("/api/generate", body | {"prompt": ""})[1]["done_reason"] == "load"
    body = {"model": "x", "from": "plain", "template": "{% if a %}{% endif %}"}
    status, reply = server.post("/api/create", body)
    assert (status, "Jinja" in reply["error"]) == (400, True)
    # but the one in the model's own file is the model's own
    assert server.post("/api/create", body | {"template": TEMPLATE, "stream": False})[0] == 200
    server.request("DELETE", "/api/delete", {"model": "x"})


def test_the_template_of_a_created_model(server, made):
    made("gone", template=CHATML, system="S")
    shown = server.post("/api/show", {"model": "gone"})[1]
    assert shown["template"] == CHATML
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert f"TEMPLATE {CHATML}" in shown["modelfile"]
    lines = server.lines("/api/chat", {"model": "gone", **user("hi")})
    assert server.sent("gone")["prompt"] == "<|system|>S<|user|>hi<|assistant|>"
    assert "".join(line["message"]["content"] for line in lines).startswith("tok0 tok1 ")
    assert lines[-1]["prompt_eval_count"] == len("<|system|>S<|user|>hi<|assistant|>")
    history = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "thinking": "t"},
            {"role": "user", "content": "c"},
        ]
    }
    server.post("/api/chat", {"model": "gone", **history, "tools": [TOOL], "stream": False})
    assert server.sent("gone")["prompt"] == (
        '<tools>[{"type":"function","function":{"name":"f","description":"","parameters":'
        '{"type":"object","properties":null}}}]</tools>'
        "<|system|>S<|user|>a<|assistant|><think>t</think>b<|user|>c<|assistant|>"
    )
    # the base has its own
    server.post("/api/chat", {"model": "plain", **user("hi"), "stream": False})
    assert "messages" in server.sent("plain")


def test_old_turns_are_cut_from_a_finished_prompt(server, made):
    made("cut", template=CHATML)
    turns = [{"role": "user", "content": f"{n}" * 600} for n in range(9)]
    body = {"model": "cut", "messages": turns, "stream": False}
    for role in ("assistant",) * 4:
        turns.insert(len(turns) // 2, {"role": role, "content": "y" * 600})
    turns.insert(0, {"role": "system", "content": "S"})
    status, headers, data = server.request("POST", "/api/chat", body)
    assert status == 200, data
    assert int(headers["x-vllama-truncated"]) > 0
    prompt = server.sent("cut")["prompt"]
    assert len(prompt) < 4096
    assert prompt.startswith("<|system|>S")
    assert prompt.endswith("8" * 600 + "<|assistant|>")
    status, reply = server.post("/api/chat", body | {"truncate": False})
    assert (status, "prompt exceeds the context" in reply["error"]) == (400, True)


def test_bos_is_not_there_twice(server, made):
    # the tokenizer of the tiny model puts <s> first
    made("bos", template="<s>{{ .Prompt }}")
    server.post("/api/generate", {"model": "bos", "prompt": "x", "stream": False})
    assert server.sent("bos")["prompt"] == "x"


def test_a_gap_by_the_template(server, made):
    made("fim", template=FIM)
    assert "insert" in server.post("/api/show", {"model": "fim"})[1]["capabilities"]
    body = {"model": "fim", "prompt": "a", "suffix": "b", "stream": False}
    assert server.post("/api/generate", body)[1]["done"] is True
    sent = server.sent("fim")
    assert sent["prompt"] == "<P>a<S>b<M>"
    assert "suffix" not in sent
    server.post("/api/generate", body | {"suffix": ""})
    assert server.sent("fim")["prompt"] == "<a>"
    # a request's own template may have the place as well
    server.post("/api/generate", body | {"model": "plain", "template": FIM})
    assert server.sent("plain")["prompt"] == "<P>a<S>b<M>"
    status, reply = server.post("/api/generate", body | {"model": "plain"})
    text = "registry.ollama.ai/library/plain:latest does not support insert"
    assert (status, reply) == (400, {"error": text})


def test_a_gap_by_the_models_tokens(server):
    server.model("gaps")
    tokens = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    write_tiny_gguf(server.models / "gaps.gguf", n_ctx=4096, tokens=tokens)
    assert "insert" in server.post("/api/show", {"model": "gaps"})[1]["capabilities"]
    body = {"model": "gaps", "prompt": "a", "suffix": "b", "stream": False}
    assert server.post("/api/generate", body)[0] == 200
    assert server.sent("gaps")["prompt"] == "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    server.post("/api/generate", {"model": "gaps", "keep_alive": 0})


def test_a_model_without_any_template_is_given_the_prompt(server):
    server.model("bare")
    write_tiny_gguf(server.models / "bare.gguf", n_ctx=4096, template=None)
    body = {"model": "bare", "prompt": "once", "system": "S", "stream": False}
    assert server.post("/api/generate", body)[0] == 200
    assert server.sent("bare")["prompt"] == "once"
    server.post("/api/generate", {"model": "bare", "keep_alive": 0})


@pytest.mark.parametrize("model", ["plain", "counts"])
@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_are_none(server, model, stream):
    server.post("/api/generate", {"model": model})
    before = server.stats(model)["tokens"]
    body = {"model": model, "prompt": "hello", "options": {"num_predict": 0}, "stream": stream}
    _, headers, data = server.request("POST", "/api/generate", body)
    (reply,) = [json.loads(line) for line in data.splitlines()]
    assert ("ndjson" in headers["content-type"]) is stream
    assert (reply["response"], reply["done"], reply["done_reason"]) == ("", True, "length")
    assert reply["eval_count"] == 0
    assert reply["prompt_eval_count"] == len(reply["context"]) > len("hello")
    assert min(reply[name] for name in ("total_duration", "eval_duration", "load_duration")) > 0
    _, reply = server.post("/api/chat", {"model": model, **user(), **body, "stream": False})
    assert (reply["message"]["content"], reply["done_reason"]) == ("", "length")
    assert server.stats(model)["tokens"] == before


@pytest.mark.parametrize("model", ["plain", "counts"])
def test_only_the_prompt_is_shown(server, model):
    server.post("/api/generate", {"model": model})
    before = server.stats(model)["tokens"]
    shown = {"_debug_render_only": True}
    status, reply = server.post("/api/generate", {"model": model, "prompt": "hi", **shown})
    assert status == 200
    assert reply.pop("created_at")
    assert reply == {
        "model": model,
        "response": "",
        "done": False,
        "_debug_info": {"rendered_template": "user: hi\nassistant: "},
    }
    _, reply = server.post("/api/chat", {"model": model, **user("hi"), **shown})
    assert reply["_debug_info"] == {"rendered_template": "user: hi\nassistant: "}
    assert reply["message"] == {"role": "", "content": ""}
    body = {"model": model, "prompt": "hi", "template": "<{{ .Prompt }}>", **shown}
    assert server.post("/api/generate", body)[1]["_debug_info"]["rendered_template"] == "<hi>"
    body = {"model": model, "prompt": "hi", "raw": True, **shown}
    assert server.post("/api/generate", body)[1]["_debug_info"]["rendered_template"] == "hi"
    assert server.stats(model)["tokens"] == before


def test_raw_is_checked_after_the_model(server):
    body = {"model": "no-such", "prompt": "x", "raw": True, "system": "s"}
    assert server.post("/api/generate", body)[0] == 404
    status, reply = server.post("/api/generate", body | {"model": "plain"})
    assert status == 400
    assert reply["error"] == "raw mode does not support template, system, or context"
    body = {"model": "plain", "raw": True, "system": "s", "keep_alive": 0}
    assert server.post("/api/generate", body)[1]["done_reason"] == "unload"


def test_adapters_that_cannot_be_used(server, tmp_path):
    body = {"model": "x", "from": "plain"}
    for path, says in (
        (write_tiny_lora(tmp_path / "a.gguf", n_embd=32), "have a different shape"),
        (write_tiny_lora(tmp_path / "b.gguf", arch="qwen2"), "it requires the architecture qwen2"),
        (write_tiny_gguf(tmp_path / "c.gguf"), "it is not a LoRA adapter"),
    ):
        digest = upload(server, path)
        status, reply = server.post(
            "/api/create", body | {"adapters": {"a": digest}, "stream": False}
        )
        assert status == 400
        assert says in reply["error"]
        (server.home / "data" / "blobs" / digest.replace(":", "-")).unlink()
    status, reply = server.post(
        "/api/create", body | {"adapters": {"a": "sha256:" + "0" * 64}, "stream": False}
    )
    assert (status, reply["error"][:17]) == (404, "blob sha256:00000")


def test_an_engine_that_takes_no_adapter_says_so(server, made, tmp_path):
    digest = upload(server, write_tiny_lora(tmp_path / "a.gguf"))
    made("adapted", adapters={"a.gguf": digest})
    assert "ADAPTER " in server.post("/api/show", {"model": "adapted"})[1]["modelfile"]
    status, reply = server.post("/api/generate", {"model": "adapted", "prompt": "x"})
    assert status >= 400
    assert "it has 1 adapters, and the engine supports none" in reply["error"]
    server.request("DELETE", "/api/delete", {"model": "adapted"})
    # the file was the model's alone
    until(lambda: not (server.home / "data" / "blobs" / digest.replace(":", "-")).exists())


def test_show_with_a_system_message_and_options_of_the_client(server):
    body = {"model": "plain", "system": "other", "options": {"top_k": 3, "stop": ["a"]}}
    _, shown = server.post("/api/show", body)
    assert shown["system"] == "other"
    assert "parameters" not in shown  # which are the Modelfile's own
    assert "SYSTEM other" in shown["modelfile"]
    assert "PARAMETER top_k 3" in shown["modelfile"]
    assert "system" not in server.post("/api/show", {"model": "plain"})[1]


def test_ps_names_what_was_asked_for_last(server, made):
    """Models with the same files share a process."""
    made("twin")
    for name in ("plain", "twin", "plain"):
        assert server.post("/api/chat", {"model": name, **user("hi"), "stream": False})[0] == 200
        names = [row["name"] for row in server.get("/api/ps")["models"]]
        assert f"{name}:latest" in names
        assert len({"plain:latest", "twin:latest"} & set(names)) == 1


THINKING = (
    "{{ range .Messages }}<|{{ .Role }}|>{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}"
    "{{ .Content }}{{ end }}<|assistant|>{{ if and .IsThinkSet .Think }}<think>{{ end }}"
)
HI = [{"role": "user", "content": "hi"}]
ROUTES = [
    ("/api/chat", {"messages": HI}, {"think": False}),
    ("/api/generate", {"prompt": "hi"}, {"think": False}),
    ("/v1/chat/completions", {"messages": HI}, {"reasoning_effort": "none"}),
    ("/v1/responses", {"input": "hi"}, {"reasoning": {"effort": "none"}}),
    ("/v1/messages", {"messages": HI, "max_tokens": 9}, {"thinking": {"type": "disabled"}}),
]


@pytest.mark.parametrize(("route", "asked", "off"), ROUTES, ids=[row[0] for row in ROUTES])
def test_a_model_that_can_think_does_so_on_every_route(server, made, route, asked, off):
    made("thinker", template=THINKING)
    body = {"model": "thinker", "stream": False, **asked}
    assert server.post(route, body)[0] == 200
    assert server.sent("thinker")["prompt"] == "<|user|>hi<|assistant|><think>"
    assert server.post(route, body | off)[0] == 200
    assert server.sent("thinker")["prompt"] == "<|user|>hi<|assistant|>"


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
HELD = [
    ("/api/chat", {"messages": HI, "format": SCHEMA}),
    ("/v1/chat/completions", {"messages": HI, "response_format": AS_SCHEMA}),
]


@pytest.mark.parametrize(("route", "asked"), HELD)
def test_an_answer_that_is_held_to_a_format_begins_after_the_thinking(server, made, route, asked):
    """The grammar holds from the first token of a completion: all of it would be thinking."""
    made("thinker", template=THINKING)
    assert server.post(route, {"model": "thinker", "stream": False, **asked})[0] == 200
    sent = server.sent("thinker")
    assert sent["response_format"] and sent["prompt"].endswith(" </think>")
    off = {"think": False} if route == "/api/chat" else {"reasoning_effort": "none"}
    assert server.post(route, {"model": "thinker", "stream": False, **asked, **off})[0] == 200
    assert "<think>" not in server.sent("thinker")["prompt"]
