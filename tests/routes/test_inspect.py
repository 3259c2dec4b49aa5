"""`inspect` in all dialects: what is collected, how answers are steered, and what is refused."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
import threading

import httpx
import pytest

from tests.chaos.asks import CHATS, TEXTS, read
from tests.server_process import LIMIT_S, Server
from tests.tiny import write_tiny_gguf
from vllama.models.headers.safetensors import read_header, write_tensor

pytestmark = pytest.mark.slow  # servers as processes of their own

NAME = "wide"
WIDTH = 64
TEXT = "Grüße @tokens=3"
COLLECT = {"collect": {"residual": [1, 0.0]}}
ROW = [float(n) for n in range(WIDTH)]
DIALECTS = pytest.mark.parametrize("dialect", [*CHATS, *TEXTS], ids=lambda one: one.path)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    env = {"VLLAMA_CAPTURE": "1000", "VLLAMA_INSPECT_LIMIT": "512KiB"}
    home = tmp_path_factory.mktemp("inspect")
    with Server(home, "--inspect", env=env) as server:
        server.model(NAME)
        write_tiny_gguf(server.models / "other.gguf", seed=1)
        yield server


def ask(server, dialect, inspect, *, stream=False, model=NAME, text=TEXT, **more):
    body = {"model": model, **dialect.ask(text, 100), "stream": stream, "inspect": inspect} | more
    with httpx.Client(base_url=server.url, timeout=LIMIT_S) as client:
        reply = client.post(dialect.path, json=body)
    return reply, read(dialect, reply, reply.text, stream=stream)


def run(server, *arguments: str) -> str:
    """Return what a command says, as the server's user."""
    command = [sys.executable, "-m", "vllama", *arguments]
    env = server.env | {"OLLAMA_HOST": f"127.0.0.1:{server.port}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def find(reply, *, stream):
    """Return the `inspect` of an answer; in a stream it is in one event, which is not the last."""
    if not stream:
        return reply.json()["inspect"]
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines()]
    values = [json.loads(line) for line in lines if line.startswith("{")]
    places = [number for number, value in enumerate(values) if "inspect" in value]
    last = len(values) - 1 if "[DONE]" not in lines else len(values)
    assert len(places) == 1 and places[0] < last
    return values[places[0]]["inspect"]


@pytest.mark.parametrize("stream", [False, True])
@DIALECTS
def test_layers_are_collected(server, dialect, stream) -> None:
    reply, answer = ask(server, dialect, COLLECT, stream=stream)
    assert (answer.text, answer.done, answer.odd) == ("tok0 tok1 tok2 ", True, "")
    residual = find(reply, stream=stream)["residual"]
    layers, tokens, width = residual["shape"]
    assert (layers, width, residual["layers"]) == (2, WIDTH, [0, 1])
    assert (residual["dtype"], residual["order"]) == ("float32", "layer, token, value")
    numbers = struct.unpack(f"<{layers * tokens * width}f", base64.b64decode(residual["data"]))
    expected = [
        1000 * layer + token + place / 8
        for layer in range(layers)
        for token in range(tokens)
        for place in range(width)
    ]
    assert list(numbers) == expected
    text = "".join(residual["tokens"])
    assert TEXT in text and text.endswith("tok0 tok1 tok2")  # the last token was in no layer
    assert len(residual["tokens"]) == len(residual["token_ids"]) == tokens
    assert {"ü", ""} <= set(residual["tokens"])  # one character of two tokens


@pytest.mark.parametrize("stream", [False, True])
@DIALECTS
def test_answers_are_steered(server, dialect, stream) -> None:
    steer = [{"vector": ROW, "layers": [1], "strength": 0.5}, {"vector": ROW, "layers": [0, 1]}]
    _, answer = ask(server, dialect, {"steer": steer}, stream=stream)
    assert answer.text.startswith("0.5*(0.0,)@[1] 1*(0.0, 0.0)@[0, 1] tok0 ")
    assert ask(server, dialect, {}, stream=stream)[1].text == "tok0 tok1 tok2 "


