"""The main job for real, with the clients that people use."""

import json
import signal
import threading

import ollama
import openai
import psutil
import pytest

from tests.e2e.conftest import MODEL
from tests.gateway.test_ollama_chat import open_stream, until
from tests.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUESTION = [{"role": "user", "content": "Why is the sky blue? Answer in one sentence."}]


@pytest.fixture
def client(real):
    """Return the official Python client."""
    with_client = ollama.Client(host=real.url)
    yield with_client
    with_client._client.close()


def test_the_official_client_lists_and_shows(client):
    models = client.list().models
    assert [model.model for model in models] == [MODEL]
    assert models[0].details.parameter_size == "134.52M"
    shown = client.show(MODEL)
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.capabilities == ["completion"]
    assert client.ps().models[0].model == MODEL


def test_chat_whole_and_streamed_are_the_same_when_greedy(client):
    options = {"temperature": 0, "num_predict": 24, "seed": 1}
    whole = client.chat(MODEL, messages=QUESTION, options=options)
    parts = list(client.chat(MODEL, messages=QUESTION, options=options, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert whole.message.content.strip()
    assert parts[-1].done
    assert parts[-1].eval_count == whole.eval_count <= 24
    assert whole.prompt_eval_count > 20
    assert whole.eval_duration > 0


def test_generate_continues_from_its_context(client):
    first = client.generate(MODEL, prompt="Say one word.", options={"num_predict": 6})
    assert first.response
    assert first.context
    again = client.generate(MODEL, prompt="Another.", context=first.context,
                            options={"num_predict": 6})  # fmt: skip
    assert again.prompt_eval_count > first.prompt_eval_count


def test_raw_generation_continues_the_text(client):
    reply = client.generate(MODEL, prompt="1, 2, 3, 4, 5,", raw=True,
                            options={"num_predict": 6, "temperature": 0})  # fmt: skip
    assert reply.response.strip().startswith("6")


def test_options_reach_the_engine(client):
    def ask(**options):
        return client.generate(MODEL, prompt="Tell me a story.", options=options)

    assert ask(num_predict=5).eval_count == 5
    assert ask(num_predict=5).done_reason == "length"
    same = [ask(num_predict=12, seed=42, temperature=1.5).response for _ in range(2)]
    assert same[0] == same[1]
    word = ask(num_predict=20, temperature=0).response.split()[3]
    stopped = ask(num_predict=20, temperature=0, stop=[word])
    assert word not in stopped.response
    assert stopped.done_reason == "stop"


def test_format_json_gives_json(client):
    reply = client.chat(
        MODEL,
        messages=[{"role": "user", "content": "Give name and age of a person as JSON."}],
        format={
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
        },
        options={"num_predict": 80, "temperature": 0},
    )
    assert set(json.loads(reply.message.content)) == {"name", "age"}


FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "id": {"type": "string", "pattern": r"^[A-Z]{2}-\d{3}$"},
        "tags": {"type": "array", "items": {"enum": ["a", 1]}, "minItems": 1, "maxItems": 2},
        "when": {"anyOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
    },
    "required": ["name", "id", "tags", "when"],
}


@pytest.mark.parametrize(
    "more", [{"raw": True}, {"template": "Q: {{ .Prompt }} A:"}, {"context": [504, 253]}]
)
def test_a_finished_prompt_keeps_to_its_format(real, more):
    options = {"num_predict": 120, "temperature": 0.5, "seed": 1}
    body = {"model": MODEL, "prompt": "A person as JSON:", "stream": False, "options": options}
    status, reply = real.post("/api/generate", body | {"format": FORM} | more)
    assert (status, reply["done_reason"]) == (200, "stop")
    assert set(json.loads(reply["response"])) == set(FORM["required"])
    _, reply = real.post("/api/generate", body | {"format": {"type": "boolean"}} | more)
    assert json.loads(reply["response"]) in (True, False)


def test_no_grammar_of_a_format_ends_the_engine(real):
    """It dies of a grammar with a fault."""
    before = real.engine(MODEL).pid
    body = {"model": MODEL, "prompt": "1", "raw": True, "options": {"num_predict": 3}}
    names = {name: {"const": f"{name}|#]"} for name in ("a b", "é", "(", "[x", "猪", '"', "\\")}
    for schema in (
        "json",
        {},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "object", "properties": names},
        {"type": "object", "properties": names, "required": ["é", "("]},
        {"type": "string", "pattern": "^[^a-]+.*x{2,}$"},
        {"type": "array", "items": {"type": "string", "maxLength": 200}, "maxItems": 200},
    ):
        status, reply = real.post("/api/generate", body | {"stream": False, "format": schema})
        assert (status, reply["done"]) == (200, True), schema
    assert real.engine(MODEL).pid == before


def test_embeddings(client):
    one = client.embed(MODEL, input="the cat sat")
    assert len(one.embeddings) == 1
    assert sum(value * value for value in one.embeddings[0]) == pytest.approx(1.0)
    two = client.embed(MODEL, input=["the cat sat", "a stock market crash"])
    assert two.embeddings[0] == pytest.approx(one.embeddings[0], abs=1e-3)
    assert two.prompt_eval_count > one.prompt_eval_count > 0
    assert client.embeddings(MODEL, prompt="x").embedding


