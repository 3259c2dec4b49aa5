"""What a model's file and a request may cost llama-server; settings that it refuses; replays."""

import json
import subprocess
import sys
import time

import psutil
import pytest

from tests.chat.templates.jinja.test_judge import DOUBLES
from tests.e2e.conftest import COUNTS, ENGINE, Patient, find_engine, weights
from tests.e2e.counting import WILD, write_counting_gguf
from vllama.observe.captures.folder import list_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUESTION = [{"role": "user", "content": "Tell me a story."}]
UNSURE = {"model": COUNTS, "stream": False, "options": {"temperature": WILD, "top_k": 0}}
SAMPLED = {
    "/api/chat": {"messages": QUESTION},
    "/api/generate": {"prompt": "Tell me a story."},
    "/v1/chat/completions": {"messages": QUESTION, "max_tokens": 8},
    "/v1/completions": {"prompt": "Tell me a story.", "max_tokens": 8},
    "/v1/responses": {"input": "Tell me a story.", "max_output_tokens": 8},
    "/v1/messages": {"messages": QUESTION, "max_tokens": 8},
}
GIB = 1024**3


@pytest.fixture(scope="module")
def server(counting, tmp_path_factory):
    """Return a server that records, with a quantized cache and without flash attention."""
    home = tmp_path_factory.mktemp("limits")
    quantized = {"VLLAMA_KV_CACHE_TYPE": "q4_0", "VLLAMA_FLASH_ATTENTION": "false"}
    env = find_engine() | quantized
    with Patient(home, *ENGINE, "--capture", "50", fake=False, env=env) as running:
        running.take(counting)
        write_counting_gguf(weights(), running.models / "doubles.gguf", template=DOUBLES)
        write_counting_gguf(weights(), running.models / "second.gguf", tool_template=DOUBLES)
        yield running


def list_engines(server) -> dict[psutil.Process, list[str]]:
    """Return the server's engines and their shims, with their command lines."""
    return {one: words for one, words in server.commands().items() if "--model" in words}


def test_a_template_that_doubles_starts_no_engine_and_delays_no_other(server):
    status, told = server.post("/api/chat", {"model": "doubles", "messages": QUESTION})
    assert status == 400 and "cannot render the model's chat template: it used" in told["error"]
    assert not list_engines(server)
    asked = {"model": COUNTS, "messages": QUESTION, "stream": False, "options": {"num_predict": 4}}
    assert server.post("/api/chat", asked)[1]["message"]["content"] == " one two three four"
    assert server.post("/api/chat", {"model": "doubles", "messages": QUESTION})[0] == 400
    # for embeddings the engine has a constant template in its place
    status, told = server.post("/api/embed", {"model": "doubles", "input": "a", "keep_alive": 0})
    assert status == 200 and len(told["embeddings"]) == 1


def test_a_second_template_that_doubles_starts_no_engine(server):
    status, told = server.post("/api/chat", {"model": "second", "messages": QUESTION})
    assert status == 400 and "cannot render the model's chat template: it used" in told["error"]
    assert not any("second.gguf" in " ".join(words) for words in list_engines(server).values())


def test_a_quantized_cache_needs_flash_attention(server):
    status, plan = server.post("/api/plan", {"model": COUNTS})
    assert status == 200
    assert "KV cache in f16: q4_0 needs flash attention, which is off" in json.dumps(plan)


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"dry_multiplier": 1, "dry_penalty_last_n": 2_147_483_647}, 200),
        ({"dry_multiplier": 1, "dry_penalty_last_n": -1}, 200),
        ({"repeat_last_n": -1, "repeat_penalty": 1.1}, 200),
        ({"dry_multiplier": 1, "dry_sequence_breakers": ["x"] * 32}, 200),
        ({"dry_multiplier": 1, "dry_sequence_breakers": ["x"] * 20_000}, 400),
        ({"n_probs": 100}, 200),
        ({"n_probs": 1_000_000}, 400),
        ({"logit_bias": {f"word{number}": 1 for number in range(2000)}}, 200),
        ({"samplers": ["top_k"] * 10_000}, 400),
        ({"grammar": "root ::= " + " | ".join(['"a"'] * 50_000)}, 400),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_fields_take_no_more_memory_than_the_model(server, more, status):
    asked = {"model": COUNTS, "prompt": "one", "max_tokens": 2, **more}
    assert server.post("/v1/completions", asked)[0] == status
    assert all(one.memory_info().rss < GIB for one in list_engines(server))


@pytest.mark.parametrize("name", ["dry_base", "min_keep", "mirostat", "samplers", "ignore_eos"])
def test_a_field_of_a_wrong_type_is_named(server, name):
    for path in ("/v1/completions", "/v1/chat/completions"):
        asked = {"model": COUNTS, "prompt": "one", "messages": QUESTION, name: [{}]}
        status, told = server.post(path, asked)
        assert status == 400 and "json.exception" not in json.dumps(told)
        assert told["error"]["message"].startswith(f"cannot read '{name}': type must be ")


def find_capture(server, path: str, user: str) -> str:
    """Return the file of the sampled request of a route; it is written after the response."""
    while True:
        for file in list_files(server.home / "data" / "captures"):
            request = json.loads(file.read_bytes())["request"]
            if request["path"] == path and f"by {user}" in json.dumps(request["body"]):
                return str(file)
        time.sleep(0.01)


TWICE = [(path, {"n": 2}) for path in ("/v1/chat/completions", "/v1/completions")]


@pytest.mark.parametrize(("path", "more"), [*((path, {}) for path in SAMPLED), *TWICE])
def test_a_sampled_request_is_replayed_exactly(server, path, more):
    user = "two" if more else "one"
    limit = {"num_predict": 8} if path.startswith("/api") else {}
    body = UNSURE | SAMPLED[path] | {"options": UNSURE["options"] | limit} | more
    body |= {"user": f"by {user}"}
    assert server.post(path, body)[0] == 200
    command = [
        sys.executable,
        "-m",
        "vllama",
        "replay",
        find_capture(server, path, user),
        "--times",
        "2",
    ]
    env = server.env | {"OLLAMA_HOST": server.url}
    done = subprocess.run(command, env=env, text=True, capture_output=True, check=False)
    assert done.stdout.endswith("Same: the responses are identical.\n"), done.stdout + done.stderr
    assert done.returncode == 0
