"""The bodies of requests that score texts: rerank, score, and typed questions."""

from __future__ import annotations

from vllama.dialects.go_types import Schema
from vllama.routes.fields import (
    BOOLEAN,
    INTEGER,
    NON_EMPTY,
    TEXT,
    TEXT_OR_NULL,
    make_array,
    make_object,
    make_word,
)
from vllama.routes.openai.response_bodies import MESSAGE
from vllama.routes.operation import Body

_INSTRUCTIONS: Schema = {"anyOf": [NON_EMPTY, {"type": "object"}]}
_CHOICES: Schema = {
    "type": "object",
    "minProperties": 2,
    "maxProperties": 26,
    "additionalProperties": TEXT_OR_NULL,
}
_STATE_QUESTION: Schema = {
    "anyOf": [
        make_object(
            {
                "criteria": {
                    "type": ["object", "null"],
                    "properties": dict.fromkeys(("true", "false"), TEXT_OR_NULL),
                    "additionalProperties": False,
                }
            },
            type=make_word("noul"),
            instructions=_INSTRUCTIONS,
        ),
        make_object(type=make_word("choice"), instructions=_INSTRUCTIONS, criteria=_CHOICES),
        make_object(
            type=make_word("score"),
            instructions=_INSTRUCTIONS,
            criteria=make_array(TEXT_OR_NULL, minItems=2, maxItems=10),
        ),
    ]
}


def _make_question(kind: str, **rows: Schema) -> Schema:
    named = {"name": TEXT_OR_NULL}
    return make_object(named, type=make_word(kind), instructions=NON_EMPTY, **rows)


def _make_rows(field: str, most: int) -> Schema:
    row = make_object({"description": TEXT_OR_NULL}, **{field: TEXT})
    return make_array(row, minItems=2, maxItems=most)


_TYPED: Schema = {
    "anyOf": [
        _make_question("predicate"),
        _make_question("choice", choices=_make_rows("value", 26)),
        _make_question("score", levels=_make_rows("label", 10)),
    ]
}
_TEXTS: Schema = {"anyOf": [TEXT, make_array(TEXT)]}
_RERANKER = "bge-reranker-v2-m3"
RERANK = Body(
    name="RerankRequest",
    required=("query", "documents"),
    fields={
        "query": TEXT,
        "documents": make_array({"anyOf": [TEXT, {"type": "object"}]}),
        "top_n": INTEGER | {"minimum": 0},
        "return_documents": BOOLEAN,
    },
    examples={
        "Two documents": {
            "model": _RERANKER,
            "query": "What do pandas eat?",
            "documents": ["Pandas eat bamboo.", "Paris is in France."],
        }
    },
)
SCORE = Body(
    name="ScoreRequest",
    required=("text_1", "text_2"),
    fields={"text_1": _TEXTS, "text_2": _TEXTS},
    examples={"A pair": {"model": _RERANKER, "text_1": "a panda", "text_2": "a bear"}},
)
DECISIONS = Body(
    name="DecisionsRequest",
    required=("input", "questions"),
    fields={
        "input": {
            "description": "what the questions are about",
            "anyOf": [NON_EMPTY, make_array(MESSAGE)],
        },
        "questions": make_array(_TYPED, maxItems=400),
    },
    examples={
        "A predicate": {
            "input": "The parcel came a week late.",
            "questions": [
                {"type": "predicate", "name": "angry", "instructions": "Is it a complaint?"}
            ],
        }
    },
)
SYSTEM_ONE = Body(
    name="SystemOneRequest",
    required=("state", "questions"),
    fields={
        "state": {
            "anyOf": [TEXT_OR_NULL, {"type": "object"}, {"type": "array", "items": {}}],
        },
        "questions": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": _STATE_QUESTION,
        },
    },
    examples={
        "A yes-or-no question": {
            "state": "The parcel came a week late.",
            "questions": {"angry": {"type": "noul", "instructions": "Is it a complaint?"}},
        }
    },
)
