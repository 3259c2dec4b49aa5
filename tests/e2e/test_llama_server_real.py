"""llama.cpp's own server with the real model: several answers at once, and what else it can do."""

import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from string import ascii_letters

import openai
import pytest

from tests.e2e.conftest import COUNTS, MODEL, engine_at, weights
from tests.e2e.counting import NUMBERS, write_counting_gguf
from tests.e2e.test_tools import ROOM
from tests.ports import free_port
from tests.routes.test_ollama_chat import until
from tests.server.test_picker import CACHE, read
from tests.server_process import Server
from tests.tiny import write_tiny_gguf
from vllama.plan.draft_model import TRIAL_TOKENS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PARALLEL = 8
HI = [{"role": "user", "content": "Say hi."}]
# an integer may have digits without end
AGE = {
    "type": "object",
    "properties": {"age": {"enum": [30, 40]}},
    "required": ["age"],
    "additionalProperties": False,
}
# llama.cpp learns from a template how a model thinks: by its earlier turns, and by its switch
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)


def digest_of(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture(scope="module")
def serve():
    """Return a function that makes a server which knows the engine."""
    environ = {"VLLAMA_ENGINE_PATHS": f"llama-server={engine_at()}"}

    def make(home: Path, *arguments: str) -> Server:
        return Server(home, "--engine", "llama-server", *arguments, fake=False, env=environ)

    return make


@pytest.fixture(scope="module")
def native(serve, counting, tmp_path_factory):
    weights()
    home = tmp_path_factory.mktemp("native")
    arguments = ("--num-parallel", str(PARALLEL), "--context-length", "2048", "--model", MODEL)
    with serve(home, *arguments) as server:
        server.take(counting)
        server.wait_for("ready: http")
        yield server


@pytest.fixture(scope="module")
def client(native):
    with openai.OpenAI(base_url=f"{native.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(native, body, path="/api/generate"):
    options = {"num_predict": ROOM} | body.get("options", {})
    body = {"model": MODEL, "stream": False} | body | {"options": options}
    status, reply = native.post(path, body)
    assert status == 200, reply
    return reply


def test_the_plan_says_how_many(native):
    native.wait_for(f"{PARALLEL} parallel requests")
    arguments = native.engine(MODEL).cmdline()
    assert arguments[arguments.index("--parallel") + 1] == str(PARALLEL)
    assert arguments[arguments.index("--ctx-size") + 1] == str(PARALLEL * 2048)


@contextmanager
def held(native, requests, body):
    """Ask so many times while the engine stands still; yield what gathers the answers."""
    answers = []
    engine = native.engine(COUNTS)
    engine.send_signal(signal.SIGSTOP)
    try:
        threads = [
            threading.Thread(target=lambda: answers.append(ask(native, body)))
            for _ in range(requests)
        ]
        for thread in threads:
            thread.start()
        yield answers
    finally:
        engine.send_signal(signal.SIGCONT)
    for thread in threads:
        thread.join()


def test_as_many_requests_at_once_as_there_are_slots(native):
    """One more waits."""
    body = {"model": COUNTS, "prompt": "Hi", "options": {"num_predict": 20}}
    ask(native, body)

    def at_work() -> tuple[int, int]:
        rows = native.get("/api/ps")["models"]
        (row,) = [row for row in rows if row["name"].startswith(COUNTS)]
        return row["requests"], row["queued"]

    with held(native, PARALLEL + 1, body) as answers:
        until(lambda: at_work() == (PARALLEL, 1))
    assert [reply["response"] for reply in answers] == ["".join(NUMBERS) * 2] * (PARALLEL + 1)


def test_a_picker_sees_the_share_of_the_cache_in_use(serve, counting, tmp_path):
    port = free_port()
    flags = ("--picker-port", str(port), "--context-length", "2048", "--num-parallel", "1")
    with serve(tmp_path, *flags) as server:
        server.take(counting)
        body = {"model": COUNTS, "prompt": "Hi", "options": {"num_predict": 1000}}
        with server.open("/api/generate", body) as stream:
            stream.readline()
            until(lambda: 0 < read(port)[CACHE] < 1)
            stream.read()
        until(lambda: read(port)[CACHE] == 0)


@pytest.mark.parametrize(
    "prompt",
    [
        {"prompt": "A person as JSON:", "raw": True},
        {"prompt": "A person as JSON:", "template": "{{ .Prompt }}"},
        {"prompt": "A person as JSON."},
    ],
)
def test_a_finished_prompt_keeps_to_a_schema_too(native, prompt):
    reply = ask(native, {"format": AGE} | prompt)
    assert set(json.loads(reply["response"])) == {"age"}
    # it need not come to an end, but it begins as an object does
    begun = ask(native, {"format": "json", "options": {"num_predict": 20}} | prompt)
    assert begun["response"].lstrip().startswith("{")


FENCED = (
    "Return the correct JSON response within a ```json codeblock, an instance of this schema: "
    + json.dumps(AGE)
)


def test_a_chat_keeps_to_its_form_from_the_first_token_on(native, client):
    """Its own chats let a fence come first and leave it out: of few tokens none is left."""
    said = [{"role": "user", "content": FENCED}]
    few = {"options": {"num_predict": 3}}
    reply = ask(native, {"messages": said, "format": AGE} | few, "/api/chat")
    assert reply["message"]["content"].startswith("{")
    assert ask(native, {"prompt": FENCED, "format": AGE} | few)["response"].startswith("{")
    whole = ask(native, {"messages": said, "format": AGE}, "/api/chat")
    assert set(json.loads(whole["message"]["content"])) == {"age"}
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": AGE}}
    for wanted in (form, {"type": "json_object"}):
        reply = client.chat.completions.create(
            model=MODEL, messages=said, response_format=wanted, max_tokens=3, temperature=0
        )
        assert reply.choices[0].message.content.startswith("{")
        assert 0 < reply.usage.completion_tokens <= 3


def test_a_context_and_a_schema(native):
    first = ask(native, {"prompt": "Say one word.", "options": {"num_predict": 4}})
    reply = ask(native, {"prompt": "A person.", "format": AGE, "context": first["context"]})
    assert set(json.loads(reply["response"])) == {"age"}


def test_no_white_space_but_one_blank_stands_in_a_form(native):
    """A small model that may go on with line feeds goes on with them to the end."""
    body = {"prompt": "A list.\n\n\n", "raw": True, "options": {"num_predict": 60}}
    form = {"type": "array", "items": {"type": "boolean"}}
    reply = ask(native, body | {"format": form})
    assert not re.search(r"\s\s|[\n\t]", reply["response"])


def test_schemas_of_openai_clients(client):
    form = {"type": "json_schema", "json_schema": {"name": "age", "schema": AGE}}
    chat = client.chat.completions.create(
        model=MODEL, messages=HI, response_format=form, max_tokens=ROOM
    )
    assert set(json.loads(chat.choices[0].message.content)) == {"age"}


def test_log_probabilities_without_another_load(native):
    ask(native, {"model": COUNTS, "prompt": "Hi", "options": {"num_predict": 1}})
    pid = native.engine(COUNTS).pid
    for prompt in ({"prompt": "Hi"}, {"prompt": "Hi", "raw": True}):
        wanted = {"logprobs": True, "top_logprobs": 2, "options": {"num_predict": 3}}
        reply = ask(native, {"model": COUNTS} | wanted | prompt)
        assert len(reply["logprobs"]) == reply["eval_count"] == 3
        assert all(len(token["top_logprobs"]) == 2 for token in reply["logprobs"])
    assert native.engine(COUNTS).pid == pid


def test_more_choices_than_there_are_slots(client):
    count = PARALLEL + 2
    reply = client.chat.completions.create(model=COUNTS, messages=HI, n=count, max_tokens=2)
    assert [choice.index for choice in reply.choices] == list(range(count))
    assert reply.usage.completion_tokens == 2 * count
    chunks = client.chat.completions.create(
        model=COUNTS, messages=HI, n=count, max_tokens=2, stream=True
    )
    with chunks:
        seen = {choice.index for chunk in chunks for choice in chunk.choices}
    assert seen == set(range(count))


@pytest.mark.parametrize("grammar", ["root ::= (", 'root ::= root "a"', "root ::= foo"])
def test_a_bad_grammar_is_the_clients_fault(native, client, grammar):
    before = {process.pid for process in native.tree()}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model=MODEL, messages=HI, max_tokens=2, extra_body={"grammar": grammar}
        )
    assert ask(native, {"prompt": "Hi", "options": {"num_predict": 2}})["done"]
    assert {process.pid for process in native.tree()} == before


def test_a_grammar_is_kept_to(client):
    reply = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=8, extra_body={"grammar": 'root ::= "yes" | "no"'}
    )
    assert reply.choices[0].message.content in ("yes", "no")


