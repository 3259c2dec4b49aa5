"""System One and Decisions: requests, prompts, and what becomes of the model's probabilities."""

import json
import math

import pytest
from msgspec import to_builtins

from vllama.base.errors import BadRequest
from vllama.dialects.decisions.forms import (
    DecisionsBody,
    parse_decisions,
    parse_systemone,
    write_decisions,
    write_systemone,
)
from vllama.dialects.decisions.questions import Counts, Distribution, read_distribution
from vllama.dialects.openai.read import parse_openai

NOUL = {"type": "noul", "instructions": "Is it urgent?"}
CHOICE = {
    "type": "choice", "instructions": "Which team?",
    "criteria": {"billing": "payments", "support": None, "sales": "sales"},
}  # fmt: skip
SCORE = {"type": "score", "instructions": "How angry?", "criteria": ["calm", "annoyed", "furious"]}
COUNTS = Counts(prompt=30, completion=3, cached=12)


def tokens(**shares):
    """The likeliest tokens, by their text."""
    return [{"token": text, "logprob": math.log(share)} for text, share in shares.items()]


def ask(**questions):
    return parse_systemone({"state": "Help!", "questions": questions})


def test_a_question_is_written_with_letters_after_the_state():
    (question,) = ask(team=CHOICE).questions
    *_, user, begun = ask(team=CHOICE).write_messages(question)
    assert user == {
        "role": "user",
        "content": "Help!\n\nQuestion: Which team?\n(A) billing: payments\n(B) support\n(C) sales\n"
        "Answer with the letter of one option.",
    }
    assert begun == {"role": "assistant", "content": "Answer: ("}


def test_a_state_of_json_is_shown_as_json():
    asked = parse_systemone({"state": {"a": [1]}, "questions": {"q": NOUL}})
    assert asked.messages[0]["content"] == '{"a":[1]}'


def test_all_questions_of_a_request_begin_alike():
    asked = ask(a=NOUL, b=SCORE)
    first, second = (asked.write_messages(question)[0]["content"] for question in asked.questions)
    assert first.startswith("Help!\n\nQuestion: ") and second.startswith("Help!\n\nQuestion: ")


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (tokens(A=0.2, B=0.1, C=0.1), (0.5, 0.25, 0.25)),
        (tokens(B=0.9, x=0.05), (0.0, 1.0, 0.0)),
        (tokens(**{"A": 0.2, " A": 0.2, "(B": 0.2, "C)": 0.2}), (0.5, 0.25, 0.25)),
        (tokens(**{"▁A": 0.2, "ĠB": 0.2, "D": 0.5, "AB": 0.1}), (0.5, 0.5, 0.0)),
        ([{"token": "A", "logprob": -1.0}, {"token": None, "logprob": 0}], (1.0, 0.0, 0.0)),
    ],
)
def test_the_shares_of_the_letters(entries, expected):
    (question,) = ask(team=CHOICE).questions
    assert read_distribution(question, entries).probabilities == pytest.approx(expected)


@pytest.mark.parametrize("entries", [[], tokens(x=0.9, D=0.1)])
def test_a_model_that_would_say_something_else(entries):
    (question,) = ask(team=CHOICE).questions
    with pytest.raises(BadRequest, match="cannot answer question 'team'"):
        read_distribution(question, entries)


def test_confidence_is_none_by_chance_and_whole_for_a_certain_answer():
    assert Distribution((0.5, 0.5)).confidence == 0
    assert Distribution((0.0, 1.0, 0.0)).confidence == 1
    assert Distribution((0.25, 0.5, 0.25)).confidence == pytest.approx(0.25)


