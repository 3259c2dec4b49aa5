"""An engine with OpenAI's routes in full: its completions, its own routes and fields."""

import json
import re

import pytest

from tests.routes.test_ollama_chat import user
from tests.scripted import Scripted, list_models
from tests.server_process import Server

pytestmark = pytest.mark.slow

ADMIN = "sk-of-the-settings"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def complete(body):
    """Answer as vLLM does, with what only it has."""
    prompts = body["prompt"]
    one = isinstance(prompts, str) or isinstance(prompts[0], int)
    count = (1 if one else len(prompts)) * body.get("n", 1)
    choices = [
        {"index": n, "text": "x", "finish_reason": "stop", "stop_reason": 7, "token_ids": [n]}
        for n in range(count)
    ]
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"]}
    if not body.get("stream"):
        return 200, {}, head | {"choices": choices, "usage": USAGE, "more": {"a": 1}}
    events = [head | {"choices": [one]} for one in choices] + [
        head | {"choices": [], "usage": USAGE}
    ]
    data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return 200, {"Content-Type": "text/event-stream"}, [data.encode()]


def chat(body):
    """Answer a chat in one object; a stream of it is refused."""
    if body["stream"]:
        return 400, {}, {"error": {"message": "no"}}
    said = {"role": "assistant", "content": "x<think>", "tool_calls": None}
    choices = [
        {"index": n, "message": said, "finish_reason": "stop", "stop_reason": 7, "token_ids": [n]}
        for n in range(body.get("n", 1))
    ]
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
    return 200, {}, head | {"choices": choices, "usage": USAGE, "prompt_token_ids": [1, 2, 3]}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    routes = {
        "/v1/models": list_models("m", owner="vllm"),
        "/v1/completions": complete,
        "/v1/chat/completions": chat,
        "/tokenize": lambda body: (200, {}, {"tokens": [1], "asked": body}),
        "/version": (200, {}, {"version": "0.32.0"}),
    }
    with (
        Scripted(routes) as there,
        Server(
            tmp_path_factory.mktemp("e"), "--upstream", there.url, "--api-key", ADMIN, fake=False
        ) as server,
    ):
        yield there, server


def ask(server, path, body=None, key=ADMIN, method="POST"):
    headers = {"authorization": f"Bearer {key}"}
    status, told, data = server.request(method, path, body, headers)
    return status, told, data


def sent(there, path):
    return [body for where, body in there.asked if where == path][-1]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt": "Hi"}, {"prompt": "Hi", "max_tokens": None, "stream": False}),
        ({"prompt": [1, 2]}, {"prompt": [1, 2]}),
        ({"prompt": [[1, 2], [3]], "n": 2}, {"prompt": [[1, 2], [3]], "n": 2}),
        ({"prompt": ["a"] * 200}, {"prompt": ["a"] * 200}),
        ({"prompt": "a", "max_tokens": 0, "echo": True, "logprobs": 0},
         {"max_tokens": 0, "echo": True, "logprobs": 0}),
        ({"prompt": "a", "prompt_logprobs": 1, "return_token_ids": True, "raw": True},
         {"prompt_logprobs": 1, "return_token_ids": True, "raw": None}),
        ({"prompt": "a", "reasoning_effort": "low"}, {"reasoning_effort": None}),
    ],
)  # fmt: skip
def test_a_completion_goes_to_the_engine_as_it_is(served, fields, expected):
    there, server = served
    status, _, data = ask(server, "/v1/completions", {"model": "m", **fields})
    answer, body = json.loads(data), sent(there, "/v1/completions")
    assert status == 200 and {name: body.get(name) for name in expected} == expected
    assert "stream_options" not in body
    assert (answer["model"], answer["usage"], answer["more"]) == ("m", USAGE, {"a": 1})
    assert answer["choices"][0]["stop_reason"] == 7 and answer["choices"][0]["token_ids"] == [0]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_logprobs": 1},
        {"return_token_ids": True, "stop": ["b"]},
        {"echo": True},
        {"use_beam_search": True, "n": 2, "temperature": 0},
    ],
)
def test_a_chat_that_engines_do_not_stream_comes_in_one_object(served, fields):
    there, server = served
    asked = {"model": "m", **user("hi"), **fields}
    status, _, data = ask(server, "/v1/chat/completions", asked)
    answer, body = json.loads(data), sent(there, "/v1/chat/completions")
    assert status == 200 and {name: body.get(name) for name in fields} == fields
    assert not body.keys() & {"stream_options", "stream_interval"}
    assert (answer["model"], answer["usage"], answer["prompt_token_ids"]) == ("m", USAGE, [1, 2, 3])
    for number, choice in enumerate(answer["choices"]):
        assert (choice["index"], choice["stop_reason"], choice["token_ids"]) == (
            number,
            7,
            [number],
        )
        assert choice["message"] == {"role": "assistant", "content": "x<think>"}
    assert len(answer["choices"]) == fields.get("n", 1)


