"""Go templates, a LoRA adapter and friends with the real engine and the real model."""

import hashlib

import pytest

from tests.e2e.conftest import COUNTS, MODEL
from tests.e2e.counting import WIDTH
from tests.tiny import write_tiny_gguf, write_tiny_lora

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
# what the model's own Jinja template makes, as a Modelfile would say it
CHATML = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}"
    '{{ range .Messages }}{{ if ne .Role "system" }}<|im_start|>{{ .Role }}\n{{ .Content }}'
    "<|im_end|>\n{{ end }}{{ end }}<|im_start|>assistant\n"
)
TURNS = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}<|im_start|>user\n"
    "{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n{{ .Response }}<|im_end|>\n"
)
FOUR = {"num_predict": 4}
OUT = "blk.0.attn_output.weight"  # what an adapter adds to this one shows in the answer
COUNTED = " one two three four"


@pytest.fixture
def made(real):
    """Return a function that creates a model; it is unloaded and deleted in the end."""
    names = []

    def create(name, **fields):
        body = {"model": name, "from": COUNTS, "stream": False, **fields}
        assert real.post("/api/create", body) == (200, {"status": "success"})
        names.append(name)
        return name

    yield create
    for name in names:
        real.request("DELETE", "/api/delete", {"model": name})


@pytest.mark.parametrize("template", [CHATML, TURNS])
def test_a_go_template_gives_what_the_models_own_gives(real, made, template):
    made("by-go", template=template, system=SYSTEM)
    turns = [
        {"role": "user", "content": "Say hello."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And now goodbye."},
    ]
    body = {"messages": turns, "stream": False, "options": FOUR}
    own, by_go = (
        real.post("/api/chat", {"model": name, "_debug_render_only": True, **body})[1]
        for name in (COUNTS, "by-go")
    )
    assert by_go["_debug_info"] == own["_debug_info"]
    own, by_go = (real.post("/api/chat", {"model": name, **body})[1] for name in (COUNTS, "by-go"))
    assert by_go["message"]["content"] == own["message"]["content"] == COUNTED
    assert by_go["prompt_eval_count"] == own["prompt_eval_count"]
    shown = real.post("/api/show", {"model": "by-go"})[1]
    assert (shown["template"], shown["system"]) == (template, SYSTEM)


def test_the_template_of_a_request(client):
    own = client.generate(COUNTS, "Say hello.", options=FOUR)
    by_go = client.generate(COUNTS, "Say hello.", system=SYSTEM, template=CHATML, options=FOUR)
    assert by_go.response == own.response == COUNTED
    assert by_go.context == own.context  # the prompt's tokens are in it
    continued = client.generate(
        COUNTS, "2, 3,", template="{{ .Prompt }}", context=by_go.context, options=FOUR
    )
    # the marks of turns are there again: the old tokens, then those of the new text
    assert continued.context[: len(by_go.context)] == by_go.context
    assert continued.prompt_eval_count == len(by_go.context) + 5
    plain = client.generate(COUNTS, "one two", template="{{ .Prompt }}", options=FOUR)
    assert plain.response == " three four five six"


def test_stop_sequences_hold_for_a_finished_prompt(real, made):
    made("stops", template="{{ .Prompt }}", parameters={"stop": [" five"]})
    body = {"model": "stops", "prompt": "one two", "stream": False}
    reply = real.post("/api/generate", body)[1]
    assert (reply["done_reason"], reply["response"]) == ("stop", " three four")


def test_openai_clients_get_the_go_template_too(real, made):
    made("by-go", template=CHATML, system=SYSTEM)
    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
    own, by_go = (
        real.post("/v1/chat/completions", {"model": name, **body})[1] for name in (COUNTS, "by-go")
    )
    assert by_go["choices"][0]["message"]["content"] == COUNTED
    # how much of it was in the cache depends on what came before
    assert {**by_go["usage"], "prompt_tokens_details": 0} == {
        **own["usage"], "prompt_tokens_details": 0,
    }  # fmt: skip


def test_a_gap_is_filled_by_the_template(real, made):
    made("fim", template="{{ if .Suffix }}{{ .Prompt }}{{ else }}{{ .Prompt }}{{ end }}")
    body = {"model": "fim", "prompt": "one two", "suffix": " seven", "options": FOUR}
    reply = real.post("/api/generate", body | {"stream": False})[1]
    assert reply["response"] == " three four five six"
    status, reply = real.post("/api/generate", body | {"model": MODEL})
    assert (status, reply["error"]) == (
        400,
        f"registry.ollama.ai/library/{MODEL} does not support insert",
    )


def test_no_tokens_and_no_limit(real):
    body = {"model": MODEL, "prompt": "Say hello.", "stream": False}
    reply = real.post("/api/generate", body | {"options": {"num_predict": 0}})[1]
    assert (reply["response"], reply["eval_count"], reply["done_reason"]) == ("", 0, "length")
    assert len(reply["context"]) == reply["prompt_eval_count"] > 10
    body |= {"model": COUNTS, "options": {"num_predict": -2, "stop": ["ten"]}}
    assert real.post("/api/generate", body)[1]["done_reason"] == "stop"


def test_only_the_prompt_is_shown(real):
    body = {"model": MODEL, "prompt": "Hi", "_debug_render_only": True}
    prompt = real.post("/api/generate", body)[1]["_debug_info"]["rendered_template"]
    wanted = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert prompt == wanted + "<|im_start|>assistant\n"


def test_a_format_is_kept_to(real, made):
    made("by-go", template=CHATML)
    body = {"model": "by-go", "messages": [{"role": "user", "content": "A person as JSON."}]}
    body |= {"format": "json", "options": FOUR, "stream": False}
    assert real.post("/api/chat", body)[1]["message"]["content"].lstrip()[0] in "{["


def test_an_adapter_changes_the_answer(real, made, tmp_path):
    adapter = write_tiny_lora(tmp_path / "a.gguf", n_embd=WIDTH, tensor=OUT, scale=4.0)
    digest = f"sha256:{hashlib.sha256(adapter.read_bytes()).hexdigest()}"
    assert real.request("POST", f"/api/blobs/{digest}", adapter.read_bytes())[0] == 201
    still = write_tiny_lora(tmp_path / "b.gguf", n_embd=WIDTH, tensor=OUT, scale=0.0)
    nothing = f"sha256:{hashlib.sha256(still.read_bytes()).hexdigest()}"
    assert real.request("POST", f"/api/blobs/{nothing}", still.read_bytes())[0] == 201
    made("adapted", adapters={"a.gguf": digest})
    made("unchanged", adapters={"b.gguf": nothing})
    body = {"prompt": "Why is the sky blue?", "stream": False, "options": FOUR}
    said = {
        name: real.post("/api/generate", {"model": name, **body})[1]["response"]
        for name in (COUNTS, "adapted", "unchanged")
    }
    assert said["adapted"] != said[COUNTS]
    assert said["unchanged"] == said[COUNTS] == COUNTED
    assert "--lora" in real.engine("adapted").cmdline()
    wrong = write_tiny_lora(tmp_path / "c.gguf", n_embd=64)
    other = f"sha256:{hashlib.sha256(wrong.read_bytes()).hexdigest()}"
    assert real.request("POST", f"/api/blobs/{other}", wrong.read_bytes())[0] == 201
    status, reply = real.post(
        "/api/create",
        {"model": "bad", "from": COUNTS, "adapters": {"c.gguf": other}, "stream": False},
    )
    assert status == 400
    assert "have a different shape" in reply["error"]


def test_two_adapters_are_both_loaded(real, made, tmp_path):
    adapters = {}
    for number in range(2):
        path = write_tiny_lora(tmp_path / f"{number}.gguf", n_embd=WIDTH, scale=number + 1.0)
        digest = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
        assert real.request("POST", f"/api/blobs/{digest}", path.read_bytes())[0] == 201
        adapters[path.name] = digest
    made("two", adapters=adapters)
    body = {"model": "two", "prompt": "x", "stream": False, "options": {"num_predict": 1}}
    status, reply = real.post("/api/generate", body)
    assert (status, reply["eval_count"]) == (200, 1)
    assert real.engine("two").cmdline().count("--lora") == 2


def count_input(message):
    """Return the prompt's tokens of an answer for Anthropic's clients, cached ones included."""
    usage = message["usage"]
    return usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0)


