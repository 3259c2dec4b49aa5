"""Models whose templates refuse the conversations that coding agents send."""

import json

import pytest

QWEN = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
)
GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
)
TALKS = {
    "claude": [("system", "s"), ("user", "a"), ("system", "t")],
    "codex": [("developer", "s"), ("developer", "t"), ("user", "a"), ("user", "b")],
    "gptme": [("system", "s"), ("system", "t"), ("system", "u"), ("user", "a")],
}
FOLDED = {
    "claude": [("system", "s\n\nt"), ("user", "a")],
    "codex": [("system", "s\n\nt"), ("user", "a\n\nb")],
    "gptme": [("system", "s\n\nt\n\nu"), ("user", "a")],
}
IN_THE_QUESTION = {
    "claude": [("user", "s\n\nt\n\na")],
    "codex": [("user", "s\n\nt\n\na\n\nb")],
    "gptme": [("user", "s\n\nt\n\nu\n\na")],
}
ROUTES = ("/api/chat", "/v1/chat/completions", "/v1/responses")


def ask(server, path, model, talk, **more):
    messages = [{"role": role, "content": text} for role, text in talk]
    key = "input" if path == "/v1/responses" else "messages"
    status, _, data = server.request(
        "POST", path, {"model": model, key: messages, "stream": False, **more}
    )
    return status, data.decode()


def sent(server, model):
    return [(item["role"], item["content"]) for item in server.sent(model)["messages"]]


@pytest.mark.parametrize("name", TALKS)
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("template", "arranged"), [(QWEN, FOLDED), (GEMMA, IN_THE_QUESTION)], ids=["qwen", "gemma"]
)
def test_a_refused_conversation_is_folded(server, path, name, template, arranged):
    model = server.model("qwen-strict" if template is QWEN else "gemma-strict", template=template)
    status, reply = ask(server, path, model, TALKS[name])
    assert status == 200, reply
    assert sent(server, model) == arranged[name]


def test_messages_with_a_system_prompt_in_between(server):
    model = server.model("qwen-strict", template=QWEN)
    talk = [{"role": "user", "content": "a"}, {"role": "system", "content": "t"}]
    body = {"model": model, "max_tokens": 5, "system": "s", "messages": talk}
    status, reply = server.post("/v1/messages", body)
    assert status == 200, reply
    assert sent(server, model) == FOLDED["claude"]


def test_a_conversation_that_the_template_takes_stays(server):
    lenient = server.model("lenient", template=QWEN.replace("raise_exception(", "(") + "{# #}")
    assert ask(server, "/api/chat", lenient, TALKS["claude"])[0] == 200
    assert sent(server, lenient) == TALKS["claude"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ROUTES)
def test_what_cannot_be_arranged_is_refused_with_the_templates_words(server, path, stream):
    model = server.model("gemma-strict", template=GEMMA)
    status, reply = ask(server, path, model, [("assistant", "hi"), ("user", "a")], stream=stream)
    assert status == 400
    error = json.loads(reply)["error"]
    assert "Conversation roles must alternate" in (
        error if path == "/api/chat" else error["message"]
    )
