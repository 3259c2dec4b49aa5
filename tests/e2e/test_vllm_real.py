"""vLLM for real, on its CPU build, with the model that counts: `make test-vllm`.

A start takes half a minute on a quiet machine, so one server serves most of the tests, in the order
in which they stand; the last ones end it.
"""

import json
import os
import re
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import ollama
import psutil
import pytest

from tests.e2e.bigram import PLAIN, write_bigram
from tests.e2e.conftest import Patient, weights
from tests.e2e.counting import NUMBERS, write_counting_gguf
from tests.lacking import lacking
from tests.routes.test_ollama_chat import until
from tests.server_process import Server
from vllama.engines.vllm.arguments import build_transfer_config
from vllama.supervise import shim

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
START_S = 300
VARIABLE = "VLLAMA_TEST_VLLM"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TEN = {"num_predict": 10}
FIND_TIER = """
import inspect, json, sys
from vllm.config import KVTransferConfig
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
config = KVTransferConfig(**json.loads(sys.argv[1]))
extra = config.kv_connector_extra_config
assert extra["spec_name"] in OffloadingSpecFactory._registry
(tier,) = extra["secondary_tiers"]
fields = {name: value for name, value in tier.items() if name != "type"}
inspect.signature(SecondaryTierFactory.get_tier_class(tier)).bind_partial(**fields)
"""
COUNTED = "".join(NUMBERS)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
# of letters none is likelier than another: the model would like to say something else
LETTERS = {"type": "string", "pattern": "^[a-z]{40}$"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ROOM = 100
# what a template of a model with tools looks like (Hermes, as Qwen's)
TOOLS_TEMPLATE = """{%- if tools %}<|im_start|>system
Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
Call one with <tool_call>{\\"name\\": <name>, \\"arguments\\": <object>}</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] or '' }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture(scope="module")
def environment() -> Path:
    """Return the folder of an environment with vLLM (and gguf and accelerate, for the model)."""
    given = os.environ.get(VARIABLE)
    folder = Path(given) if given else ROOT / ".venv/data/environments/vllm"
    if not (folder / "bin" / "python").exists():
        lacking(f"there is no vLLM in {folder}; run: make test-vllm (or set {VARIABLE})")
    weights()
    return folder


@pytest.fixture(scope="module")
def model(environment, tmp_path_factory) -> Path:
    """Return a Hugging Face folder of the model that counts, with a template that knows tools."""
    top = tmp_path_factory.mktemp("model")
    gguf = write_counting_gguf(weights(), top / "counts.gguf")
    return make_folder(environment, gguf, top / "counts", TOOLS_TEMPLATE)


def make_folder(environment: Path, gguf: Path, folder: Path, template: str | None = None) -> Path:
    """Make a Hugging Face folder of a GGUF; return it."""
    command = [environment / "bin" / "python", Path(__file__).with_name("make_folder.py")]
    subprocess.run([*command, gguf, folder], check=True, timeout=START_S)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def serving(home: Path, environment: Path, *arguments: str) -> Patient:
    """Return a server that takes that vLLM."""
    paths = {"VLLAMA_ENGINE_PATHS": f"vllm={environment}", "TMPDIR": str(home / "tmp")}
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    return Patient(home, "--engine", "vllm", *arguments, fake=False, env=paths)


@pytest.fixture(scope="module")
def server(environment, model, tmp_path_factory):
    home = tmp_path_factory.mktemp("vllm")
    arguments = ("--model", str(model), "--context-length", "2048")
    with serving(home, environment, *arguments) as running:
        running.wait_for(r"(?m)^ready: |^Error: ", START_S)
        assert "ready: http" in running.output, running.output
        yield running


def engines(server: Server) -> list[psutil.Process]:
    """Return the engines; `ps` has one row for a model, with the newest one's process.

    Each has a guard before it, whose command line ends with the same.
    """
    lines = [(process, process.cmdline()) for process in server.tree()]
    return [
        process
        for process, line in lines
        if "--served-model-name" in line and shim.__file__ not in line
    ]


def chat_engine(server: Server) -> psutil.Process:
    """Return the process that chats; one for vectors is started beside it."""
    (process,) = [each for each in engines(server) if "--runner" not in each.cmdline()]
    return process


# -- answers ----------------------------------------------------------------------------------


def test_the_plan_tells_its_numbers(server, name):
    server.wait_for(r"cache of .* tokens, 2(\.0)? KiB each")
    server.wait_for("parsed with hermes")
    (row,) = server.get("/api/ps")["models"]
    assert row["context_length"] == 2048


def test_chat_whole_and_streamed_are_the_same(client, name):
    whole = client.chat(name, messages=QUESTION, options=TEN)
    parts = list(client.chat(name, messages=QUESTION, options=TEN, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert whole.message.content == COUNTED
    assert parts[-1].eval_count == whole.eval_count == 10
    assert parts[-1].prompt_eval_count == whole.prompt_eval_count > 10


def test_raw_generation_continues_the_text(client, name):
    told = client.generate(name, prompt="one two", raw=True, options={"num_predict": 2})
    assert told.response == " three four"


def test_a_format_holds_in_chats_and_in_raw_text(client, name):
    options = {"num_predict": ROOM}
    chat = client.chat(name, messages=QUESTION, options=options, format=SCHEMA)
    assert json.loads(chat.message.content)["city"] in ("Paris", "Rome")
    raw = client.generate(name, prompt="JSON: ", raw=True, options=options, format=SCHEMA)
    assert json.loads(raw.response)["city"] in ("Paris", "Rome")


def test_stop_sequences_as_many_as_one_likes(client, name):
    stops = [*"0123456789", " three"]
    cut = client.chat(name, messages=QUESTION, options=TEN | {"stop": stops})
    assert (cut.message.content, cut.done_reason) == (" one two", "stop")


def test_a_seed_repeats_an_answer_and_a_long_prompt_with_one_ends_nothing(client, server, name):
    options = {"num_predict": 12, "seed": 7}
    one, two, other = (
        client.chat(name, messages=QUESTION, options=options | {"seed": seed}, format=LETTERS)
        for seed in (7, 7, 8)
    )
    assert one.message.content == two.message.content != other.message.content
    before = chat_engine(server).pid
    # longer than what is scheduled at once by itself: this is what ended the CPU build
    long = client.generate(name, prompt="a b c d " * 480, raw=True, options=options)
    assert long.prompt_eval_count > 1900
    assert chat_engine(server).pid == before


def test_log_probabilities_need_no_other_start(v1, server, name):
    before = chat_engine(server).pid
    chat = v1.chat.completions.create(
        model=name, messages=QUESTION, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
    )
    tokens = chat.choices[0].logprobs.content
    assert len(tokens) == 3 and all(len(token.top_logprobs) == 2 for token in tokens)
    text = v1.completions.create(model=name, prompt="1 2 3", max_tokens=3, logprobs=1)
    assert len(text.choices[0].logprobs.tokens) == 3
    assert chat_engine(server).pid == before


def test_several_choices_also_when_they_cannot_differ(v1, name):
    asked = {"model": name, "messages": QUESTION, "max_tokens": 6, "n": 2}
    greedy = v1.chat.completions.create(**asked, temperature=0)
    assert [choice.message.content for choice in greedy.choices] == ["".join(NUMBERS[:6])] * 2
    drawn = v1.chat.completions.create(**asked, temperature=1.5, seed=3)
    assert len(drawn.choices) == 2 and drawn.usage.completion_tokens == 12


def test_usage_and_the_end_of_a_stream(v1, name):
    chunks = list(
        v1.chat.completions.create(
            model=name,
            messages=QUESTION,
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].usage.completion_tokens == 5 and chunks[-1].usage.prompt_tokens > 10
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


def test_a_forced_call_is_a_call_and_keeps_to_the_schema(v1, name):
    """The model itself would count, wherever it may."""
    asked = {"model": name, "messages": QUESTION, "tools": [TOOL],
             "max_tokens": ROOM}  # fmt: skip
    whole = v1.chat.completions.create(**asked, tool_choice="required")
    (call,) = whole.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) in ({"city": "Paris"}, {"city": "Rome"})
    chunks = v1.chat.completions.create(
        **asked, stream=True, tool_choice={"type": "function", "function": {"name": "get_weather"}}
    )
    pieces = [c.choices[0].delta.tool_calls for c in chunks if c.choices]
    names = [p[0].function.name for p in pieces if p and p[0].function.name]
    assert names == ["get_weather"]
    arguments = "".join(p[0].function.arguments or "" for p in pieces if p)
    assert json.loads(arguments) in ({"city": "Paris"}, {"city": "Rome"})


def test_tools_may_go_unused(client, name):
    told = client.chat(name, messages=QUESTION, tools=[TOOL], options=TEN)
    assert told.message.content == COUNTED


def test_tokens_there_and_back(server, name):
    _, tokens = server.post("/api/tokenize", {"model": name, "text": "hello world"})
    _, text = server.post("/api/detokenize", {"model": name, "tokens": tokens["tokens"]})
    assert text["text"] == "hello world"


def test_what_the_model_lacks_is_said(server, name):
    picture = {"role": "user", "content": "x", "images": ["iVBORw0KGgo="]}
    status, told = server.post("/api/chat", {"model": name, "messages": [picture]})
    assert status == 400 and "does not support" in told["error"]


def test_32_streams_are_answered_at_once(server, name):
    """Every stream has its first token before any has its last."""
    body = {"model": name, "options": {"num_predict": 24, "temperature": 0}}
    started = threading.Barrier(32, timeout=START_S)
    texts: dict[int, str] = {}

    def ask(number: int) -> None:
        messages = [{"role": "user", "content": f"Count from {number} on, for ever."}]
        with server.open("/api/chat", body | {"messages": messages}) as answer:
            first = json.loads(answer.readline())
            started.wait()  # nobody reads on before all have begun
            rest = [json.loads(line) for line in answer]
        texts[number] = "".join(part["message"]["content"] for part in [first, *rest])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 32 and all(texts.values())


def test_vectors_come_from_a_process_of_their_own(client, server, name):
    told = client.embed(name, input=["the cat sat", "a cat was sitting", "tax law"])
    assert len(told.embeddings) == 3
    norm = sum(value * value for value in told.embeddings[0])
    assert norm == pytest.approx(1, abs=1e-3)
    assert told.prompt_eval_count > 5
    assert len(engines(server)) == 2 and chat_engine(server).is_running()


# -- a model that always says one text ---------------------------------------------------------

MARKS = ("[THINK]", "[/THINK]", "<|tool_call_start|>", "<|tool_call_end|>", "<|im_end|>")
SAYS = (
    "[THINK]Perhaps.[/THINK]Looking. "
    '<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|><|im_end|>'
)


def test_special_tokens_and_the_models_own_sampling(environment, tmp_path):
    """Its call and thinking are in special tokens; without its sampling it says other texts."""
    folder = write_bigram(
        tmp_path / "says",
        [SAYS, "One.", "Two.", "Three.", "Four.", "Five."],
        MARKS,
        template=PLAIN + "{# [THINK] <|tool_call_start|> #}",
        generation={"do_sample": True, "temperature": 1e-4, "top_k": 1},
    )
    with serving(
        tmp_path / "home", environment, "--model", str(folder), "--context-length", "512"
    ) as own:
        own.wait_for(r"(?m)^ready: |^Error: ", START_S)
        (row,) = own.get("/api/ps")["models"]
        asked = {"model": row["name"], "messages": QUESTION, "tools": [TOOL], "stream": False}
        for _ in range(4):
            _, told = own.post("/api/chat", asked)
            message = told["message"]
            assert (message["thinking"], message["content"]) == ("Perhaps.", "Looking. ")
            assert message["tool_calls"][0]["function"]["arguments"] == {"city": "Paris"}
            message = own.post("/v1/chat/completions", asked)[1]["choices"][0]["message"]
            assert (message["reasoning"], message["content"]) == ("Perhaps.", "Looking. ")
            assert len(message["tool_calls"]) == 1
        lines = own.lines("/api/chat", {**asked, "stream": True})
        assert "".join(line["message"]["content"] for line in lines) == "Looking. "
        status, told = own.post("/v1/chat/completions", {**asked, "guided_regex": "(("})
        assert status == 400, told
        _, shown = own.post("/api/show", {"model": row["name"]})
        assert "PARAMETER top_k 1\n" in shown["modelfile"]


# -- ends -------------------------------------------------------------------------------------


def litter(home: Path) -> list[Path]:
    """Return what lies in the engines' temporary folders."""
    return list((home / "tmp").glob("vllama-*"))


def shared_memory(tree: list[psutil.Process]) -> set[Path]:
    """Return the shared memory that these processes have mapped."""
    return {Path(path) for path in shim.list_shared_memory(process.pid for process in tree)}


def test_a_dead_core_is_a_crash_though_it_ends_with_zero(client, server, name):
    body = {"model": name, "messages": QUESTION, "options": {"num_predict": 1900}}
    for _ in range(8):  # the core may have made the whole answer before its first line is sent
        before = chat_engine(server)
        tree = before.children(recursive=True)
        core = next(each for each in tree if "EngineCore" in "".join(each.cmdline()))
        with server.open("/api/chat", body) as answer:
            answer.readline()
            core.kill()
            last = [json.loads(line) for line in answer][-1]
        if "error" in last:
            break
        with suppress(ollama.ResponseError):  # this one may find out that the core is dead
            client.chat(name, messages=QUESTION, options=TEN)
        client.chat(name, messages=QUESTION, options=TEN)
    assert "the engine crashed: its core exited without" in last.get("error", ""), last
    again = client.chat(name, messages=QUESTION, options=TEN)
    assert again.message.content == COUNTED
    assert chat_engine(server).pid != before.pid


def test_nothing_is_left_when_vllama_is_killed_while_it_serves(server, name):
    tree = server.tree()
    assert any("EngineCore" in "".join(p.cmdline()) for p in tree)
    shared = shared_memory(tree)
    assert shared and litter(server.home)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    _, alive = psutil.wait_procs(tree, timeout=START_S)
    assert not alive
    assert not litter(server.home) and not [path for path in shared if path.exists()]


def test_nothing_is_left_when_vllama_is_killed_while_it_warms_up(environment, model, tmp_path):
    server = serving(tmp_path, environment, "--model", str(model))
    server.start()
    try:
        # from here on until it is ready vLLM takes no notice of SIGTERM
        until(lambda: "Initializing a V1 LLM engine" in server.engine_log("counts"), START_S)
        tree = server.tree()
        shared = shared_memory(tree)
        assert len(tree) >= 3
    finally:
        server.process.kill()
        server.process.wait()
    _, alive = psutil.wait_procs(tree, timeout=START_S)
    assert not alive
    assert not litter(tmp_path) and not [path for path in shared if path.exists()]


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (("--no-such-flag",), {}, "does not support the arguments --no-such-flag"),
        # the planner's own arithmetic, and the engine's where that cannot see it
        (("--kv-cache-memory-bytes", "900000G"), {}, "model requires more system memory"),
        ((), {"VLLM_CPU_KVCACHE_SPACE": "900000"}, "GiB of its memory node is free"),
    ],
)
def test_a_start_that_fails_ends_with_a_sentence(
    environment, model, tmp_path, arguments, variables, said
):
    # nothing else is tried: each start of vLLM takes a minute
    server = serving(tmp_path, environment, "--model", str(model), "--strict", "--", *arguments)
    server.env |= variables
    server.start()
    server.process.wait(timeout=START_S)
    assert server.process.returncode != 0
    assert re.search(r"^Error: cannot (start|load) .*" + re.escape(said), server.output, re.M)
    assert not litter(tmp_path)


def test_a_missing_folder_is_said_before_anything_starts(environment, tmp_path):
    server = serving(tmp_path, environment, "--model", "/nowhere/model")
    server.process = subprocess.Popen(
        server.command, env=server.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    output, _ = server.process.communicate(timeout=START_S)
    assert server.process.returncode != 0 and "/nowhere/model" in output


def test_it_knows_the_file_tier(environment):
    """The tier itself needs a GPU: names and arguments are those of the installed version."""
    config = build_transfer_config(Path("/nowhere"), 2**30)
    subprocess.run([environment / "bin" / "python", "-c", FIND_TIER, config], check=True)