def test_a_prompt_that_is_too_long(native):
    status, reply = native.post("/api/generate", {
        "model": MODEL, "prompt": "word " * 5000, "stream": False, "truncate": False,
        "options": {"num_predict": 2}})  # fmt: skip
    assert status == 400
    assert "context" in reply["error"]


@pytest.mark.parametrize("name", ["thinker", "unlearned"])
def test_thinking_is_told_apart_and_switched(native, name):
    template = THINKS
    if name == "unlearned":  # nothing of earlier turns: llama.cpp takes the thinking for the answer
        template = THINKS.replace("m.reasoning_content", "m.other")
    write_counting_gguf(weights(), native.models / f"{name}.gguf", template=template)
    body = {"model": name, "messages": HI, "stream": False, "options": {"num_predict": 10}}
    status, reply = native.post("/api/chat", body)
    assert status == 200, reply
    assert reply["message"].get("thinking", "").split() == "".join(NUMBERS).split()
    assert not reply["message"]["content"]
    status, reply = native.post("/api/chat", body | {"think": True})
    assert status == 200, reply
    assert reply["message"].get("thinking")
    status, reply = native.post("/api/chat", body | {"think": False})
    assert status == 200, reply
    assert "thinking" not in reply["message"]
    assert reply["message"]["content"].split() == "".join(NUMBERS).split()


