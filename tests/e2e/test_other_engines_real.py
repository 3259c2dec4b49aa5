"""The engines besides the defaults for real, with SmolLM2: `make test-engines`.

Environments are looked for as `.venv/data/environments/<name>`, or below the folder that the
variable VLLAMA_TEST_ENGINES names. MAX compiles for minutes at a model's first start, so that it is
tried only where VLLAMA_TEST_MAX is set. One server an engine, which serves the tests as they stand.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import ollama
import openai
import psutil
import pytest

from tests.e2e.test_llama_server_real import weights
from tests.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
OURS = ROOT / ".venv" / "data" / "environments"
ENVIRONMENTS = Path(os.environ.get("VLLAMA_TEST_ENGINES") or OURS)
START_S = 900
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "num_predict": 12, "seed": 1}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TOOLS_TEMPLATE = """{%- if tools %}<|im_start|>system
Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
Call one with <tool_call>{"name": <name>, "arguments": <object>}</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] or '' }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is special about an engine. `port_flag` lets the test take its port away."""

    engine: str
    gguf: bool = False
    completes: bool = True
    shows_tools: bool = True
    logprobs: bool = False
    dtype: str = "bfloat16"
    port_flag: str = "--port"
    only_with: str | None = None


CASES = (
    Case(engine="transformers"),
    Case(engine="mlx-lm"),
    Case(engine="tinygrad", gguf=True, completes=False, shows_tools=False, port_flag="--serve"),
    Case(engine="max", dtype="float32", logprobs=True, only_with="VLLAMA_TEST_MAX"),
)


class Patient(Server):
    """A server whose engine may take long: two cores, and others at work on them."""

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)


def environment(engine: str) -> Path:
    """Return an engine's environment, or skip."""
    folder = ENVIRONMENTS / engine
    if not (folder / "bin" / "python").exists():
        pytest.skip(f"there is no {engine} in {folder}; run: make test-engines")
    return folder


def folder_model(dtype: str, home: Path) -> Path:
    """Return a Hugging Face folder of SmolLM2 whose template knows tools; made once."""
    python = environment("transformers") / "bin" / "python"
    made = python.parents[1] / f"smol-{dtype}"
    if not (made / "tokenizer_config.json").exists():
        command = [python, Path(__file__).with_name("make_folder.py"), weights()]
        subprocess.run([*command, home / "made", dtype], check=True, timeout=START_S)
        subprocess.run(["mv", home / "made", made], check=True)
    folder = home / "smol"
    folder.mkdir()
    for file in made.iterdir():
        if file.name != "chat_template.jinja":
            (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").write_text(TOOLS_TEMPLATE)
    return folder


def gguf_model(home: Path) -> Path:
    """Return SmolLM2 under the name of a family of tokenizers that tinygrad knows."""
    out = home / "smol.gguf"
    command = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--pre-tokenizer", "qwen2"]
    subprocess.run([*command, weights(), out], check=True, capture_output=True)
    return out


def serving(case: Case, home: Path, model: Path, *arguments: str, **env: str) -> Patient:
    """Return a server that takes that engine."""
    env["VLLAMA_ENGINE_PATHS"] = f"{case.engine}={environment(case.engine)}"
    flags = ("--model", str(model), "--engine", case.engine, "--ctx", "512")
    return Patient(home, *flags, *arguments, fake=False, env=env)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.engine)
def case(request) -> Case:
    chosen = request.param
    if chosen.only_with and not os.environ.get(chosen.only_with):
        pytest.skip(f"{chosen.engine} takes minutes to compile: set {chosen.only_with}")
    environment(chosen.engine)
    return chosen


@pytest.fixture(scope="module")
def model(case, tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp(f"model-{case.engine}")
    return gguf_model(home) if case.gguf else folder_model(case.dtype, home)


@pytest.fixture(scope="module")
def server(case, model, tmp_path_factory):
    with serving(case, tmp_path_factory.mktemp(case.engine), model) as running:
        running.wait_for("is ready|Error", START_S)
        assert "is ready" in running.output, running.output
        yield running


@pytest.fixture(scope="module")
def name(server) -> str:
    (row,) = server.get("/api/ps")["models"]
    return row["name"]


@pytest.fixture
def client(server):
    client = ollama.Client(host=server.url, timeout=START_S)
    yield client
    client._client.close()


@pytest.fixture
def v1(server):
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=START_S
    ) as client:
        yield client


# -- answers ----------------------------------------------------------------------------------


