"""The engines besides the defaults for real, with a model that counts to five: `make test-engines`.

The engines that the variable TEST_ENGINES names, in their environments below
`.venv/data/environments`. MAX is tried only where it is named: it compiles for minutes at a model's
first start. One server an engine, which serves the tests as they stand.
"""

import json
import os
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import ollama
import psutil
import pytest

from tests.e2e.conftest import Patient, weights
from tests.e2e.counting import NUMBERS, WILD, write_counting_gguf
from tests.lacking import lacking

pytestmark = [pytest.mark.slow, pytest.mark.other_engines, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venv" / "data" / "environments"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
FIVE = ["one", *NUMBERS[1:5]]  # one of the engines leaves out a space at the beginning
COUNTED = "".join(FIVE)
LIMIT = {"num_predict": 12, "seed": 1}
WILDLY = {"temperature": WILD, "top_k": 0, "top_p": 1.0}
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


CASES = (
    Case(engine="transformers"),
    Case(engine="mlx-lm"),
    Case(engine="tinygrad", gguf=True, completes=False, shows_tools=False, port_flag="--serve"),
    Case(engine="max", dtype="float32", logprobs=True),
)
WANTED = os.environ.get("TEST_ENGINES", "transformers mlx-lm tinygrad").split()
START_S = 1200 if "max" in WANTED else 300


def environment(engine: str) -> Path:
    """Return an engine's environment."""
    folder = ENVIRONMENTS / engine
    if not (folder / "bin" / "python").exists():
        lacking(f"there is no {engine} in {folder}; run: make test-engines")
    return folder


def folder_model(dtype: str, home: Path) -> Path:
    """Return a Hugging Face folder of the model, whose template knows tools."""
    python = environment("transformers") / "bin" / "python"
    gguf = write_counting_gguf(weights(), home / "counts.gguf", FIVE, ends=True)
    folder = home / "counts"
    command = [python, Path(__file__).with_name("make_folder.py"), gguf, folder, dtype]
    subprocess.run(command, check=True, timeout=START_S)
    (folder / "chat_template.jinja").write_text(TOOLS_TEMPLATE)
    return folder


def gguf_model(home: Path) -> Path:
    """Return the model with the name of a family of tokenizers that tinygrad knows."""
    path = home / "counts.gguf"
    return write_counting_gguf(weights(), path, FIVE, ends=True, pre_tokenizer="qwen2")


def serving(case: Case, home: Path, model: Path, *arguments: str, **env: str) -> Patient:
    """Return a server that takes that engine."""
    env["VLLAMA_ENGINE_PATHS"] = f"{case.engine}={environment(case.engine)}"
    flags = ("--model", str(model), "--engine", case.engine, "--context-length", "512")
    return Patient(home, *flags, *arguments, fake=False, env=env)


@pytest.fixture(
    scope="module",
    params=[case for case in CASES if case.engine in WANTED],
    ids=lambda case: case.engine,
)
def case(request) -> Case:
    environment(request.param.engine)
    return request.param


@pytest.fixture(scope="module")
def model(case, tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp(f"model-{case.engine}")
    return gguf_model(home) if case.gguf else folder_model(case.dtype, home)


@pytest.fixture(scope="module")
def server(case, model, tmp_path_factory):
    with serving(case, tmp_path_factory.mktemp(case.engine), model) as running:
        running.wait_for(r"(?m)^ready: |^Error: ", START_S)
        assert "ready: http" in running.output, running.output
        yield running


# -- answers ----------------------------------------------------------------------------------


def test_chat_whole_and_streamed_are_the_same(client, name):
    whole = client.chat(name, messages=QUESTION, options=LIMIT)
    assert (whole.message.content, whole.done_reason) == (COUNTED, "stop")
    parts = list(client.chat(name, messages=QUESTION, options=LIMIT, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert len(parts) > 3
    assert parts[-1].eval_count == whole.eval_count <= 12
    assert parts[-1].prompt_eval_count == whole.prompt_eval_count > 10


def test_generate_answers_and_stops_where_it_was_told_to(client, name):
    options = LIMIT | {"stop": [" four"]}
    told = client.generate(name, prompt=QUESTION[0]["content"], options=options)
    assert (told.response, told.done_reason) == ("one two three", "stop")


def test_an_answer_of_as_many_tokens_as_wanted(client, name):
    told = client.chat(name, messages=QUESTION, options=LIMIT | {"num_predict": 3})
    assert (told.eval_count, told.done_reason) == (3, "length")


def test_raw_text_is_continued_where_the_engine_can(case, client, name):
    asked = {"prompt": "one two", "raw": True, "options": LIMIT}
    if case.completes:
        assert client.generate(name, **asked).response.strip() == "three four five"
        return
    with pytest.raises(ollama.ResponseError, match="only chats"):
        client.generate(name, **asked)


def test_openai_whole_and_streamed_with_fields_that_it_does_not_know(v1, name):
    asked = {
        "model": name, "messages": QUESTION, "max_completion_tokens": 12,
        "user": "me", "store": False, "metadata": {"a": "b"}, "parallel_tool_calls": True,
        "extra_body": {"top_k": 1, "min_p": 0.0, "x_unknown": 1, "repetition_penalty": 1.0},
    }  # fmt: skip
    whole = v1.chat.completions.create(**asked)
    assert whole.choices[0].message.content == COUNTED
    assert (whole.choices[0].finish_reason, whole.model) == ("stop", name)
    with_usage = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(v1.chat.completions.create(**asked, **with_usage))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert {chunk.model for chunk in chunks} == {name}


def test_openais_completions_of_text(case, v1, name):
    told = v1.completions.create(model=name, prompt="What is the capital of France?", max_tokens=12)
    assert told.choices[0].text == COUNTED
    assert told.usage.prompt_tokens > 5


def test_sampling_is_not_greedy_when_it_is_not_asked_to_be(client, name):
    options = WILDLY | {"num_predict": 12}
    said = {
        client.chat(name, messages=QUESTION, options=options | {"seed": seed}).message.content
        for seed in range(3)
    }
    assert len(said) > 1


def test_tools_are_shown_where_the_engine_can(case, client, name):
    if not case.shows_tools:
        with pytest.raises(ollama.ResponseError, match="does not support tools"):
            client.chat(name, messages=QUESTION, tools=[TOOL], options=LIMIT)
        return
    plain = client.chat(name, messages=QUESTION, options=LIMIT)
    told = client.chat(name, messages=QUESTION, tools=[TOOL], options=LIMIT)
    assert told.prompt_eval_count > plain.prompt_eval_count + 20
    assert told.message.content == COUNTED


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"format": "json"}, "structured outputs"),
        ({"format": {"type": "object"}}, "structured outputs"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": [{"role": "user", "content": "x", "images": ["iVBORw0KGgo="]}]}, "vision"),
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
    # at random it meets the token that ends an answer once in fifty thousand
    with server.open("/api/chat", long | {"options": WILDLY | {"num_predict": -1}}) as answer:
        assert json.loads(answer.readline())["message"]["content"]
    told = client.chat(name, messages=QUESTION, options=LIMIT | {"num_predict": 1})
    assert told.eval_count == 1


def test_a_process_that_dies_is_started_again(client, server, name):
    before = server.engine(name)
    before.kill()
    server.wait_for("restarting")  # requests wait for the next one from now on
    told = client.chat(name, messages=QUESTION, options=LIMIT)
    assert told.message.content == COUNTED
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
    _, alive = psutil.wait_procs(tree, timeout=START_S)
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
    words = {"--port": "cannot pass --port to the engine: vllama chooses a free one"}
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
    assert "it is truncated" in done.stdout + done.stderr