THOUGHTS = [*NUMBERS[:3], "</", "think", ">"]
GO = (
    "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ if .Thinking }}<think>{{ .Thinking }}"
    "</think>{{ end }}{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
    "{{ if and .IsThinkSet (not .Think) }}<think>\n\n</think>\n\n{{ else }}<think>\n{{ end }}"
)


@pytest.fixture(scope="module")
def thoughtful(native):
    """Have models that think three words: the engine, vllama or a Go template renders them."""
    unlearned = THINKS.replace("m.reasoning_content", "m.other")
    for name, template in (("thoughtful", THINKS), ("thoughtful-unlearned", unlearned)):
        path = native.models / f"{name}.gguf"
        write_counting_gguf(weights(), path, THOUGHTS, ends=True, template=template)
    made = {"model": "thoughtful-go", "from": "thoughtful", "template": GO, "stream": False}
    assert native.post("/api/create", made)[0] == 200


@pytest.mark.parametrize("think", [{}, {"think": True}])
@pytest.mark.parametrize("name", ["thoughtful", "thoughtful-unlearned", "thoughtful-go"])
def test_a_schema_holds_after_the_thinking(native, thoughtful, name, think):
    body = {"model": name, "messages": HI, "options": {"temperature": 0, "num_predict": 60}}
    free = ask(native, body | think, "/api/chat")
    reply = ask(native, body | think | {"format": AGE}, "/api/chat")
    assert reply["message"]["thinking"].strip() == free["message"]["thinking"].strip()
    assert reply["message"]["thinking"].split() == "".join(NUMBERS[:3]).split()
    assert set(json.loads(reply["message"]["content"])) == {"age"}
    assert reply["prompt_eval_count"] == free["prompt_eval_count"]
    assert reply["eval_count"] > free["eval_count"] - 1 + len('{"age"') // 3
    _, headers, data = native.request("POST", "/api/chat", body | think | {"format": AGE})
    lines = [json.loads(line)["message"] for line in data.splitlines()]
    assert "x-vllama-ignored" not in headers
    assert "".join(line["content"] for line in lines) == reply["message"]["content"]
    assert "".join(line.get("thinking", "") for line in lines) == reply["message"]["thinking"]
    silent = ask(native, body | {"think": False, "format": AGE}, "/api/chat")
    assert set(json.loads(silent["message"]["content"])) == {"age"}
    assert "thinking" not in silent["message"]