def test_chat_whole_and_streamed_are_the_same_when_greedy(client, name):
    whole = client.chat(name, messages=QUESTION, options=GREEDY)
    assert "Paris" in whole.message.content
    assert whole.done_reason == "stop"
    parts = list(client.chat(name, messages=QUESTION, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert len(parts) > 3
    assert parts[-1].eval_count == whole.eval_count <= 12
    assert parts[-1].prompt_eval_count == whole.prompt_eval_count > 10


def test_generate_answers_and_stops_where_it_was_told_to(client, name):
    options = GREEDY | {"stop": [" Paris"]}
    told = client.generate(name, prompt=QUESTION[0]["content"], options=options)
    assert told.response.endswith("is")
    assert told.done_reason == "stop"


def test_an_answer_of_as_many_tokens_as_wanted(client, name):
    told = client.chat(name, messages=QUESTION, options=GREEDY | {"num_predict": 3})
    assert (told.eval_count, told.done_reason) == (3, "length")


def test_raw_text_is_continued_where_the_engine_can(case, client, name):
    asked = {"prompt": "The capital of France is", "raw": True, "options": GREEDY}
    if case.completes:
        assert client.generate(name, **asked).response.strip().startswith("Paris")
        return
    with pytest.raises(ollama.ResponseError, match="chats only"):
        client.generate(name, **asked)


def test_openai_whole_and_streamed_with_fields_that_it_does_not_know(v1, name):
    asked = {
        "model": name, "messages": QUESTION, "max_completion_tokens": 12, "temperature": 0,
        "user": "me", "store": False, "metadata": {"a": "b"}, "parallel_tool_calls": True,
        "extra_body": {"top_k": 1, "min_p": 0.0, "x_unknown": 1, "repetition_penalty": 1.0},
    }  # fmt: skip
    whole = v1.chat.completions.create(**asked)
    assert "Paris" in whole.choices[0].message.content
    assert (whole.choices[0].finish_reason, whole.model) == ("stop", name)
    with_usage = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(v1.chat.completions.create(**asked, **with_usage))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert {chunk.model for chunk in chunks} == {name}


def test_openais_completions_of_text(case, v1, name):
    told = v1.completions.create(
        model=name, prompt="What is the capital of France?", max_tokens=12, temperature=0
    )
    assert "Paris" in told.choices[0].text
    assert told.usage.prompt_tokens > 5


def test_sampling_is_not_greedy_when_it_is_not_asked_to_be(client, name):
    options = {"temperature": 1.5, "num_predict": 12, "top_k": 0, "top_p": 1.0}
    said = {
        client.chat(name, messages=QUESTION, options=options | {"seed": seed}).message.content
        for seed in range(3)
    }
    assert len(said) > 1


def test_tools_are_shown_where_the_engine_can(case, client, name):
    if not case.shows_tools:
        with pytest.raises(ollama.ResponseError, match="does not support tools"):
            client.chat(name, messages=QUESTION, tools=[TOOL], options=GREEDY)
        return
    plain = client.chat(name, messages=QUESTION, options=GREEDY)
    told = client.chat(name, messages=QUESTION, tools=[TOOL], options=GREEDY)
    assert told.prompt_eval_count > plain.prompt_eval_count + 20
    assert told.message.content or told.message.tool_calls


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"format": "json"}, "structured outputs"),
        ({"format": {"type": "object"}}, "structured outputs"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": [{"role": "user", "content": "x", "images": ["iVBORw0KGgo="]}]}, "vision"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "invalid role"),
    ],
)
def test_what_it_lacks_is_said_and_costs_no_start(case, server, name, more, words):
    if "logprobs" in more and case.logprobs:
        pytest.skip("it gives them")
    before = server.engine(name).pid
    status, told = server.post("/api/chat", {"model": name, "messages": QUESTION, **more})
    assert status == 400
    assert words in told["error"]
    assert server.engine(name).pid == before


def test_it_makes_no_vectors(server, name):
    status, told = server.post("/api/embed", {"model": name, "input": "x"})
    assert status >= 400
    assert "embed" in told["error"]


def test_a_client_that_leaves_gives_its_place_back(client, server, name):
    """One request at a time: the next is answered only if the first was given up."""
    long = {"model": name, "messages": [{"role": "user", "content": "Count to a thousand."}]}
    with server.open("/api/chat", long | {"options": {"num_predict": -1}}) as answer:
        assert json.loads(answer.readline())["message"]["content"]
    told = client.chat(name, messages=QUESTION, options=GREEDY | {"num_predict": 1})
    assert told.eval_count == 1


def test_a_process_that_dies_is_started_again(client, server, name):
    before = server.engine(name)
    before.kill()
    psutil.wait_procs([before], timeout=START_S)
    server.wait_for("it was killed", START_S)  # requests wait for the next one from now on
    told = client.chat(name, messages=QUESTION, options=GREEDY)
    assert "Paris" in told.message.content
    assert server.engine(name).pid != before.pid


# -- ends -------------------------------------------------------------------------------------


def test_nothing_listens_but_on_loopback(server, name):
    engine = server.engine(name)
    family = [engine, *engine.children(recursive=True)]
    places = [c.laddr.ip for p in family for c in p.net_connections() if c.status == "LISTEN"]
    assert places
    assert set(places) <= {"127.0.0.1", "::1"}


def test_nothing_is_left_when_vllama_is_killed(server, name):
    tree = server.tree()
    assert tree
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    _, alive = psutil.wait_procs(tree, timeout=60)
    assert not alive


def refused(case: Case, home: Path, model: Path, *arguments: str, **env: str) -> str:
    """Start a server whose model cannot be served; return what it says."""
    with serving(case, home, model, *arguments, **env) as server:
        output = server.wait_for("(?m)^Error: (?s:.*)$", START_S)
    return output[output.index("Error: ") :]


def test_a_taken_port_is_told(case, model, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        told = refused(case, tmp_path, model, "--", case.port_flag, port)
    words = {"--port": "cannot give the engine a --port: vllama chooses a free one"}
    assert words.get(case.port_flag, "its port was taken by another program") in told


def test_too_little_memory_is_told_before_anything_is_started(case, model, tmp_path):
    told = refused(case, tmp_path, model, OLLAMA_GPU_OVERHEAD="1000000000000")
    assert "requires more system memory" in told


def test_damaged_weights_are_told(case, model, tmp_path):
    if case.gguf:
        pytest.skip("a GGUF is judged by its header before any engine is started")
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            (broken / file.name).symlink_to(file)
    data = (model / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(data[: len(data) // 2])
    server = serving(case, tmp_path / "home", broken)
    done = subprocess.run(server.command, env=server.env, capture_output=True, text=True)
    assert done.returncode != 0
    assert "it is cut" in done.stdout + done.stderr