def test_requests_at_once_keep_their_own(server) -> None:
    found = {}

    def play(number: int) -> None:
        vector = [float(number)] * WIDTH
        steer = [{"vector": vector, "layers": [0]}]
        reply, answer = ask(
            server, CHATS[0], {"steer": steer, **COLLECT}, text=f"{number} @tokens=2"
        )
        found[number] = answer.text, "".join(reply.json()["inspect"]["residual"]["tokens"])

    threads = [threading.Thread(target=play, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (text, tokens) in found.items():
        assert text.startswith(f"1*({number}.0,)@[0] ") and f"{number} @tokens=2" in tokens
    assert len(found) == 8


def test_an_ordinary_request_is_sent_as_always(server) -> None:
    ask(server, CHATS[2], None)
    sent = server.sent(NAME)
    assert sent["stream"] is True
    assert not {"vllm_xargs", "inspect", "return_token_ids"} & set(sent)


REFUSED = {
    "layer 99": ({"collect": {"residual": [99]}}, "has layers 0 to 1"),
    "layer -1": ({"collect": {"residual": [-1]}}, "has layers 0 to 1"),
    "layer to steer": ({"steer": [{"vector": ROW, "layers": [2]}]}, "has layers 0 to 1"),
    "no layer": ({"collect": {"residual": []}}, "collect.residual"),
    "words": ({"collect": {"residual": ["1"]}}, "collect.residual"),
    "half": ({"collect": {"residual": [0.5]}}, "layer 0.5"),
    "63 numbers": ({"steer": [{"vector": ROW[1:], "layers": [1]}]}, "needs 64"),
    "large": ({"steer": [{"vector": [1e39] * WIDTH, "layers": [1]}]}, "float32"),
    "strength": ({"steer": [{"vector": ROW, "layers": [1], "strength": 1e39}]}, "strength"),
    "no numbers": ({"steer": [{"vector": [None] * WIDTH, "layers": [1]}]}, "steer[0].vector"),
    "name": ({"steer": [{"vector": "calm", "layers": [1]}]}, "a list of numbers, not as a"),
    "other field": ({"collect": {"attention": [1]}}, "attention"),
    "hook": ({"apply_hooks": "x"}, "apply_hooks"),
    "no object": ("all", "cannot read 'inspect'"),
    "list": ([1], "cannot read 'inspect'"),
}


@pytest.mark.parametrize("given", REFUSED)
@DIALECTS
def test_wrong_requests_are_refused(server, dialect, given) -> None:
    inspect, words = REFUSED[given]
    reply, answer = ask(server, dialect, inspect)
    assert (reply.status_code, answer.odd) == (400, "")
    assert words in answer.error


@DIALECTS
def test_no_code_reaches_the_engine(server, dialect) -> None:
    hooks = [{"fn": {"cloudpickle": "gASVAA=="}, "layer_indices": [0]}]
    ask(server, dialect, None)
    before = server.stats(NAME)["requests"]
    for more in (
        {"vllm_xargs": {"apply_hooks": hooks}},
        {"apply_hooks": hooks},
        {"extra_args": {"apply_hooks": hooks}},
        {"options": {"vllm_xargs": {"apply_hooks": hooks}}},
        {"extra_body": {"vllm_xargs": {"apply_hooks": hooks}}},
    ):
        reply, answer = ask(server, dialect, COLLECT, **more)
        assert (reply.status_code, answer.odd) == (403, ""), more
    assert ask(server, dialect, {**COLLECT, "vllm_xargs": {}})[0].status_code == 400
    assert server.stats(NAME)["requests"] == before


def test_nan_is_refused(server) -> None:
    for number in ("NaN", "1e999", "-Infinity"):
        vector = f"[{', '.join([number] * WIDTH)}]"
        body = f'{{"model": "{NAME}", "messages": [], "inspect": {{"steer": [{{"vector": {vector}, '
        reply = httpx.post(f"{server.url}/api/chat", content=body + '"layers": [1]}]}}')
        assert reply.status_code == 400


def test_no_more_is_collected_than_the_limit(server) -> None:
    """512 KiB are 1,024 tokens of two layers with 64 numbers of four bytes each."""
    _, answer = ask(server, CHATS[0], COLLECT, options={"num_predict": 2000})
    assert "cannot collect 2 layers of" in answer.error and "or 99" in answer.error
    _, answer = ask(server, CHATS[0], COLLECT, text="word " * 1000, options={"num_predict": 1})
    assert "cannot collect" in answer.error
    _, answer = ask(server, CHATS[0], COLLECT, options={"num_predict": 0})
    assert "cannot collect activations without a response" in answer.error
    reply, _ = ask(server, CHATS[0], COLLECT, options={})
    assert reply.status_code == 200
    limit = server.sent(NAME)["max_tokens"]
    assert 900 < limit < 1024
    ask(server, CHATS[0], {"collect": {"residual": [0]}}, options={})
    assert server.sent(NAME).get("max_tokens") != limit


def test_of_several_choices_nothing_is_collected(server) -> None:
    for dialect, more in ((CHATS[2], {"n": 2}), (TEXTS[0], {"prompt": ["a", "b"]})):
        _, answer = ask(server, dialect, COLLECT, **more)
        assert "cannot collect from 2 choices" in answer.error


def test_what_was_collected_is_in_no_capture(server) -> None:
    ask(server, CHATS[0], COLLECT, text="secret @tokens=3")
    ask(server, CHATS[0], None, text="public @tokens=3")
    captures = server.home / "data" / "captures"
    deadline = threading.Event()
    for _ in range(100):
        texts = [path.read_text() for path in captures.rglob("*.json")]
        if any("public" in text for text in texts):
            break
        deadline.wait(0.1)
    assert any("public" in text for text in texts)
    assert not any("secret" in text for text in texts)


def test_the_command_sends_a_file_and_writes_one(server, tmp_path) -> None:
    file, out = tmp_path / "row.safetensors", tmp_path / "acts.safetensors"
    file.write_bytes(write_tensor("x", "F16", (1, WIDTH), struct.pack(f"<{WIDTH}e", *ROW), {}))
    arguments = ("inspect", NAME, TEXT, "--chat", "--tokens", "3", "--steer", f"{file}@1=2")
    line, said = run(server, *arguments).splitlines()
    layers, tokens, width = map(int, line.removesuffix(" float32").split(" x "))
    assert (layers, width) == (2, WIDTH) and said.startswith("2*(0.0,)@[1] ")
    assert f"float32, saved to {out}" in run(server, *arguments, "-o", str(out))
    entries, about = read_header(out)
    assert (entries["residual"].dtype, entries["residual"].shape) == ("F32", [2, tokens, WIDTH])
    assert (about["prompt"], about["engine"], about["answer"]) == (TEXT, "fake", said)
    told = json.loads(run(server, *arguments, "--json"))
    assert (told["shape"], told["answer"]) == ([2, tokens, WIDTH], said)


def test_an_engine_that_was_not_started_for_it_says_so(tmp_path) -> None:
    with Server(tmp_path) as server:
        server.model(NAME)
        for dialect in (*CHATS, *TEXTS):
            reply, answer = ask(server, dialect, COLLECT)
            assert (reply.status_code, answer.odd) == (400, "")
            assert "cannot inspect wide:latest" in answer.error
            assert "start the server with --inspect" in answer.error