@pytest.mark.parametrize("told", ["thinking", "content"])
def test_a_kill_in_either_pass_is_not_seen(native, told):
    words = [*(f" {letter}" for letter in ascii_letters), *THOUGHTS[3:]]
    name = f"ponders-{told}"
    path = native.models / f"{name}.gguf"
    write_counting_gguf(weights(), path, words, ends=True, template=THINKS)
    ages = {"type": "array", "items": {"enum": [30, 40]}, "minItems": 99, "maxItems": 99}
    body = {"model": name, "messages": HI, "format": ages, "options": {"temperature": 0}}

    def read(lines):
        said = [json.loads(line) for line in lines]
        assert "error" not in said[-1]
        texts = [
            "".join(x["message"].get(name, "") for x in said) for name in ("thinking", "content")
        ]
        return *texts, said[-1]["done_reason"], said[-1]["eval_count"]

    with native.open("/api/chat", body) as answer:
        undisturbed = read(answer.read().splitlines())
    assert undisturbed[0].split() == list(ascii_letters)
    engine = native.engine(name)
    with native.open("/api/chat", body) as answer:
        lines = [answer.readline()]
        while not json.loads(lines[-1])["message"].get(told):
            lines.append(answer.readline())
        engine.kill()
        assert read([*lines, *answer.read().splitlines()]) == undisturbed
    assert native.engine(name).pid != engine.pid
    native.wait_for(f"{name}.* response resumed")


def test_inputs_are_cut_with_what_the_model_puts_around_them(native):
    def around(writer):
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)

    write_tiny_gguf(native.models / "short.gguf", n_ctx=64, extra=around)
    status, reply = native.post("/api/embed", {"model": "short", "input": "a" * 200})
    assert (status, reply["prompt_eval_count"]) == (200, 64)
    write_tiny_gguf(native.models / "around.gguf", n_ctx=256, extra=around)
    for length in (30, 252, 253, 254, 255, 256, 257, 600):
        status, reply = native.post("/api/embed", {"model": "around", "input": "a" * length})
        assert status == 200, (length, reply)
        assert min(length, 255) <= reply["prompt_eval_count"] <= 256
    body = {"model": "around", "input": "a" * 600}
    status, reply = native.post("/api/embed", body | {"options": {"num_ctx": 8}})
    assert status == 200 and 7 <= reply["prompt_eval_count"] <= 8
    status, reply = native.post("/api/embed", body | {"truncate": False})
    assert (status, reply["error"]) == (400, "the input length exceeds the context length")


def test_a_damaged_file_and_a_foreign_one(serve, tmp_path):
    with serve(tmp_path, "--context-length", "256") as server:
        whole = write_tiny_gguf(tmp_path / "whole.gguf", tokens=("<x>",)).read_bytes()
        # an architecture that llama.cpp does not know; the header is sound
        (server.models / "odd.gguf").write_bytes(whole.replace(b"llama", b"zzama"))
        status, reply = server.post("/api/generate", {"model": "odd", "prompt": "a"})
        assert status >= 400
        assert "does not know the architecture 'zzama'" in reply["error"]


def test_drafts_by_further_arguments(serve, counting, tmp_path):
    """Drafts that are as good as the model, of one that is the same, and none that come true."""
    for draft in (counting / f"{COUNTS}.gguf", weights()):
        arguments = ("--context-length", "512", "--num-parallel", "1",
                     "--model", str(counting / f"{COUNTS}.gguf"),
                     "--", "--model-draft", str(draft), "--spec-draft-n-max", "4")  # fmt: skip
        with serve(tmp_path / draft.stem, *arguments) as server:
            server.wait_for("ready: http")
            (row,) = server.get("/api/ps")["models"]
            reply = ask(server, {"model": row["name"], "prompt": "one two", "raw": True,
                                 "options": {"num_predict": 8}})  # fmt: skip
            assert reply["response"] == "".join(NUMBERS[2:])
            assert "--model-draft" in server.engine(row["name"]).cmdline()


