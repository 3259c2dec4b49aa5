"""The main job for real, with the clients that people use."""

import json
import signal
import threading

import ollama
import openai
import psutil
import pytest

from tests.e2e.conftest import COUNTS, ENGINE, MODEL, find_engine
from tests.e2e.counting import NUMBERS as TOKENS
from tests.e2e.counting import WILD
from tests.routes.test_ollama_chat import open_stream, until
from tests.server_process import LIMIT_S, Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUMBERS = [token.strip() for token in TOKENS]
QUESTION = [{"role": "user", "content": "Why is the sky blue? Answer in one sentence."}]


def test_the_official_client_lists_and_shows(client):
    models = {model.model: model for model in client.list().models}
    assert models[MODEL].details.parameter_size == "134.52M"
    shown = client.show(MODEL)
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.capabilities == ["completion"]
    client.generate(MODEL)  # loads it
    assert MODEL in [model.model for model in client.ps().models]


def test_the_real_model_answers_whole_and_in_parts(client):
    options = {"num_predict": 24}
    whole = client.chat(MODEL, messages=QUESTION, options=options)
    *_, last = client.chat(MODEL, messages=QUESTION, options=options, stream=True)
    assert whole.done and last.done
    assert whole.eval_count <= 24 and last.eval_count <= 24
    assert last.prompt_eval_count == whole.prompt_eval_count > 20
    assert whole.eval_duration > 0


def test_chat_whole_and_streamed_are_the_same(client):
    options = {"num_predict": 8}
    whole = client.chat(COUNTS, messages=QUESTION, options=options)
    parts = list(client.chat(COUNTS, messages=QUESTION, options=options, stream=True))
    assert whole.message.content == " one two three four five six seven eight"
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert (whole.eval_count, whole.done_reason) == (8, "length")
    assert (parts[-1].eval_count, parts[-1].done_reason) == (8, "length")


def test_generate_continues_from_its_context(client):
    first = client.generate(COUNTS, prompt="Say one word.", options={"num_predict": 6})
    assert first.response == " one two three four five six"
    again = client.generate(COUNTS, prompt="Another.", context=first.context,
                            options={"num_predict": 6})  # fmt: skip
    assert again.prompt_eval_count > first.prompt_eval_count + 6
    assert again.context[: len(first.context)] == first.context


def test_raw_generation_continues_the_text(client):
    reply = client.generate(COUNTS, prompt="one two three", raw=True, options={"num_predict": 3})
    assert (reply.response, reply.prompt_eval_count) == (" four five six", 3)


def test_options_reach_the_engine(client):
    def ask(**options):
        return client.generate(COUNTS, prompt="Tell me a story.", options=options)

    assert (ask(num_predict=5).eval_count, ask(num_predict=5).done_reason) == (5, "length")
    wild = {"num_predict": 12, "temperature": WILD, "top_k": 0, "top_p": 1.0}
    one, same, other = (ask(seed=seed, **wild).response for seed in (42, 42, 43))
    assert one == same != other
    stopped = ask(num_predict=20, stop=[" four"])
    assert (stopped.response, stopped.done_reason) == (" one two three", "stop")


def test_format_json_gives_json(client):
    reply = client.chat(
        MODEL,
        messages=[{"role": "user", "content": "Give name and age of a person as JSON."}],
        format={
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"enum": [30, 40]}},
            "required": ["name", "age"],
        },
        options={"num_predict": ROOM},
    )
    assert set(json.loads(reply.message.content)) == {"name", "age"}


# as many as the context has room for: a second or more for any engine
MANY = 4000
# no fewer than the longest text that a form of these tests allows has bytes
ROOM = 500
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


@pytest.mark.other_engines
def test_llama_cpp_python_takes_no_format_with_a_finished_prompt(tmp_path):
    find_engine("llama-cpp-python")
    arguments = ("--engine", "llama-cpp-python", "--model", MODEL)
    body = {"model": MODEL, "prompt": "A person as JSON:", "stream": False, "format": FORM}
    with Server(tmp_path, *arguments, fake=False) as server:
        server.wait_for("ready: http")
        for more in ({"raw": True}, {"template": "Q: {{ .Prompt }} A:"}, {"context": [504, 253]}):
            status, reply = server.post("/api/generate", body | more)
            assert status == 400
            assert "'format'" in reply["error"] and "llama-server" in reply["error"]


def test_a_prompt_that_the_engine_renders_keeps_to_its_format(real):
    body = {"model": MODEL, "prompt": "A person as JSON", "stream": False,
            "options": {"num_predict": ROOM}}  # fmt: skip
    status, reply = real.post("/api/generate", body | {"format": FORM})
    assert (status, reply["done_reason"]) == (200, "stop")
    assert set(json.loads(reply["response"])) == set(FORM["required"])
    _, reply = real.post("/api/generate", body | {"format": {"type": "boolean"}})
    assert json.loads(reply["response"]) in (True, False)


def test_no_grammar_of_a_format_ends_the_engine(real):
    """It dies of a grammar with a fault."""
    before = real.engine(MODEL).pid
    body = {"model": MODEL, "prompt": "1", "options": {"num_predict": 3}}
    names = {name: {"const": f"{name}|#]"} for name in ("a b", "é", "(", "[x", "猪", '"', "\\")}
    for schema in (
        "json",
        {},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "object", "properties": names},
        {"type": "object", "properties": names, "required": ["é", "("]},
        {"type": "string", "pattern": "^[^a-]+.*x{2,}$"},
        {"type": "array", "items": {"type": "string", "maxLength": 200}, "maxItems": 200},
        {"type": "object", "properties": {"x": {"type": "string", "pattern": '^\\S(a|)*?"$'}}},
        {"enum": ['say "hi"', "back\\slash", "line\nbreak", "😀"]},
        {"type": "string", "maxLength": 1_000_000},
        {"type": "object", "properties": {"": {"type": "integer"}, 'a"b': {}}},
    ):
        status, reply = real.post("/api/generate", body | {"stream": False, "format": schema})
        assert (status, reply["done"]) == (200, True), schema
    assert real.engine(MODEL).pid == before


