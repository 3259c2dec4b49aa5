"""Routes that score texts and answers: rerank, score, and typed questions."""

from __future__ import annotations

from vllama.dialects.go_types import Schema
from vllama.dialects.openai import answer_types as answers
from vllama.openapi.fields import (
    BOOLEAN,
    EXAMPLE_MODEL,
    INTEGER,
    MODEL,
    NON_EMPTY,
    TEXT,
)
from vllama.openapi.operation import Body, Operation, Tag
from vllama.openapi.responses import MESSAGE

_INSTRUCTIONS: Schema = {"anyOf": [{"type": "string", "minLength": 1}, {"type": "object"}]}
_DESCRIPTION: Schema = {"type": ["string", "null"]}
_STATE_QUESTION: Schema = {
    "anyOf": [
        {
            "type": "object",
            "required": ["type", "instructions", *required],
            "properties": {
                "type": {"const": kind},
                "instructions": _INSTRUCTIONS,
                "criteria": criteria,
            },
        }
        for kind, required, criteria in (
            (
                "noul",
                (),
                {
                    "type": ["object", "null"],
                    "properties": dict.fromkeys(("true", "false"), _DESCRIPTION),
                    "additionalProperties": False,
                },
            ),
            (
                "choice",
                ("criteria",),
                {
                    "type": "object",
                    "minProperties": 2,
                    "maxProperties": 26,
                    "additionalProperties": _DESCRIPTION,
                },
            ),
            (
                "score",
                ("criteria",),
                {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 10,
                    "items": _DESCRIPTION,
                },
            ),
        )
    ]
}
_ROWS: dict[str, Schema] = {
    name: {
        "type": "array",
        "minItems": 2,
        "items": {
            "type": "object",
            "required": [field],
            "properties": {field: TEXT, "description": _DESCRIPTION},
        },
    }
    for name, field in (("choices", "value"), ("levels", "label"))
}
_TYPED: Schema = {
    "anyOf": [
        {
            "type": "object",
            "required": ["type", "instructions", *rows],
            "properties": {
                "type": {"const": kind},
                "name": {"type": ["string", "null"]},
                "instructions": {"type": "string", "minLength": 1},
                **{name: _ROWS[name] | {"maxItems": most} for name in rows},
            },
        }
        for kind, rows, most in (
            ("predicate", (), 0),
            ("choice", ("choices",), 26),
            ("score", ("levels",), 10),
        )
    ]
}


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        paths=("/v1/rerank", "/v1/reranking", "/v2/rerank", "/rerank", "/reranking"),
        tag=Tag.OPENAI,
        summary="Order documents by how well they fit a query",
        help="With `texts` in place of `documents` the answer is a bare array.",
        body=Body(
            required=("model", "query", "documents"),
            fields={
                "model": MODEL,
                "query": TEXT,
                "documents": {
                    "type": "array",
                    "minItems": 1,
                    "items": {"anyOf": [TEXT, {"type": "object"}]},
                },
                "top_n": INTEGER | {"minimum": 0},
                "return_documents": BOOLEAN,
            },
            examples={
                "Two documents": {
                    "model": "bge-reranker-v2-m3",
                    "query": "What do pandas eat?",
                    "documents": ["Pandas eat bamboo.", "Paris is in France."],
                }
            },
        ),
        answer=(answers.Ranking, list[answers.RankedText]),
        runs_model=True,
    ),
    Operation(
        paths=("/v1/score", "/score"),
        tag=Tag.OPENAI,
        summary="Compare pairs of texts",
        body=Body(
            required=("model", "text_1", "text_2"),
            fields={
                "model": MODEL,
                "text_1": {"anyOf": [TEXT, {"type": "array", "minItems": 1, "items": TEXT}]},
                "text_2": {"anyOf": [TEXT, {"type": "array", "minItems": 1, "items": TEXT}]},
            },
            examples={
                "A pair": {"model": "bge-reranker-v2-m3", "text_1": "a panda", "text_2": "a bear"}
            },
        ),
        answer=answers.Scores,
        runs_model=True,
    ),
    Operation(
        paths=("/v1/decisions",),
        tag=Tag.OPENAI,
        summary="Answer typed questions with probabilities",
        body=Body(
            required=("model", "input", "questions"),
            fields={
                "model": MODEL,
                "input": {
                    "description": "what the questions are about",
                    "anyOf": [NON_EMPTY, {"type": "array", "minItems": 1, "items": MESSAGE}],
                },
                "questions": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 400,
                    "items": _TYPED,
                },
            },
            examples={
                "A predicate": {
                    "model": EXAMPLE_MODEL,
                    "input": "The parcel came a week late.",
                    "questions": [
                        {"type": "predicate", "name": "angry", "instructions": "Is it a complaint?"}
                    ],
                }
            },
        ),
        answer=answers.Decisions,
        runs_model=True,
    ),
    Operation(
        paths=("/v1/systemone",),
        tag=Tag.OPENAI,
        summary="Answer typed questions about a state, in System One's form",
        body=Body(
            required=("model", "state", "questions"),
            fields={
                "model": MODEL,
                "state": {"type": ["string", "object", "array", "null"]},
                "questions": {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": _STATE_QUESTION,
                },
            },
            examples={
                "A yes-or-no question": {
                    "model": EXAMPLE_MODEL,
                    "state": "The parcel came a week late.",
                    "questions": {"angry": {"type": "noul", "instructions": "Is it a complaint?"}},
                }
            },
        ),
        answer=answers.SystemOneAnswers,
        error_form=Tag.OLLAMA,
        runs_model=True,
    ),
)
