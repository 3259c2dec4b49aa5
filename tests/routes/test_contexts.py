"""A request's own context: smaller than its engine's, which is not started again for that."""

import json

import pytest

ENGINES = ("plain", "counts", "shifts-and-counts")
AROUND = len("user: \nassistant: ")


def ask(server, path, model, text, *, options=None, **more):
    """Ask any of the routes alike; return status, headers, answer and what the engine was sent."""
    body = {"model": model, **more}
    if path.startswith("/api"):
        body |= {"options": options or {}, "stream": False}
    elif options:
        limit = options.pop("num_predict", None)
        body |= {"max_tokens": limit, "options": options}
    if path in ("/api/generate", "/v1/completions"):
        body["prompt"] = text
    elif path == "/v1/responses":
        body["input"] = text
        body.pop("max_tokens", None)
    else:
        body["messages"] = [{"role": "user", "content": text}]
    status, headers, data = server.request("POST", path, body)
    return status, headers, json.loads(data), server.sent(model) if status == 200 else {}


CHATS = ["/api/chat", "/api/generate", "/v1/chat/completions", "/v1/completions", "/v1/responses"]


@pytest.mark.parametrize("model", ENGINES)
@pytest.mark.parametrize("path", CHATS)
def test_a_prompt_that_is_too_long_is_cut_in_its_middle(server, path, model):
    text = "".join(chr(0x100 + n) for n in range(600))
    more = {"truncation": "auto"} if path == "/v1/responses" else {}
    status, headers, reply, sent = ask(server, path, model, text, options={"num_ctx": 128}, **more)
    assert status == 200, reply
    whole = f"user: {text}\nassistant: "
    kept = whole[:5] + whole[-62:]  # one more than asked for, as the model has a BOS
    assert sent["prompt"] == ([*map(ord, kept)] if model.startswith("shifts") else kept)
    assert headers["x-vllama-truncated"] == "1"
    assert headers["x-vllama-truncated-tokens"] == str(600 + AROUND - 67)
    if path.startswith("/api") and model == "plain":
        assert reply["prompt_eval_count"] == 67
    status, _, reply, sent = ask(
        server, path, model, text, options={"num_ctx": 128, "num_keep": 24}, **more
    )
    assert (status, len(sent["prompt"])) == (200, 77)


@pytest.mark.parametrize("model", ENGINES)
@pytest.mark.parametrize("path", [*CHATS, "/v1/messages"])
@pytest.mark.parametrize("word", ["truncate", "shift"])
def test_what_may_not_be_cut_is_refused(server, path, model, word):
    options = {"num_ctx": 128, "num_predict": 5}
    status, _, reply, _ = ask(server, path, model, "x" * 600, options=options, **{word: False})
    error = reply["error"]
    text = error if isinstance(error, str) else error["message"]
    assert status == 400
    assert "128" in text and str(600 + AROUND) in text


@pytest.mark.parametrize("model", ENGINES)
@pytest.mark.parametrize("path", [*CHATS, "/v1/messages"])
def test_an_answer_without_a_limit_ends_after_ten_contexts(server, path, model):
    if path == "/v1/messages":  # wants a limit
        return
    for options, limit in (
        ({"num_ctx": 128}, 1280),
        ({"num_ctx": 128, "num_predict": -1}, 1280),
        ({"num_ctx": 128, "num_predict": 3000}, 1280),
        ({"num_ctx": 128, "num_predict": 200}, 200),
        ({}, 40960 if model.startswith("shifts") else None),
    ):
        if path == "/v1/responses" and options.pop("num_predict", None):
            continue
        _, _, _, sent = ask(server, path, model, "hello", options=dict(options))
        assert sent.get("max_tokens") == limit, options


@pytest.mark.parametrize("model", ENGINES)
@pytest.mark.parametrize("path", CHATS)
def test_without_a_shift_an_answer_ends_with_its_context(server, path, model):
    left = 128 - len("hello") - AROUND
    for options in ({"num_ctx": 128}, {"num_ctx": 128, "num_predict": 5000}):
        _, _, _, sent = ask(server, path, model, "hello", options=options, shift=False)
        assert sent["max_tokens"] == left
    _, _, _, sent = ask(server, path, model, "hello", shift=False)
    assert sent.get("max_tokens", 4096 - 5 - AROUND) == 4096 - 5 - AROUND
    assert model == "counts" or path == "/v1/responses" or "max_tokens" in sent


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_fills_its_context_says_so(server, stream):
    body = {"model": "plain", "options": {"num_ctx": 64}, "shift": False, "stream": stream}
    body["messages"] = [{"role": "user", "content": "@tokens=500"}]
    _, _, data = server.request("POST", "/api/chat", body)
    last = json.loads(data.strip().split(b"\n")[-1])
    assert last["done_reason"] == "length"
    assert (last["prompt_eval_count"], last["eval_count"]) == (29, 35)