def test_embeddings(client):
    one = client.embed(MODEL, input="the cat sat")
    assert len(one.embeddings) == 1
    assert sum(value * value for value in one.embeddings[0]) == pytest.approx(1.0)
    two = client.embed(MODEL, input=["the cat sat", "a stock market crash"])
    # nearly: a batch of two is added up in another order
    assert sum(a * b for a, b in zip(one.embeddings[0], two.embeddings[0], strict=True)) > 0.99
    assert two.prompt_eval_count > one.prompt_eval_count > 0
    assert client.embeddings(MODEL, prompt="x").embedding


def test_missing_models_are_404(client):
    for call in (client.show, client.chat, client.generate, client.embed, client.delete):
        with pytest.raises(ollama.ResponseError) as caught:
            call("no-such-model")
        assert caught.value.status_code == 404
        assert "not found" in caught.value.error


def test_two_chats_at_once_are_both_whole(client):
    replies = []

    def ask():
        reply = client.chat(COUNTS, messages=QUESTION, options={"num_predict": 20})
        replies.append(reply.message.content.split())

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == [NUMBERS * 2] * 2


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
            body = {"model": COUNTS, "messages": QUESTION, "options": {"num_predict": 1 + number}}
            lines = real.lines("/api/chat", body)
            if lines[-1].get("eval_count") != 1 + number:
                failures.append(lines[-1])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_client_that_leaves_frees_the_engine(real):
    body = {"model": COUNTS, "prompt": "Count on.", "options": {"num_predict": MANY}}

    def count_departures():
        return real.engine_log(COUNTS).count("cancel task")

    def leave():
        """Return whether the engine was told; it was not if its answer had ended by then."""
        with open_stream(real, "/api/generate", body) as client:
            data = b""
            while data.count(b'"response"') < 3:
                data += client.recv(4096)
        until(lambda: not any(row["requests"] for row in real.get("/api/ps")["models"]))
        return count_departures() > before

    before = count_departures()
    until(leave)
    status, reply = real.post("/api/generate", body | {"stream": False, "options": {
        "num_predict": 4}})  # fmt: skip
    assert (status, reply["eval_count"]) == (200, 4)


def test_the_openai_client(real):
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="none") as client:
        assert MODEL in {model.id for model in client.models.list()}
        reply = client.chat.completions.create(
            model=COUNTS,
            messages=[{"role": "user", "content": [{"type": "text", "text": "Say hi."}]}],
            max_completion_tokens=3,
        )
        assert reply.choices[0].message.content == " one two three"
        assert reply.usage.completion_tokens == 3
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


def test_more_context_than_loaded_reloads_and_too_long_prompts_are_cut(client, real):
    reply = client.chat(MODEL, messages=QUESTION, options={"num_ctx": 8192, "num_predict": 2})
    assert reply.done
    (row,) = [row for row in client.ps().models if row.model == MODEL]
    assert row.context_length == 8192
    body = {"model": MODEL, "prompt": "word " * 9000, "stream": False,
            "options": {"num_ctx": 512, "num_predict": 2}}  # fmt: skip
    status, reply = real.post("/api/generate", body)
    assert status == 200 and reply["prompt_eval_count"] < 512
    status, reply = real.post("/api/generate", body | {"truncate": False})
    assert status == 400 and "context length" in reply["error"]


def test_an_answer_whose_engine_is_killed_goes_on(real):
    body = {"model": COUNTS, "messages": QUESTION, "options": {"num_predict": MANY}}

    def read(lines):
        told = [json.loads(line) for line in lines]
        assert "error" not in told[-1]
        return "".join(one["message"]["content"] for one in told), told[-1]["eval_count"]

    with real.open("/api/chat", body) as answer:
        undisturbed = read(answer.read().splitlines())
    engine = real.engine(COUNTS)
    with real.open("/api/chat", body) as answer:
        begun = answer.readline()
        engine.send_signal(signal.SIGKILL)
        assert read([begun, *answer.read().splitlines()]) == undisturbed
    assert real.engine(COUNTS).pid != engine.pid


def test_a_stopped_server_leaves_nothing(tmp_path):
    with Server(tmp_path, *ENGINE, "--model", MODEL, fake=False, env=find_engine()) as server:
        server.wait_for("ready: http")
        tree = server.tree()
        assert any("llama-server" in " ".join(process.cmdline()) for process in tree)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=LIMIT_S) == 0
        assert not psutil.wait_procs(tree, timeout=LIMIT_S)[1]


@pytest.mark.parametrize("when", ["loading", "serving"])
def test_sigkill_leaves_no_engine(tmp_path, when):
    with Server(tmp_path, *ENGINE, "--model", MODEL, fake=False, env=find_engine()) as server:
        until(lambda: any("llama-server" in " ".join(p.cmdline()) for p in server.tree()))
        if when == "serving":
            server.wait_for("ready: http")
        tree = server.tree()
        server.process.kill()
        server.process.wait()
        assert not psutil.wait_procs(tree, timeout=LIMIT_S)[1]
