"""`serve --upstream`: the front before servers that somebody else started."""

import json
import socket
import subprocess
import sys

import pytest

from tests.ports import free_port
from tests.routes.test_ollama_chat import ENDLESS, WORDS, sse, until, user
from tests.server_process import FAKE, Server

# real processes, one after another: not for every save
pytestmark = pytest.mark.slow


class Elsewhere:
    """A fake engine that the test starts, as somebody else would."""

    def __init__(self, *switches):
        self.port = free_port()
        self.switches = switches
        self.process = None
        self.start()

    def start(self):
        command = [sys.executable, str(FAKE / "engine.py"), "--port", str(self.port)]
        self.process = subprocess.Popen([*command, "--model", "org/big", *self.switches])
        until(self.answers)

    def answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True

    def stop(self):
        self.process.kill()
        self.process.wait()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def stats(self):
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=240)
        try:
            connection.request("GET", "/__stats")
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


@pytest.fixture
def two():
    servers = [Elsewhere("--token-interval", "0.005") for _ in range(2)]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Return a server that somebody else started, and vllama before it."""
    there = Elsewhere()
    try:
        with Server(tmp_path_factory.mktemp("x"), "--upstream", there.url, fake=False) as server:
            yield there, server
    finally:
        there.stop()


def chat(server):
    return server.post("/api/chat", {"model": "org/big", **user(), "stream": False})


def test_its_models_are_listed_and_served_and_it_is_left_alone(two, tmp_path):
    with Server(tmp_path, "--upstream", f"{two[0].url}/v1", fake=False) as server:
        names = [row["name"] for row in server.get("/api/tags")["models"]]
        assert "org/big:latest" in names
        for name in ("org/big", "org/big:latest", "ORG/BIG"):
            body = {"model": name, **user(), "stream": False}
            status, reply = server.post("/api/chat", body)
            assert (status, reply["model"], reply["message"]["content"]) == (200, name, WORDS)
        assert server.get("/v1/models/org/big")["id"] == "org/big"
        events = sse(server, "/v1/chat/completions", {"model": "org/big", **user(), "stream": True})
        assert {event["model"] for event in events} == {"org/big"}
        row = next(row for row in server.get("/api/ps")["models"] if row["engine"] == "external")
        assert row["state"] == "ready"
        assert server.post("/api/generate", {"model": "org/big", "keep_alive": 0})[0] == 200
        until(lambda: not server.get("/api/ps")["models"])
        assert chat(server)[0] == 200
    assert two[0].answers()


def test_the_key_is_sent(tmp_path):
    elsewhere = Elsewhere("--api-key", "sesame")
    try:
        options = ("--upstream", elsewhere.url, "--upstream-key", "sesame")
        with Server(tmp_path, *options, fake=False) as server:
            assert chat(server)[0] == 200
    finally:
        elsewhere.stop()


def test_two_servers_share_the_work_and_stand_in_for_each_other(two, tmp_path):
    options = ("--upstream", two[0].url, "--upstream", two[1].url)
    with Server(tmp_path, *options, fake=False) as server:
        slow = {"model": "org/big", **user(f"@tokens={ENDLESS}"), "stream": True}
        with server.open("/api/chat", slow) as first:
            first.readline()
            assert chat(server)[0] == 200
            assert [each.stats()["requests"] > 0 for each in two] == [True, True]
        two[0].stop()
        for _ in range(4):
            assert chat(server)[0] == 200
        two[1].stop()
        status, headers, data = server.request(
            "POST", "/api/chat", {"model": "org/big", **user(), "stream": False}
        )
        assert status == 503
        assert "cannot reach the upstream" in json.loads(data)["error"]
        assert headers["retry-after"]
        two[1].start()
        until(lambda: chat(server)[0] == 200)


def test_a_wrong_address_is_refused_at_once(tmp_path):
    command = [sys.executable, "-m", "vllama", "serve", "--upstream", "ftp://x", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 2
    assert "not an http address" in done.stderr


CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
SAID = f"<think>Where?</think>I look.\n<tool_call>{CALL}</tool_call>"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def test_calls_and_thinking_that_it_leaves_in_the_text_are_found(tmp_path):
    elsewhere = Elsewhere("--say", json.dumps(SAID))
    asked = {"model": "org/big", **user(), "tools": [TOOL], "stream": False}
    try:
        with Server(tmp_path, "--upstream", elsewhere.url, fake=False) as server:
            message = server.post("/api/chat", asked)[1]["message"]
            assert (message["thinking"], message["content"]) == ("Where?", "I look.\n")
            (call,) = message["tool_calls"]
            assert call["function"]["name"] == "weather"
            assert call["function"]["arguments"] == {"city": "Oslo"}
            (choice,) = server.post("/v1/chat/completions", asked)[1]["choices"]
            assert choice["finish_reason"] == "tool_calls"
            assert choice["message"]["content"] == "I look.\n"
            # the server parses calls itself, for all that is known: it gets the tools as they are
            assert elsewhere.stats()["bodies"][-1]["tools"] == [TOOL]
            plain = server.post("/api/chat", asked | {"tools": []})[1]["message"]
            assert plain["content"] == SAID.partition("</think>")[2]
    finally:
        elsewhere.stop()


def test_a_vllm_without_a_parser_is_asked_again_without_one(tmp_path):
    elsewhere = Elsewhere("--owner", "vllm", "--no-tool-parser", "--say", json.dumps(SAID))
    asked = {"model": "org/big", **user(), "tools": [TOOL], "stream": False}
    try:
        with Server(tmp_path, "--upstream", elsewhere.url, fake=False) as server:
            for _ in range(2):
                status, reply = server.post("/api/chat", asked)
                assert (status, len(reply["message"]["tool_calls"])) == (200, 1)
            choices = [body.get("tool_choice") for body in elsewhere.stats()["bodies"]]
            assert choices == [None, "none", "none"]  # it is learned once
    finally:
        elsewhere.stop()


def test_a_server_that_refuses_an_order_of_roles_is_asked_in_another(tmp_path):
    elsewhere = Elsewhere("--owner", "vllm", "--one-system")
    roles = [("system", "s"), ("user", "a"), ("system", "t")]
    talk = [{"role": role, "content": text} for role, text in roles]
    try:
        with Server(tmp_path, "--upstream", elsewhere.url, fake=False) as server:
            for path in ("/v1/chat/completions", "/api/chat"):
                status, reply = server.post(
                    path, {"model": "org/big", "messages": talk, "stream": False}
                )
                assert status == 200, reply
            sent = [
                [item["role"] for item in body["messages"]] for body in elsewhere.stats()["bodies"]
            ]
            folded = ["system", "user"]
            assert sent == [["system", "user", "system"], folded, folded]  # it is learned once
    finally:
        elsewhere.stop()


THOUGHT = {"role": "assistant", "content": "a"}
NEXT = {"role": "user", "content": "y"}
EARLIER = [
    ("/api/chat", {"messages": [*user()["messages"], {**THOUGHT, "thinking": "Hm."}, NEXT]}),
    (
        "/v1/chat/completions",
        {"messages": [*user()["messages"], {**THOUGHT, "reasoning_content": "Hm."}, NEXT]},
    ),
    (
        "/v1/responses",
        {
            "input": [
                *user()["messages"],
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "Hm."},
                THOUGHT,
                NEXT,
            ]
        },
    ),
    (
        "/v1/messages",
        {
            "max_tokens": 9,
            "messages": [
                *user()["messages"],
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                        {"type": "text", "text": "a"},
                    ],
                },
                NEXT,
            ],
        },
    ),
]


@pytest.mark.parametrize(
    ("switches", "field"),
    [
        ((), "reasoning_content"),
        (("--owner", "vllm"), "reasoning_content"),
        (("--owner", "library"), "reasoning"),
        (("--strict-messages",), None),
    ],
)
def test_earlier_thinking_reaches_the_server_unless_it_refuses_it(tmp_path, switches, field):
    elsewhere = Elsewhere(*switches)
    try:
        with Server(tmp_path, "--upstream", elsewhere.url, fake=False) as server:
            for path, body in EARLIER:
                asked = {"model": "org/big", "stream": False, **body}
                assert server.post(path, asked)[0] == 200
                answer = elsewhere.stats()["bodies"][-1]["messages"][-2]
                thinking = {field: "Hm."} if field else {}
                assert answer == {"role": "assistant", "content": "a", **thinking}, path
            refused = 0 if field else 1  # it is learned once
            assert elsewhere.stats()["requests"] == len(EARLIER) + refused
    finally:
        elsewhere.stop()


@pytest.mark.parametrize("owner", ["vllm", "llamacpp"])
def test_a_forced_call_is_sent_as_a_schema(tmp_path, owner):
    elsewhere = Elsewhere("--owner", owner, "--say", json.dumps(CALL))
    chosen = {"type": "function", "function": {"name": "weather"}}
    asked = {"model": "org/big", **user(), "tools": [TOOL], "tool_choice": chosen}
    try:
        with Server(tmp_path, "--upstream", elsewhere.url, fake=False) as server:
            (choice,) = server.post("/v1/chat/completions", asked)[1]["choices"]
            (call,) = choice["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
            body = elsewhere.stats()["bodies"][-1]
            schema = body["response_format"]["json_schema"]["schema"]
            closed = TOOL["function"]["parameters"] | {"additionalProperties": False}
            assert schema["properties"]["arguments"] == closed
            assert body["tool_choice"] == "none"
    finally:
        elsewhere.stop()


@pytest.mark.parametrize("by", ["messages", "tokenize", None])
def test_tokens_are_counted_by_the_server_if_it_can(tmp_path, by):
    elsewhere = Elsewhere("--owner", "vllm", *(("--counts", by) if by else ()))
    talk = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    asked = {"model": "org/big", "max_tokens": 5, "messages": talk, "tools": []}
    try:
        with Server(tmp_path, "--upstream", elsewhere.url, fake=False) as server:
            status, headers, data = server.request("POST", "/v1/messages/count_tokens", asked)
            assert status == 200
            assert (json.loads(data)["input_tokens"] == 3000) is (by is not None)
            assert (headers.get("x-vllama-token-count") == "estimate") is (by is None)
            if by:
                assert elsewhere.stats()["bodies"][-1]["model"] == "org/big"
    finally:
        elsewhere.stop()


PLAIN_COUNT = {"model": "org/big", "max_tokens": 1, "messages": user()["messages"]}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (json.dumps(PLAIN_COUNT).encode()[:-1] + b', "m\xd2": 1}', 200),
        (json.dumps(PLAIN_COUNT).encode()[:-1] + b', "m": "\\ud800"} rest', 200),
        (json.dumps({**PLAIN_COUNT, "keep_alive": 10**400}).encode(), 400),
        (json.dumps({**PLAIN_COUNT, "keep_alive": "9" * 5000 + "s"}).encode(), 400),
    ],
)
def test_odd_bytes_and_numbers_are_no_error_of_the_server(elsewhere, body, status):
    _, server = elsewhere
    got, _, data = server.request("POST", "/v1/messages/count_tokens", body)
    assert got == status, data


SAMPLING = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
            "frequency_penalty", "seed"}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "asked", "sent"),
    [
        ("/api/chat", {}, {}),
        # what Ollama's default would be is sent as well, if it is asked for
        ("/api/chat", {"options": {"temperature": 0.8, "repeat_penalty": 1.1, "num_ctx": 4096}},
         {"temperature": 0.8, "repetition_penalty": 1.1}),
        ("/v1/chat/completions", {"top_p": 1, "max_tokens": 3}, {"top_p": 1}),
        ("/v1/messages", {"max_tokens": 3, "top_k": 7}, {"top_k": 7}),
        ("/v1/responses", {"input": "hi"}, {}),
    ],
)  # fmt: skip
def test_sampling_that_nobody_asks_for_is_left_to_the_server(elsewhere, path, asked, sent):
    there, server = elsewhere
    assert server.post(path, {"model": "org/big", **user(), "stream": False} | asked)[0] == 200
    body = there.stats()["bodies"][-1]
    assert {name: value for name, value in body.items() if name in SAMPLING} == sent


def test_what_the_settings_say_of_it_holds(tmp_path):
    elsewhere = Elsewhere("--say", json.dumps(SAID))
    (tmp_path / "config.toml").write_text(
        f'[upstreams.there]\nurl = "{elsewhere.url}"\n'
        'traits = { tool_calls = "none", thinking = "parsed", context_length = "2k" }\n'
    )
    try:
        options = ("--config", str(tmp_path / "config.toml"))
        with Server(tmp_path, *options, fake=False) as server:
            shown = server.post("/api/show", {"model": "org/big"})[1]
            assert shown["model_info"]["fake.context_length"] == 2048
            assert "tools" not in shown["capabilities"]
            asked = {"model": "org/big", **user(), "stream": False}
            assert server.post("/api/chat", asked | {"tools": [TOOL]})[0] == 400
            assert server.post("/api/chat", asked)[1]["message"]["content"] == SAID
    finally:
        elsewhere.stop()


def test_each_server_is_asked_for_its_own_models(tmp_path):
    servers = {name: Elsewhere("--model", name) for name in ("left", "right")}
    options = [part for each in servers.values() for part in ("--upstream", each.url)]
    try:
        with Server(tmp_path, *options, fake=False) as server:
            for _ in range(3):
                for name in servers:
                    asked = {"model": name, **user(), "stream": False}
                    assert server.post("/api/chat", asked)[0] == 200
            for name, each in servers.items():
                assert {body["model"] for body in each.stats()["bodies"]} == {name}
    finally:
        for each in servers.values():
            each.stop()


def test_a_server_is_not_ready_before_its_upstream_is(tmp_path):
    elsewhere = Elsewhere()
    elsewhere.stop()
    with Server(tmp_path, "--upstream", elsewhere.url, fake=False) as server:
        said = server.wait_for("waiting for an upstream: .*")
        assert f"{elsewhere.url} is not available: connection refused" in said
        assert "ready: " not in said and "engine: " not in said
        assert server.request("GET", "/readyz")[0] == 503
        elsewhere.start()
        try:
            said = server.wait_for("ready: http")
            assert f"upstream: {elsewhere.url} responds" in said
            assert said.count("waiting for") == 1
            assert server.request("GET", "/readyz")[0] == 200
        finally:
            elsewhere.stop()
