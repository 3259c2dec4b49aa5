"""Requests and answers of rerank and score."""

import json

import pytest
from msgspec import to_builtins

from vllama.base.errors import BadRequest, UpstreamError
from vllama.dialects.openai.read import parse_openai
from vllama.dialects.rerank import (
    RerankBody,
    parse_rerank,
    parse_score,
    read_scores,
    write_rerank_body,
)


def rerank(body):
    return parse_rerank(parse_openai(json.dumps(body).encode(), RerankBody))


def write(asked, scores, **more):
    """What a client gets."""
    return to_builtins(asked.write(scores, model="m", identity="i", **more))


def answer(*scores, **more):
    """An engine's answer; it may list documents in any order."""
    rows = [{"index": n, "relevance_score": score} for n, score in enumerate(scores)]
    return json.dumps({"results": rows[::-1], **more}).encode()


def test_scores_are_in_the_order_of_the_documents():
    assert read_scores(answer(0.5, -2, 3, usage={"total_tokens": 9}), 3) == ([0.5, -2.0, 3.0], 9)
    assert read_scores(answer(1, usage={"prompt_tokens": 4}), 1) == ([1.0], 4)
    assert read_scores(answer(1), 1) == ([1.0], 0)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", answer(), answer(1), answer(1, 2, 3), b'{"results":[{"index":0}]}'],
)
def test_a_document_without_a_score_is_the_engines_fault(body):
    with pytest.raises(UpstreamError):
        read_scores(body, 2)


def test_the_best_comes_first_and_equal_ones_keep_their_order():
    asked = rerank({"query": "q", "documents": ["a", "b", {"text": "c"}, "d"], "top_n": 3})
    reply = write(asked, [0.1, 0.7, 0.7, -1.0], tokens=5)
    assert reply["results"] == [
        {"index": 1, "relevance_score": 0.7, "document": {"text": "b"}},
        {"index": 2, "relevance_score": 0.7, "document": {"text": "c"}},
        {"index": 0, "relevance_score": 0.1, "document": {"text": "a"}},
    ]
    assert reply["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


@pytest.mark.parametrize("top_n", [None, 0])
def test_without_a_number_all_are_returned(top_n):
    asked = rerank({"query": "q", "documents": ["a", "b"], "top_n": top_n})
    assert len(write(asked, [1.0, 2.0], tokens=0)["results"]) == 2


def test_a_whole_number_may_have_a_decimal_point():
    asked = rerank({"query": "q", "documents": ["a", "b"], "top_n": 1.0})
    assert len(write(asked, [1.0, 2.0], tokens=0)["results"]) == 1


def test_documents_are_left_out_on_request():
    asked = rerank({"query": "q", "documents": ["a"], "return_documents": False})
    reply = write(asked, [1.0], tokens=0)
    assert reply["results"] == [{"index": 0, "relevance_score": 1.0}]


def test_the_bare_form():
    body = {"query": "q", "texts": ["a", "b"], "return_text": True, "truncate": True}
    assert write(rerank(body), [1.0, 2.0], tokens=0) == [
        {"index": 1, "score": 2.0, "text": "b"}, {"index": 0, "score": 1.0, "text": "a"},
    ]  # fmt: skip


def test_an_engine_gets_texts_and_the_fields_that_are_its_own():
    body = {
        "model": "m", "query": "q", "documents": ["a", {"text": "b"}, {"image": "data:,x"}],
        "top_n": 1, "truncate_prompt_tokens": 100,
    }  # fmt: skip
    asked = rerank(body)
    assert write_rerank_body(asked.query, asked.documents, asked.fields, "theirs") == {
        "model": "theirs", "query": "q", "documents": ["a", "b", {"image": "data:,x"}],
        "truncate_prompt_tokens": 100,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "'query'"),
        ({"query": 5, "documents": ["a"]}, "'query'"),
        ({"query": "q"}, "'documents'"),
        ({"query": None, "documents": ["a"]}, "'query'"),
        ({"query": "q", "documents": "x"}, "'documents'"),
        ({"query": "q", "documents": []}, "'documents'"),
        ({"query": "q", "documents": [None]}, r"'documents\[0\]'"),
        ({"query": "q", "texts": [{"text": "a"}]}, r"'texts\[0\]'"),
        ({"query": "q", "documents": ["a"], "top_n": True}, "'top_n'"),
        ({"query": "q", "documents": ["a"], "top_n": 1.5}, "'top_n'"),
        ({"query": "q", "documents": ["a"], "top_n": -1}, "'top_n'"),
        ({"query": "q", "documents": ["a"], "return_documents": "no"}, "'return_documents'"),
    ],
)
def test_refused(body, text):
    with pytest.raises(BadRequest, match=text):
        rerank(body)


@pytest.mark.parametrize(
    ("body", "pairs"),
    [
        ({"text_1": "a", "text_2": "b"}, [("a", ("b",))]),
        ({"text_1": "a", "text_2": ["b", "c"]}, [("a", ("b", "c"))]),
        ({"text_1": ["a", "b"], "text_2": ["c", "d"]}, [("a", ("c",)), ("b", ("d",))]),
        ({"queries": ["a"], "documents": ["b", "c"]}, [("a", ("b", "c"))]),
    ],
)
def test_pairs_to_score(body, pairs):
    assert list(parse_score(body).comparisons()) == pairs


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text_1": "a"},
        {"text_1": [], "text_2": "b"},
        {"text_1": "a", "text_2": []},
        {"text_1": ["a", "b"], "text_2": ["c"]},
        {"text_1": 3, "text_2": "b"},
    ],
)
def test_pairs_refused(body):
    with pytest.raises(BadRequest):
        parse_score(body)


def test_the_answer_of_score():
    asked = parse_score({"text_1": "a", "text_2": ["b", "c"]})
    reply = write(asked, [0.5, 1.5], created_s=7, tokens=3)
    assert [row["score"] for row in reply["data"]] == [0.5, 1.5]
    assert (reply["created"], reply["usage"]["total_tokens"]) == (7, 3)