def test_an_answer_that_was_begun_is_continued(real):
    """Check on every chat route that an answer which was begun is continued.

    Only what the prompt has is looked at: its tokens, against those of the same text as one prompt.
    """
    opened = "<|im_start|>user\nName a color.<|im_end|>\n<|im_start|>assistant\n"
    system = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
    ask = {"role": "user", "content": "Name a color."}
    for answers, end in (
        (["The color is bl"], "The color is bl"),
        ([" {\n "], " {\n "),
        (["The color", "is bl"], "The color\n\nis bl"),
        (["The color", ""], "The color"),
        ([""], ""),
    ):
        raw = {"model": MODEL, "prompt": system + opened + end, "raw": True, "stream": False}
        status, reply = real.post("/api/generate", raw | {"options": {"num_predict": 1}})
        assert status == 200, reply
        expected = reply["prompt_eval_count"]
        turns = [ask, *({"role": "assistant", "content": text} for text in answers)]
        body = {"model": MODEL, "messages": turns, "max_tokens": 1, "stream": False}
        status, chat = real.post("/api/chat", body | {"options": {"num_predict": 1}})
        assert (status, chat.get("prompt_eval_count")) == (200, expected), (answers, chat)
        for more in ({}, {"logprobs": True}, {"response_format": {"type": "json_object"}}):
            status, chat = real.post("/v1/chat/completions", body | more)
            assert (status, chat["usage"]["prompt_tokens"]) == (200, expected), (answers, chat)
        status, chat = real.post("/v1/messages", body)
        assert (status, count_input(chat)) == (200, expected), (answers, chat)
        counted = real.post("/v1/messages/count_tokens", {"model": MODEL, "messages": turns})
        assert counted == (200, {"input_tokens": expected}), answers