@pytest.mark.parametrize("usage", [True, False])
def test_a_stream_of_several_choices(served, usage):
    _, server = served
    asked = {"model": "m", "prompt": ["a", "b"], "stream": True}
    asked |= {"stream_options": {"include_usage": True}} if usage else {}
    _, _, data = ask(server, "/v1/completions", asked)
    events = [line[6:] for line in data.decode().split("\n\n") if line]
    assert events[-1] == "[DONE]"
    told = [json.loads(event) for event in events[:-1]]
    assert {event["model"] for event in told} == {"m"}
    assert [event["choices"][0]["index"] for event in told if event["choices"]] == [0, 1]
    assert [event["usage"] for event in told if not event["choices"]] == [USAGE] * usage


def test_ollamas_way_is_asked_for_by_a_field(served):
    there, server = served
    ask(server, "/v1/completions", {"model": "m", "prompt": "Hi", "raw": False})
    assert sent(there, "/v1/chat/completions")["messages"] == [{"role": "user", "content": "Hi"}]


def test_an_effort_that_the_model_cannot_make_is_left_out(served):
    _, server = served
    asked = {"model": "m", "reasoning_effort": "low", **user()}
    status, _, data = ask(server, "/v1/chat/completions", asked)
    assert status == 400 and b"thinking" not in data


def test_the_engines_own_routes_need_a_scope(served):
    there, server = served
    keys = {}
    for name, scopes in (("plain", ["infer"]), ("door", ["infer", "engine"])):
        _, _, data = ask(server, "/api/keys", {"name": name, "scopes": scopes})
        keys[name] = json.loads(data)["secret"]
    for key, status in ((keys["plain"], 403), (ADMIN, 403), (keys["door"], 200)):
        assert ask(server, "/engine/tokenize", {"model": "m", "prompt": "a"}, key)[0] == status
        assert ask(server, "/engine/version?model=m", None, key, "GET")[0] == status
    for path in ("nothing", "a%0d%0ab:%20c", "%ff"):
        assert ask(server, f"/engine/{path}", {"model": "m"}, keys["door"])[0] in (400, 501)
    status, _, data = ask(server, "/tokenize", {"model": "m", "prompt": "a"}, keys["plain"])
    assert status == 200 and json.loads(data)["asked"] == {"model": "m", "prompt": "a"}
    asked = {"model": "m", "prompt": "a", "priority": 3}
    for key, priority in ((keys["plain"], None), (keys["door"], 3)):
        _, told, _ = ask(server, "/v1/completions", asked, key)
        assert sent(there, "/v1/completions").get("priority") == priority
        assert told.get("x-vllama-ignored") == (None if priority else "priority")
    counted = []
    for fields in ({"n": 2}, {"stream": True}, {"stream": True, "stream_options": {}}):
        asked = {"model": "m", "prompt": "a", "any": 1, **fields}
        status, told, data = ask(server, "/engine/v1/completions", asked, keys["door"])
        assert status == 200 and sent(there, "/v1/completions")["any"] == 1
        assert told["content-type"].startswith("text/event-stream") is bool(fields.get("stream"))
        assert data.count(b"token_ids") == fields.get("n", 1)
        assert (b'"usage"' in data) is ("n" in fields)
        _, _, metrics = ask(server, "/metrics", None, method="GET")
        counted.append(re.findall(r"vllama_generation_tokens_total\S* (\d+)", metrics.decode()))
    counts = [int(found[0]) for found in counted]
    assert [counts[1] - counts[0], counts[2] - counts[1]] == [USAGE["completion_tokens"]] * 2
    hidden = {"model": "m", "prompt": "a", "vllm_xargs": {"x": "y"}}
    assert ask(server, "/v1/completions", hidden, keys["door"])[0] == 403
