"""Token counts of llama-server beside its own log.

What a trained model says is of no matter here: its counts are compared with the log, whatever they
are.
"""

import json
import re

import pytest

from tests.e2e.conftest import COUNTS, MODEL, SMILES, find_engine, weights
from tests.e2e.counting import SMILE, write_counting_gguf
from tests.routes.test_counts import HEADER
from tests.routes.test_ollama_chat import open_stream, until
from tests.server_process import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CONTEXT = 512
ENDS = "ends"
"""A model that says one emoji of four tokens and no more."""

CAT = "cat"
"""A model that says one Japanese character, of three tokens, over and over."""

CHAT, GENERATE = "/api/chat", "/api/generate"
OPENAI, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ANTHROPIC, RESPONSES = "/v1/messages", "/v1/responses"
JAPANESE = "吾輩は猫である。名前はまだ無い。"
TOOL = {
    "type": "function",
    "function": {
        "name": "note",
        "parameters": {
            "type": "object",
            "properties": {"text": {"enum": [JAPANESE]}},
            "required": ["text"],
        },
    },
}


def turn(text="hello", **options):
    """Return a chat of Ollama's."""
    options = {"temperature": 0, "num_predict": 40} | options
    return {"messages": [{"role": "user", "content": text}], "options": options}


def text(prompt, **options):
    """Return a finished prompt of Ollama's."""
    return {"prompt": prompt, "raw": True, "options": turn(**options)["options"]}


def v1(limit=40, **more):
    """Return a chat of the other dialects."""
    message = {"role": "user", "content": "hello"}
    return {"messages": [message], "temperature": 0, "max_tokens": limit, **more}


