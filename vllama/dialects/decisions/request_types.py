"""The bodies of the two forms of typed questions. The questions are checked where they are read."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from vllama.base.meaning import TEXT, Schema, make_array, make_object, make_word, says
from vllama.chat.bodies import Body
from vllama.chat.request import MAX_MESSAGES
from vllama.dialects.decisions.questions import LETTERS, MAX_LEVELS, MAX_QUESTIONS
from vllama.dialects.ollama.request_types import Model
from vllama.dialects.responses.request_types import MESSAGE, NON_EMPTY, InputItem

_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def _describe_question(kind: str, **rows: Schema) -> Schema:
    asked = {"type": make_word(kind), "instructions": NON_EMPTY}
    return make_object({"name": TEXT}, **asked, **rows)


def _describe_rows(field: str, most: int) -> Schema:
    row = make_object({"description": TEXT}, **{field: TEXT})
    return make_array(row, minItems=2, maxItems=most)


_QUESTION: Schema = {
    "anyOf": [
        _describe_question("predicate"),
        _describe_question("choice", choices=_describe_rows("value", len(LETTERS))),
        _describe_question("score", levels=_describe_rows("label", MAX_LEVELS)),
    ]
}


_Messages: TypeAlias = Annotated[
    list[Annotated[InputItem, says(**MESSAGE)]], says(minItems=1), Meta(max_length=MAX_MESSAGES)
]


class DecisionsBody(Body):
    """`POST /v1/decisions`."""

    model: Model = ""
    input: Annotated[
        Annotated[str, says(minLength=1)] | _Messages | None,
        says("the subject of the questions", required=True),
    ] = None
    questions: Annotated[
        Any, says(required=True, **make_array(_QUESTION, maxItems=MAX_QUESTIONS))
    ] = None


_INSTRUCTIONS: Schema = {"anyOf": [NON_EMPTY, {"type": "object"}]}
_ANSWERS: Schema = {"type": ["object", "null"], "additionalProperties": False}
_ANSWERS |= {"properties": dict.fromkeys(("true", "false"), _TEXT_OR_NULL)}
_OPTIONS: Schema = {"type": "object", "minProperties": 2, "maxProperties": len(LETTERS)}
_OPTIONS |= {"additionalProperties": _TEXT_OR_NULL}
_LEVELS = make_array(_TEXT_OR_NULL, minItems=2, maxItems=MAX_LEVELS)
_STATE: Schema = {"anyOf": [_TEXT_OR_NULL, {"type": "object"}, {"type": "array", "items": {}}]}
_STATE_QUESTION: Schema = {
    "anyOf": [
        make_object({"criteria": _ANSWERS}, type=make_word("noul"), instructions=_INSTRUCTIONS),
        make_object(type=make_word("choice"), instructions=_INSTRUCTIONS, criteria=_OPTIONS),
        make_object(type=make_word("score"), instructions=_INSTRUCTIONS, criteria=_LEVELS),
    ]
}


class SystemOneBody(Struct):
    """`POST /v1/systemone`."""

    model: Model
    state: Annotated[Any, says("the subject of the questions", **_STATE)]
    questions: Annotated[
        dict[str, Annotated[Any, says(**_STATE_QUESTION)]],
        says("the questions by their names", minProperties=1),
    ]
