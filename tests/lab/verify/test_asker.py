"""Prompts of a file, what is sent to an engine, and what if it tells no log probabilities."""

import pytest

from vllama.base.errors import BadRequest, ConfigError, UpstreamError
from vllama.lab.asker import BUILT_IN, PATH, TOP, Asker, parse_prompts


class Wire:
    """Answers with what it is given, and keeps what was asked."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.bodies = []

    def post(self, path, body):
        assert path == PATH
        self.bodies.append(dict(body))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def said(text, *tokens):
    logprobs = {"tokens": list(tokens), "token_logprobs": [-1.0] * len(tokens)} if tokens else None
    return {"choices": [{"text": text, "logprobs": logprobs, "finish_reason": "stop"}]}


def test_greedy_raw_and_with_alternatives():
    wire = Wire(said("a b", "a", " b"))
    answer = Asker(wire.post, "m", 7).ask("Once")
    assert [token.logprob for token in answer.tokens] == [-1.0, -1.0]
    (body,) = wire.bodies
    assert body["prompt"] == "Once" and body["raw"] is True and body["max_tokens"] == 7
    assert (body["temperature"], body["logprobs"], body["stream"]) == (0, TOP, False)
    # the model's own parameters have no say
    assert body["options"]["repeat_penalty"] == 1 and body["options"]["stop"] == []


def test_a_text_that_may_lack_characters_is_asked_for_again():
    wire = Wire(said(", a", "", ",", " a"), said("é, a"))
    answer = Asker(wire.post, "m", 7).ask("x")
    assert answer.text.decode() == "é, a" and len(answer.tokens) == 3
    assert ["logprobs" in body for body in wire.bodies] == [True, False]


def test_an_engine_without_log_probabilities_is_asked_once():
    wire = Wire(BadRequest('"m" does not support logprobs'), said("a"), said("b"))
    asker = Asker(wire.post, "m", 7)
    assert [asker.ask("x").text, asker.ask("y").text] == [b"a", b"b"]
    assert not asker.tells_logprobs
    assert ["logprobs" in body for body in wire.bodies] == [True, False, False]


@pytest.mark.parametrize(
    ("reply", "kind"), [(BadRequest("too long"), BadRequest), ({"choices": []}, UpstreamError)]
)
def test_other_refusals_are_told(reply, kind):
    with pytest.raises(kind):
        Asker(Wire(reply).post, "m", 7).ask("x")


@pytest.mark.parametrize(
    ("data", "prompts"),
    [
        (b"one\n\n two \r\n", ("one", " two ")),
        (b'["a\\nb", "c"]', ("a\nb", "c")),
        (b'{"prompt": "a", "id": 1}\n\n"b"\n', ("a", "b")),
        (b"\xef\xbb\xbfone", ("one",)),
        ("a\u2028b".encode(), ("a\u2028b",)),
    ],
)
def test_forms_of_prompts(data, prompts):
    assert parse_prompts(data, "file") == prompts


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file has none"),
        (b"[]", "the file has none"),
        (b"[1]", "number 1 has no text"),
        (b'{"prompt": "a"}\n{"text": "b"}', "number 2 has no text"),
        (b'["a"', "Expecting"),
        (b"\xff\xfe", "utf-8"),
    ],
)
def test_what_is_no_list_of_prompts(data, words):
    with pytest.raises(ConfigError, match=words) as caught:
        parse_prompts(data, "mine.txt")
    assert "'mine.txt'" in caught.value.message


def test_the_built_in_ones_differ():
    assert len(set(BUILT_IN)) == len(BUILT_IN) >= 8