CASES = {
    "emoji": (SMILES, CHAT, turn()),
    "emoji, cut within one": (SMILES, CHAT, turn(num_predict=37)),
    "emoji of a finished prompt": (SMILES, GENERATE, text("😀😀")),
    "emoji for OpenAI": (SMILES, OPENAI, v1()),
    "emoji, completed for OpenAI": (
        SMILES,
        COMPLETIONS,
        {"prompt": "hello", "temperature": 0, "max_tokens": 41},
    ),
    "emoji for Anthropic": (SMILES, ANTHROPIC, v1(42)),
    "emoji as a response": (
        SMILES,
        RESPONSES,
        {"input": "hello", "temperature": 0, "max_output_tokens": 43},
    ),
    "an emoji and the end": (ENDS, CHAT, turn()),
    "an emoji and the end, again": (ENDS, CHAT, turn()),
    "Japanese": (CAT, CHAT, turn("猫", num_predict=100)),
    "Japanese, one token": (CAT, CHAT, turn("猫", num_predict=1)),
    "Japanese, two tokens": (CAT, GENERATE, text("猫", num_predict=2)),
    "plain": (COUNTS, CHAT, turn()),
    "plain, a part of the prompt is cached": (COUNTS, CHAT, turn("hello you")),
    "one token": (COUNTS, CHAT, turn("hello you", num_predict=1)),
    "one token, all of the prompt is cached": (COUNTS, CHAT, turn("hello you", num_predict=1)),
    "two tokens": (COUNTS, CHAT, turn("hello you", num_predict=2)),
    "the context's end": (COUNTS, GENERATE, text("a" * 700, num_predict=-1)),
    "a prompt of one token": (COUNTS, GENERATE, text("The")),
    "a stop sequence": (COUNTS, CHAT, turn(stop=[" seven"])),
    "a stop sequence over several tokens": (COUNTS, GENERATE, text("a", stop=["x", "ix sev"])),
    "a trained model": (MODEL, CHAT, turn("Say hi in Japanese and with emoji.")),
    "a trained model that keeps to a form": (
        MODEL,
        CHAT,
        turn(num_predict=200) | {"format": {"type": "string", "enum": [JAPANESE]}},
    ),
    "a forced call": (
        MODEL,
        OPENAI,
        v1(
            200,
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": "note"}},
        ),
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a folder with the models that only these tests need."""
    folder = tmp_path_factory.mktemp("models")
    write_counting_gguf(weights(), folder / f"{ENDS}.gguf", SMILE, ends=True)
    cat = [bytes([byte]) for byte in "猫".encode()]
    write_counting_gguf(weights(), folder / f"{CAT}.gguf", cat)
    return folder


@pytest.fixture(scope="module")
def served(counting, models, tmp_path_factory):
    """Return a server with models of a short context."""
    env = find_engine()
    home = tmp_path_factory.mktemp("counted")
    arguments = (
        "--engine",
        "llama-server",
        "--context-length",
        str(CONTEXT),
        "--num-parallel",
        "1",
    )
    with Server(home, *arguments, fake=False, env=env) as server:
        server.take(counting)
        server.take(models)
        yield server


def sse(data: bytes) -> list[dict]:
    """Return the events of a stream."""
    return [json.loads(part) for part in re.findall(rb"^data: (\{.*)$", data, re.MULTILINE)]


def logged(server, model):
    """Return the generated tokens of all generations that ended, by the engine's log."""
    timings = re.compile(r"prompt eval time =[^\n]*\n[^\n]*eval time =.*?/ *(\d+) tokens")
    return [int(found[1]) for found in timings.finditer(server.engine_log(model))]


def new(server, model, before, count=1):
    """Return what is logged by now of so many new generations, and of no more."""
    until(lambda: len(logged(server, model)) >= before + count)
    found = logged(server, model)[before:]
    assert len(found) == count
    return found


def told(path, data):
    """Return prompt and generated tokens as an answer tells them, streamed or whole."""
    if path.startswith("/api/"):
        last = json.loads(data.splitlines()[-1])
        return last["prompt_eval_count"], last["eval_count"]
    if data.startswith((b"data:", b"event:")):
        last = next(each for each in reversed(sse(data)) if each.get("type") != "message_stop")
    else:
        last = json.loads(data)
    usage = last.get("response", last)["usage"]
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["completion_tokens"]
    if path == ANTHROPIC:  # by its rule, cached tokens are not among the input
        return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]
    return usage["input_tokens"], usage["output_tokens"]


def find_limit(body):
    """Return the most tokens that a body asks for; of no limit or -1, more than any answer has."""
    names = ("num_predict", "max_tokens", "max_completion_tokens", "max_output_tokens")
    given = {**body, **body.get("options", {})}
    return next((given[name] for name in names if given.get(name, -1) >= 0), 1_000_000)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("case", CASES)
def test_the_counts_are_those_of_the_engines_log(served, case, stream):
    model, path, body = CASES[case]
    asked = {"model": model, "stream": stream, **body}
    if path in (OPENAI, COMPLETIONS):
        asked["stream_options"] = {"include_usage": True}
    before = len(logged(served, model))
    status, headers, data = served.request("POST", path, asked)
    assert status == 200, data
    assert HEADER not in headers
    (generated,) = new(served, model, before)
    told_prompt, told_generated = told(path, data)
    assert told_generated == min(generated, find_limit(body))  # the engine finishes a character
    assert told_prompt > 0


def test_the_numbers_that_must_come_out(served):
    """What the log says is read above by rules of ours; here the model makes it certain."""

    def count(model, **options):
        _, reply = served.post(CHAT, {"model": model, **turn(**options), "stream": False})
        return reply["eval_count"], reply["done_reason"]

    assert count(ENDS) == (5, "stop")
    assert count(COUNTS, num_predict=7) == (7, "length")
    assert count(COUNTS, stop=[" seven"]) == (7, "stop")
    lines = served.lines(CHAT, {"model": SMILES, **turn(num_predict=40)})
    assert lines[-1]["eval_count"] == 40
    assert "".join(line["message"]["content"] for line in lines).startswith("😀" * 9)
    assert len(lines) < 16


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_several_choices_are_the_sum_of_theirs(served, stream):
    before = len(logged(served, SMILES))
    body = v1(9, n=3, stream=stream, stream_options={"include_usage": True})
    data = served.request("POST", OPENAI, {"model": SMILES, **body})[2]
    assert told(OPENAI, data)[1] == sum(min(made, 9) for made in new(served, SMILES, before, 3))


def test_an_answer_after_one_that_nobody_waited_for(served):
    """The engine says nothing of the one, and the other is counted for itself."""
    served.post(CHAT, {"model": SMILES, **turn(num_predict=1), "stream": False})
    client = open_stream(served, CHAT, {"model": SMILES, **turn(num_predict=450)})
    assert client.recv(1000)
    client.close()
    before = len(logged(served, SMILES))
    _, reply = served.post(CHAT, {"model": SMILES, **turn(num_predict=24), "stream": False})
    assert reply["eval_count"] == 24
    until(lambda: logged(served, SMILES)[-1] == 24)
    assert len(logged(served, SMILES)) - before in (1, 2)  # it had ended before it was told to


def test_with_log_probabilities_each_token_is_counted_once(served):
    body = turn(num_predict=20) | {"stream": False, "logprobs": True}
    served.post(CHAT, {"model": SMILES, **body})  # loaded anew for them, with a log of its own
    before = len(logged(served, SMILES))
    _, reply = served.post(CHAT, {"model": SMILES, **body})
    until(lambda: len(logged(served, SMILES)) > before)
    assert set(logged(served, SMILES)[before:]) == {reply["eval_count"]}
    assert reply["message"]["content"] == "😀" * (reply["eval_count"] // 4)