@pytest.mark.parametrize(
    "schema",
    [{"type": "string", "minLength": 5, "maxLength": 2}, {"type": "nonsense"}, {"$ref": "#/no"}],
)
def test_a_schema_that_cannot_be_used_never_reaches_it(native, schema):
    """The first of them would keep it busy for ever."""
    body = {"model": MODEL, "messages": HI, "stream": False, "options": {"num_predict": 2}}
    status, reply = native.post("/api/chat", body | {"format": schema})
    assert (status, reply["error"][:26]) == (400, "cannot use the JSON schema")
    body = {"model": MODEL, "prompt": "a", "raw": True, "json_schema": schema, "max_tokens": 2}
    assert native.post("/v1/completions", body)[0] == 400
    broken = {"type": "object", "properties": {"a": schema}}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name, parameters in (("f", broken), ("g", {"type": "object"}))
    ]
    body |= {"messages": HI, "tool_choice": "required"}
    del body["json_schema"], body["prompt"], body["raw"]
    for given, wanted in ((tools[:1], 400), (tools, 200)):  # the only one, and one of several
        status, reply = native.post("/v1/chat/completions", body | {"tools": given})
        assert status == wanted, reply
    assert native.post("/api/generate", {"model": MODEL, "prompt": "a", "options": {
        "num_predict": 1}, "stream": False})[0] == 200  # fmt: skip


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"items": {"$ref": "#a"}, "$defs": {"x/y": {"$anchor": "a", "type": "null"}}},
        {"type": "object", "properties": {"a": True, "b": False}},
        {"type": "array", "prefixItems": [True], "items": False},
    ],
)
def test_valid_schemas_that_llama_cpp_does_not_know_are_rewritten(native, schema):
    body = {"model": MODEL, "messages": HI, "stream": False, "options": {"num_predict": 2}}
    status, reply = native.post("/api/chat", body | {"format": schema})
    assert status == 200, reply


def test_cached_tokens_are_told(native, client):
    text = "Count the seconds from one to a hundred, slowly."  # no other test begins so
    messages = [{"role": "user", "content": text}]
    body = {"model": MODEL, "messages": messages, "stream": False, "options": {"num_predict": 1}}
    ask(native, body, "/api/chat")
    again = ask(native, body, "/api/chat")
    prompt, cached = again["prompt_eval_count"], again["prompt_eval_cached_count"]
    assert 0 < cached < prompt
    asked = {"model": MODEL, "messages": messages, "max_tokens": 1}
    whole = client.chat.completions.create(**asked)
    assert whole.usage.prompt_tokens_details.cached_tokens == cached
    *_, last = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    assert (last.usage.prompt_tokens, last.usage.prompt_tokens_details.cached_tokens) == (
        prompt, cached,
    )  # fmt: skip
    status, message = native.post("/v1/messages", asked)
    assert (status, message["usage"]["cache_read_input_tokens"]) == (200, cached)
    assert message["usage"]["input_tokens"] == prompt - cached
    _, _, metrics = native.request("GET", "/metrics")
    counted = re.search(
        rb'vllama_prompt_tokens_cached_total\{model="smollm2:135m"\} (\d+)', metrics
    )
    assert int(counted[1]) >= 4 * cached


def test_documents_are_ranked(serve, tmp_path):
    """A model with random weights: its scores mean nothing, but they are the same every time."""
    with serve(tmp_path) as server:
        write_tiny_gguf(
            server.models / "ranker.gguf",
            n_ctx=512,
            extra=lambda writer: writer.add_uint32("llama.pooling_type", 4),
        )
        documents = ["one", "the second document", "three words here"]
        body = {"model": "ranker", "query": "which?", "documents": documents}
        status, reply = server.post("/v1/rerank", body)
        assert status == 200, reply
        scores = [row["relevance_score"] for row in reply["results"]]
        assert scores == sorted(scores, reverse=True) and len(set(scores)) == 3
        for row in reply["results"]:
            assert row["document"] == {"text": documents[row["index"]]}
        assert reply["usage"]["total_tokens"] > 3
        by_index = {row["index"]: row["relevance_score"] for row in reply["results"]}
        pairs = {"model": "ranker", "text_1": "which?", "text_2": documents}
        status, reply = server.post("/v1/score", pairs)
        assert status == 200, reply
        for number, row in enumerate(reply["data"]):
            assert row["score"] == pytest.approx(by_index[number], abs=1e-3)