@pytest.mark.parametrize("model", ENGINES)
def test_the_newest_messages_stay(server, model):
    turns = [{"role": "system", "content": "s" * 20}]
    turns += [{"role": role, "content": "x" * 30} for role in ("user", "assistant") * 4]
    turns.append({"role": "user", "content": "last"})
    size = len("system: \n") + 20 + len("user: last\nassistant: ")
    answer, question = len("assistant: \n") + 30, len("user: \n") + 30
    for room, kept in (
        (0, ["system", "user"]),
        (answer, ["system", "assistant", "user"]),
        (answer + question - 2, ["system", "assistant", "user"]),
        (answer + question, ["system", "user", "assistant", "user"]),
    ):
        # one more, because a prompt that fills its context is cut
        body = {"model": model, "messages": turns, "options": {"num_ctx": size + room + 1}}
        _, headers, _ = server.request("POST", "/api/chat", body | {"stream": False})
        assert [item["role"] for item in server.sent(model)["messages"]] == kept
        assert headers["x-vllama-truncated"] == str(10 - len(kept))


def test_a_template_that_refuses_an_answer_first(server):
    """Then it begins with a question, as such templates want."""
    model = server.model(
        "alternates",
        template="{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}",
    )
    turns = [{"role": role, "content": "x" * 30} for role in ("user", "assistant") * 4]
    turns.append({"role": "user", "content": "last"})
    body = {"model": model, "messages": turns, "options": {"num_ctx": 110}, "stream": False}
    assert server.request("POST", "/api/chat", body)[0] == 200
    sent = server.sent(model)["messages"]
    assert [item["role"] for item in sent] == ["user", "assistant", "user"]


@pytest.mark.slow
def test_raw_text_and_earlier_tokens_are_cut_as_well(server):
    asked = {"model": "plain", "options": {"num_ctx": 128}, "stream": False}
    _, _, reply = server.request(
        "POST", "/api/generate", asked | {"prompt": "ab" * 400, "raw": True}
    )
    assert json.loads(reply)["prompt_eval_count"] == 67
    assert server.sent("plain")["prompt"] == "ababa" + "ab" * 31
    status, reply = server.post(
        "/api/generate", asked | {"prompt": "last", "context": [ord("c")] * 500}
    )
    assert (status, reply["prompt_eval_count"]) == (200, 67)
    assert server.sent("plain")["prompt"].endswith(
        "clast\nassistant: ".replace("last", "user: last")
    )
    assert len(reply["context"]) > 500  # what was said, not what there was room for
    _, reply = server.post("/v1/completions", {
        "model": "plain", "prompt": "ab" * 400, "raw": True, "num_ctx": 128,
    })  # fmt: skip
    assert reply["usage"]["prompt_tokens"] == 67


def test_the_engine_is_not_started_again_for_less(server):
    before = server.engine("plain").pid
    for num_ctx in (4096, 16, 128, 2048):
        ask(server, "/api/chat", "plain", "hello", options={"num_ctx": num_ctx})
    assert server.engine("plain").pid == before
    row = next(row for row in server.get("/api/ps")["models"] if row["name"] == "plain:latest")
    assert row["context_length"] == 4096


def test_what_is_kept_at_a_shift_is_told_to_engines_that_shift(server):
    for path in CHATS:
        _, _, _, sent = ask(server, path, "shifts-and-counts", "hello", options={"num_keep": 24})
        assert sent["n_keep"] == 24
        _, _, _, sent = ask(server, path, "shifts-and-counts", "hello")
        assert sent["n_keep"] == 4  # Ollama's default
        assert "n_keep" not in ask(server, path, "plain", "hello")[3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "options"),
    [("x" * 5000, {}), ("x" * 20, {"num_ctx": 16}), ("x" * 20, {"num_ctx": 1})],
)
def test_the_older_route_for_vectors_never_cuts(server, prompt, options):
    body = {"model": "vectors", "prompt": prompt, "options": options}
    status, reply = server.post("/api/embeddings", body)
    assert (status, reply) == (500, {"error": "the input length exceeds the context length"})
    assert server.post("/api/embeddings", body | {"prompt": "xx"})[0] == 200
    assert server.post("/api/embed", body | {"input": "x" * 20, "options": {}})[0] == 200