@pytest.mark.parametrize("raw", [True, False])
def test_characters_of_several_tokens_stay_whole_with_logprobs(real, raw):
    """This engine leaves them out of such an answer; an emoji is three tokens here."""
    options = {"num_predict": 8, "temperature": 0.8, "seed": 3}
    ask = {"model": MODEL, "prompt": "😀 😃 😄 😁 😆", "raw": raw, "options": options}
    if not raw:
        ask["prompt"] = f"Repeat these emoji: {ask['prompt']}"
    _, plain = real.post("/api/generate", ask | {"stream": False})
    assert not plain["response"].isascii()
    ask |= {"logprobs": True, "top_logprobs": 2}
    _, whole = real.post("/api/generate", ask | {"stream": False})
    parts = real.lines("/api/generate", ask)
    assert whole["response"] == plain["response"]
    assert "".join(part["response"] for part in parts) == plain["response"]
    assert (
        bytes(b for told in whole["logprobs"] for b in told["bytes"]).decode() == whole["response"]
    )
    assert [told for part in parts for told in part.get("logprobs", ())] == whole["logprobs"]


def test_missing_models_are_404(client):
    for call in (client.show, client.chat, client.generate, client.embed, client.delete):
        with pytest.raises(ollama.ResponseError) as caught:
            call("no-such-model")
        assert caught.value.status_code == 404
        assert "not found" in caught.value.error


def test_two_chats_at_once_are_both_whole(client):
    replies = []

    def ask():
        reply = client.chat(MODEL, messages=QUESTION, options={"num_predict": 20, "temperature": 0})
        replies.append(reply.message.content)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(replies) == 2
    assert replies[0] == replies[1]


def test_fifty_requests_from_eight_clients(real):
    failures = []
    numbers = iter(range(50))
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            options = {"num_predict": 8, "seed": number}
            body = {"model": MODEL, "messages": QUESTION, "options": options}
            lines = real.lines("/api/chat", body)
            if not lines[-1]["done"] or lines[-1]["eval_count"] < 1 or "error" in lines[-1]:
                failures.append(lines[-1])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_client_that_leaves_frees_the_engine(real):
    body = {"model": MODEL, "prompt": "Count to a thousand.", "options": {"num_predict": 2000}}
    client = open_stream(real, "/api/generate", body)
    data = b""
    while data.count(b'"response"') < 3:
        data += client.recv(4096)
    client.close()
    until(lambda: not any(row["requests"] for row in real.get("/api/ps")["models"]))
    status, reply = real.post(
        "/api/generate",
        {"model": MODEL, "prompt": "Hi", "stream": False, "options": {"num_predict": 4}},
    )
    assert status == 200
    # it did not wait behind two thousand tokens
    assert reply["load_duration"] < 5e9


def test_the_openai_client(real):
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        reply = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": [{"type": "text", "text": "Say hi."}]}],
            max_completion_tokens=8,
        )
        assert reply.choices[0].message.content
        assert reply.usage.completion_tokens <= 8
        with client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=8, stream=True,
            stream_options={"include_usage": True},
        ) as stream:  # fmt: skip
            chunks = list(stream)
        assert chunks[-1].usage.prompt_tokens > 10
        assert client.completions.create(model=MODEL, prompt="1, 2, 3,", max_tokens=4).choices
        vectors = client.embeddings.create(model=MODEL, input=["a", "b"])
        assert len(vectors.data) == 2
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="nope", messages=QUESTION)


def test_more_context_than_loaded_reloads_and_too_long_prompts_are_refused(client):
    reply = client.chat(MODEL, messages=QUESTION, options={"num_ctx": 8192, "num_predict": 2})
    assert reply.done
    assert client.ps().models[0].context_length == 8192
    with pytest.raises(ollama.ResponseError) as caught:
        client.generate(MODEL, prompt="word " * 9000, options={"num_predict": 2})
    assert caught.value.status_code == 400
    assert "longer than the available context" in caught.value.error


def test_an_engine_killed_in_mid_stream(real):
    process = real.engine(MODEL)
    body = {"model": MODEL, "messages": QUESTION, "options": {"num_predict": 500}}
    with real.open("/api/chat", body) as answer:
        answer.readline()
        process.send_signal(signal.SIGKILL)
        last = json.loads(answer.read().splitlines()[-1])
    assert "error" in last
    status, reply = real.post("/api/chat", body | {"stream": False, "options": {"num_predict": 4}})
    assert (status, reply["done"]) == (200, True)


def test_a_stopped_server_leaves_nothing(tmp_path):
    with Server(tmp_path, "--model", MODEL, fake=False) as server:
        server.wait_for("is ready")
        tree = server.tree()
        assert any("llama_cpp.server" in " ".join(process.cmdline()) for process in tree)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
        assert not psutil.wait_procs(tree, timeout=60)[1]


@pytest.mark.parametrize("when", ["loading", "serving"])
def test_sigkill_leaves_no_engine(tmp_path, when):
    with Server(tmp_path, "--model", MODEL, fake=False) as server:
        until(lambda: any("llama_cpp.server" in " ".join(p.cmdline()) for p in server.tree()))
        if when == "serving":
            server.wait_for("is ready")
        tree = server.tree()
        server.process.kill()
        server.process.wait()
        assert not psutil.wait_procs(tree, timeout=60)[1]