def test_questions_are_answered_by_probabilities(native):
    questions = {
        "urgent": {"type": "noul", "instructions": "Is it urgent?"},
        "team": {
            "type": "choice",
            "instructions": "Who should read it?",
            "criteria": {"billing": "payments", "support": None, "sales": None},
        },
        "anger": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "furious"]},
    }
    body = {"model": MODEL, "state": {"mail": "I was charged twice!"}, "questions": questions}
    status, reply = native.post("/v1/systemone", body)
    assert status == 200, reply
    assert 0 < reply["answers"]["urgent"]["noul"] < 1
    team = reply["answers"]["team"]
    assert sum(team["probabilities"].values()) == pytest.approx(1)
    assert team["probabilities"][team["choice"]] == max(team["probabilities"].values())
    assert 0 < reply["answers"]["anger"]["score"] < 1
    assert reply["usage"]["output_tokens"] == 3
    choices = [{"value": "billing"}, {"value": True}]
    asked = [{"type": "choice", "instructions": "Which?", "choices": choices}]
    body = {"model": MODEL, "input": "I was charged twice!", "questions": asked}
    status, reply = native.post("/v1/decisions", body)
    assert status == 200, reply
    (answer,) = reply["answers"]
    assert [row["value"] for row in answer["probabilities"]] == ["billing", True]
    assert sum(row["probability"] for row in answer["probabilities"]) == pytest.approx(1)


def make_drafting(server) -> str:
    """Create a model that counts to any length, with a draft model, and return its name."""
    name, path = "drafting", weights()
    digest = digest_of(path)
    assert server.request("POST", f"/api/blobs/{digest}", path.read_bytes())[0] == 201
    made = {
        "model": name, "from": COUNTS, "draft_files": {path.name: digest},
        "parameters": {"draft_num_predict": 3}, "stream": False,
    }  # fmt: skip
    assert server.post("/api/create", made)[0] == 200
    return name


def test_a_draft_model_is_asked_and_changes_no_answer(serve, tmp_path, counting):
    with serve(tmp_path, "--context-length", "512") as server:
        server.take(counting)
        name = make_drafting(server)
        body = {"prompt": "Once", "stream": False, "options": {"temperature": 0, "num_predict": 8}}
        drafted = ask(server, body | {"model": name})
        arguments = server.engine(name).cmdline()
        assert arguments[arguments.index("--spec-draft-n-max") + 1] == "3"
        assert drafted["eval_count"] == 8
        with server.open("/v1/completions", {"model": name, "prompt": "Once", "max_tokens": 8,
                                             "temperature": 0, "raw": True}) as answer:  # fmt: skip
            assert answer.status == 200
        assert "draft" in server.engine_log(name)


def test_a_draft_model_is_compared_and_then_used_or_not(serve, tmp_path, counting):
    """Which is faster depends on the machine; what follows from the measurements does not."""
    with serve(tmp_path, "--context-length", "1024") as server:
        server.take(counting)
        name = make_drafting(server)

        def load(tokens: int) -> bool:
            options = {"num_predict": tokens, "temperature": 0}
            ask(server, {"model": name, "prompt": "Once", "stream": False, "options": options})
            drafts = "--model-draft" in server.engine(name).cmdline()
            ask(server, {"model": name, "prompt": "", "keep_alive": 0, "stream": False})
            until(lambda: not server.get("/api/ps")["models"])
            return drafts

        assert [load(TRIAL_TOKENS + 20), load(TRIAL_TOKENS + 20)] == [True, False]
        plan = subprocess.run(
            [sys.executable, "-m", "vllama", "plan", name],
            env=server.env, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        verdict = re.search(r"draft model is (not )?used: measured \d+ tokens/s with it", plan)
        assert verdict is not None, plan
        assert load(1) is (verdict[1] is None)