def test_the_answers_of_system_one():
    asked = ask(urgent=NOUL, team=CHOICE, anger=SCORE)
    found = [
        Distribution((0.75, 0.25)), Distribution((0.25, 0.5, 0.25)), Distribution((0.0, 0.5, 0.5)),
    ]  # fmt: skip
    assert to_builtins(write_systemone(asked, found, model="m", counts=COUNTS)) == {
        "model": "m",
        "answers": {
            "urgent": {"type": "noul", "noul": 0.75},
            "team": {
                "type": "choice", "choice": "support", "confidence": pytest.approx(0.25),
                "probabilities": {"billing": 0.25, "support": 0.5, "sales": 0.25},
            },
            "anger": {
                "type": "score", "score": 1.5, "confidence": pytest.approx(0.25),
                "legend": {"0": "calm", "1": "annoyed", "2": "furious"},
                "probabilities": {"0": 0.0, "1": 0.5, "2": 0.5},
            },
        },
        "usage": {"input_tokens": 30, "output_tokens": 3},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"questions": {}}, "questions"),
        ({"questions": [NOUL]}, "questions"),
        ({"questions": {"q": "x"}}, "'q': .*expected an object"),
        ({"questions": {"q": NOUL | {"type": "x"}}}, "'q': .*'type': invalid value 'x'"),
        ({"questions": {"q": {"type": "noul"}}}, "'q': it has no instructions"),
        ({"questions": {"q": NOUL | {"criteria": {"maybe": "x"}}}}, "'maybe'.*criteria"),
        ({"questions": {"q": CHOICE | {"criteria": {"only": None}}}}, "'criteria': .*length >= 2"),
        ({"questions": {"q": CHOICE | {"criteria": dict.fromkeys(map(str, range(27)))}}}, "<= 26"),
        ({"questions": {"q": CHOICE | {"criteria": {"a": 1, "b": None}}}}, "expected a string"),
        ({"questions": {"q": SCORE | {"criteria": ["one"]}}}, "'criteria': .*length >= 2"),
        ({"questions": {"q": SCORE | {"criteria": [None] * 11}}}, "'criteria': .*length <= 10"),
        ({"questions": {"q": SCORE | {"criteria": [None, 5]}}}, r"'criteria\[1\]': .*a string"),
        ({"questions": {"q": SCORE | {"instructions": None}}}, "instructions"),
        ({"questions": {"q": SCORE | {"instructions": ""}}}, "it has no instructions"),
        ({"state": 5}, "state"),
        ({"images": ["aGk="]}, "images"),
    ],
)
def test_system_one_refused(changes, text):
    with pytest.raises(BadRequest, match=text):
        parse_systemone({"state": "x", "questions": {"q": NOUL}} | changes)


def test_a_state_must_be_there():
    with pytest.raises(BadRequest, match="state is required"):
        parse_systemone({"questions": {"q": NOUL}})
    assert parse_systemone({"state": None, "questions": {"q": NOUL}}).messages[0]["content"] == ""


QUESTIONS = [
    {"type": "predicate", "name": "urgent", "instructions": "Is it urgent?"},
    {
        "type": "choice", "instructions": [{"type": "input_text", "text": "Which?"}],
        "choices": [{"value": "a", "description": "the first"}, {"value": True, "more": 1}],
    },
    {"type": "score", "name": "s", "instructions": "How?", "levels": [{"label": "low"},
                                                                     {"label": "high"}]},
]  # fmt: skip


def decide(body):
    return parse_decisions(parse_openai(json.dumps(body).encode(), DecisionsBody))


def test_the_answers_of_decisions():
    asked = decide({"input": "Help!", "questions": QUESTIONS})
    found = [Distribution((0.75, 0.25)), Distribution((0.0, 1.0)), Distribution((0.5, 0.5))]
    reply = to_builtins(write_decisions(asked, found, model="m", counts=COUNTS))
    assert reply["answers"] == [
        {"type": "predicate", "name": "urgent", "probability": 0.75},
        {
            "type": "choice", "name": None, "choice": True, "confidence": 1.0,
            "probabilities": [
                {"value": "a", "probability": 0.0}, {"value": True, "probability": 1.0},
            ],
        },
        {
            "type": "score", "name": "s", "score": 0.5, "confidence": 0.0,
            "probabilities": [
                {"value": 0, "label": "low", "probability": 0.5},
                {"value": 1, "label": "high", "probability": 0.5},
            ],
        },
    ]  # fmt: skip
    assert reply["usage"]["total_tokens"] == 33
    assert reply["usage"]["input_tokens_details"]["cached_tokens"] == 12


def test_a_conversation_stays_one():
    asked = decide(
        {
            "input": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello"},
            ],
            "questions": QUESTIONS,
        }
    )
    roles = [message["role"] for message in asked.write_messages(asked.questions[0])]
    assert roles == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"input": None}, "'input'"),
        ({"questions": []}, "'questions'"),
        ({"questions": {"q": QUESTIONS[0]}}, "'questions'"),
        ({"questions": ["x"]}, r"'questions\[0\]': expected an object"),
        ({"questions": [QUESTIONS[0] | {"type": "noul"}]}, r"'questions\[0\]\.type': .*'noul'"),
        ({"questions": [QUESTIONS[0] | {"instructions": ""}]}, "'questions.*instructions': .*>= 1"),
        ({"questions": [QUESTIONS[0] | {"instructions": [5]}]}, r"instructions\[0\]': .*an object"),
        ({"questions": [QUESTIONS[0] | {"name": 5}]}, r"name': expected a string"),
        ({"questions": [QUESTIONS[1] | {"choices": [{"value": "a"}]}]}, "choices': .*length >= 2"),
        ({"questions": [QUESTIONS[1] | {"choices": [{"value": 1}, {"value": 2}]}]}, "value"),
        ({"questions": [QUESTIONS[2] | {"levels": [{"label": True}, {"label": "b"}]}]}, "label"),
        ({"questions": QUESTIONS[:1] * 401}, "'questions': .*length <= 400"),
    ],
)
def test_decisions_refused(changes, text):
    with pytest.raises(BadRequest, match=text):
        decide({"input": "x", "questions": QUESTIONS} | changes)