def test_the_developer_is_the_system(real):
    counts = [
        real.post("/api/chat", {
            "model": MODEL, "stream": False, "options": {"num_predict": 1},
            "messages": [{"role": role, "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        })[1]["prompt_eval_count"]
        for role in ("system", "developer")
    ]  # fmt: skip
    assert counts[0] == counts[1]


def test_a_template_is_recognized_by_its_tokens(real):
    """Check a file without a template on every chat route: what is sent, and where it ends.

    llama.cpp does not know by itself that this token ends a turn.
    """
    tokens = ("<|header_start|>", "<|header_end|>", "<|eot|>")
    write_tiny_gguf(real.models / "unlabelled.gguf", template=None, tokens=tokens)
    ends = {"logit_bias": {str(354 + len(tokens)): 100}}
    name = "unlabelled"
    shown = real.post("/api/show", {"model": name, "plan": True})[1]
    assert shown["vllama"]["template"] == "llama 4, recognized by its tokens"
    assert "template: llama 4, recognized by its tokens" in shown["vllama"]["reasons"]
    assert shown["capabilities"] == ["completion"]
    text = (
        "<|header_start|>user<|header_end|>\n\nHi<|eot|><|header_start|>assistant<|header_end|>\n\n"
    )
    raw = {"model": name, "prompt": text, "raw": True, "stream": False}
    expected = real.post("/api/generate", raw | {"options": {"num_predict": 1}})[1]
    expected = expected["prompt_eval_count"]
    body = {"model": name, "stream": False, "max_tokens": 3}
    body |= {"messages": [{"role": "user", "content": "Hi"}]}
    chat = real.post("/api/chat", body | {"options": {"num_predict": 3}})[1]
    assert chat["prompt_eval_count"] == expected, chat
    said = real.post("/api/generate", {
        "model": name, "prompt": "Hi", "stream": False, "options": {"num_predict": 1},
    })[1]  # fmt: skip
    assert said["prompt_eval_count"] == expected, said
    assert count_input(real.post("/v1/messages", body)[1]) == expected
    for more in ({}, {"logprobs": True}, {"stop": ["never"]}):
        status, chat = real.post("/v1/chat/completions", body | more | ends)
        assert (status, chat["usage"]["prompt_tokens"]) == (200, expected), chat
        assert (chat["choices"][0]["finish_reason"], chat["usage"]["completion_tokens"] <= 1) == (
            "stop",
            True,
        ), chat
        assert chat["choices"][0]["message"]["content"] == ""
    letters = {"logit_bias": {str(260 + ord("a") - ord(" ")): 100}}  # no parts of characters
    unmarked = real.post("/v1/chat/completions", body | letters)[1]
    assert unmarked["usage"]["completion_tokens"] == 3
    assert unmarked["choices"][0]["message"]["content"] == "aaa"


def test_bare_text_is_warned_of(real):
    write_tiny_gguf(real.models / "bare.gguf", template=None)
    shown = real.post("/api/show", {"model": "bare", "plan": True})[1]
    assert shown["vllama"]["template"].startswith("none, and none recognized")
    body = {"model": "bare", "stream": False, "options": {"num_predict": 1}}
    chat = real.post("/api/chat", body | {"messages": [{"role": "user", "content": "Hi"}]})[1]
    raw = real.post("/api/generate", body | {"prompt": "Hi", "raw": True})[1]
    assert chat["prompt_eval_count"] == raw["prompt_eval_count"]
    real.wait_for("WARNING.*bare:latest has no chat template: prompts are sent as plain text")
