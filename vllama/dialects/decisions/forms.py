"""The two forms of typed questions: OpenAI's Decisions, and System One.

`POST /v1/decisions` is OpenAI's, `POST /v1/systemone` TypeSafe's, which Ollama has since 0.35, and
vLLM and llama.cpp have, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from vllama.base.errors import BadRequest
from vllama.base.meaning import says
from vllama.chat.bodies import convert, encode_json, find_error, name_type
from vllama.chat.request import MAX_MESSAGES
from vllama.dialects.decisions.questions import (
    LETTERS,
    MAX_LEVELS,
    MAX_QUESTIONS,
    Counts,
    Distribution,
    Option,
    Question,
    QuestionKind,
    Questions,
    make_noul_options,
)
from vllama.dialects.ollama.request_types import Model, OwnFields
from vllama.dialects.openai.answer_types import Decisions, SystemOneAnswers
from vllama.dialects.responses.items import input_messages
from vllama.dialects.responses.request_types import MESSAGE, InputItem

# -- Decisions -------------------------------------------------------------------------------


class TextPart(Struct, tag="input_text"):
    """Text."""

    text: str


class JsonPart(Struct, tag="input_json"):
    """A JSON value."""

    data: dict[str, Any] | list[Any]


class Possibility(Struct):
    """An option of a choice."""

    value: str | bool
    description: str | None = None


class Level(Struct):
    """A level of a scale."""

    label: str
    description: str | None = None


class Predicate(Struct, kw_only=True, tag="predicate"):
    """A yes-or-no question."""

    instructions: (
        Annotated[str, Meta(min_length=1)]
        | Annotated[list[TextPart | JsonPart], Meta(min_length=1)]
    )
    name: str | None = None


class ChoiceOfOne(Predicate, kw_only=True, tag="choice"):
    """A question with several options, one of which is right."""

    choices: Annotated[list[Possibility], Meta(min_length=2, max_length=len(LETTERS))]


class ScoreOfLevels(Predicate, kw_only=True, tag="score"):
    """A question answered on a scale."""

    levels: Annotated[list[Level], Meta(min_length=2, max_length=MAX_LEVELS)]


_Questions: TypeAlias = list[Predicate | ChoiceOfOne | ScoreOfLevels]
_Messages: TypeAlias = Annotated[
    list[Annotated[InputItem, says(**MESSAGE)]], says(minItems=1), Meta(max_length=MAX_MESSAGES)
]


class DecisionsBody(OwnFields):
    """`POST /v1/decisions`."""

    model: Model = ""
    input: Annotated[
        Annotated[str, says(minLength=1)] | _Messages | None,
        says("subject of the questions", required=True),
    ] = None
    questions: Annotated[
        _Questions, says(required=True), Meta(min_length=1, max_length=MAX_QUESTIONS)
    ] = []


def parse_decisions(body: Mapping[str, Any]) -> Questions:
    """Parse a decoded body, whose fields of `DecisionsBody` have their types. Raises BadRequest."""
    for name in ("questions", "input"):
        if not body.get(name):
            raise BadRequest(f"Missing required parameter: '{name}'.")
    questions = [_read_question(one) for one in convert(body["questions"], _Questions)]
    messages, passed_over = input_messages(body["input"])
    if not messages:
        raise BadRequest(f"cannot use 'input': it contains only {', '.join(passed_over)[:200]}")
    return Questions(messages=tuple(messages), questions=tuple(questions))


def _read_question(given: Predicate) -> Question:
    match given:
        case ChoiceOfOne():
            kind = QuestionKind.CHOICE
            options = tuple(Option.describe(x.value, x.value, x.description) for x in given.choices)
        case ScoreOfLevels():
            kind = QuestionKind.SCORE
            options = tuple(Option.describe(x.label, x.label, x.description) for x in given.levels)
        case _:
            kind, options = QuestionKind.NOUL, make_noul_options({})
    asked = given.instructions
    if not isinstance(asked, str):
        asked = "\n".join(
            x.text if isinstance(x, TextPart) else encode_json(x.data).decode() for x in asked
        )
    return Question(kind=kind, name=given.name, instructions=asked, options=options)


def write_decisions(
    asked: Questions, found: Sequence[Distribution], *, model: str, counts: Counts
) -> Decisions:
    """Return the answer of `/v1/decisions`."""
    pairs = zip(asked.questions, found, strict=True)
    usage = {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts.prompt + counts.completion,
    }
    return Decisions(model, [_decisions_answer(one, shares) for one, shares in pairs], usage)


def _decisions_answer(question: Question, found: Distribution) -> dict[str, Any]:
    name = {"name": question.name}
    pairs = list(zip(question.options, found.probabilities, strict=True))
    match question.kind:
        case QuestionKind.NOUL:
            return {"type": "predicate", **name, "probability": found.probabilities[0]}
        case QuestionKind.CHOICE:
            rows = [{"value": option.value, "probability": share} for option, share in pairs]
            best = question.options[found.best].value
            answer: dict[str, Any] = {"type": "choice", **name, "choice": best}
        case QuestionKind.SCORE:
            rows = [
                {"value": number, "label": option.value, "probability": share}
                for number, (option, share) in enumerate(pairs)
            ]
            answer = {"type": "score", **name, "score": found.expected}
    return answer | {"probabilities": rows, "confidence": found.confidence}


# -- System One ------------------------------------------------------------------------------


_Content: TypeAlias = str | dict[str, Any] | list[Any]


class NoulQuestion(Struct, kw_only=True, tag="noul"):
    """Asks whether a statement is true. The criteria can describe both answers."""

    instructions: Annotated[_Content | None, says(required=True, minLength=1)] = None
    criteria: (
        Annotated[
            dict[Literal["true", "false"], str | None],
            says(propertyNames={"enum": ["true", "false"]}),
        ]
        | None
    ) = None


class ChoiceQuestion(Struct, kw_only=True, tag="choice"):
    """Asks which option is right. The criteria describe the options."""

    instructions: Annotated[_Content, says(minLength=1)]
    criteria: Annotated[dict[str, str | None], Meta(min_length=2, max_length=len(LETTERS))]


class ScoreQuestion(Struct, kw_only=True, tag="score"):
    """Asks for a level on a scale. The criteria describe the levels, from 0."""

    instructions: Annotated[_Content, says(minLength=1)]
    criteria: Annotated[list[str | None], Meta(min_length=2, max_length=MAX_LEVELS)]


_SystemQuestion: TypeAlias = NoulQuestion | ChoiceQuestion | ScoreQuestion


class SystemOneBody(Struct):
    """`POST /v1/systemone`."""

    model: Model
    state: Annotated[_Content | None, says("subject of the questions")]
    questions: Annotated[
        dict[str, _SystemQuestion],
        says("questions by name"),
        Meta(min_length=1, max_length=MAX_QUESTIONS),
    ]


def parse_systemone(body: Mapping[str, Any]) -> Questions:
    """Parse a decoded body of `/v1/systemone`. Raises BadRequest."""
    state, questions = body.get("state"), body.get("questions")
    if "state" not in body:
        raise BadRequest("state is required")
    if not isinstance(state, str | dict | list | None):
        raise BadRequest(f"state must be text, an object or an array, but is {name_type(state)}")
    for name in ("images", "videos"):
        if body.get(name):
            raise BadRequest(f"cannot use '{name}': the state must be text or JSON")
    if not isinstance(questions, dict) or not 1 <= len(questions) <= MAX_QUESTIONS:
        raise BadRequest(f"questions must be an object with 1 to {MAX_QUESTIONS} questions")
    parsed = [_parse_question(name, value) for name, value in questions.items()]
    message = {"role": "user", "content": _write_content(state)}
    return Questions(messages=(message,), questions=tuple(parsed))


def _parse_question(name: str, value: object) -> Question:
    if problem := find_error(value, _SystemQuestion):
        raise BadRequest(f"cannot read the question '{name}': {problem}")
    given: _SystemQuestion = convert(value, _SystemQuestion)
    asked, criteria = _write_content(given.instructions), given.criteria
    match given:
        case NoulQuestion():
            kind, options = QuestionKind.NOUL, make_noul_options(given.criteria or {})
            if criteria:
                asked = asked or "Which of the two is the case?"
        case ChoiceQuestion():
            kind = QuestionKind.CHOICE
            options = tuple(Option.describe(x, x, text) for x, text in given.criteria.items())
        case ScoreQuestion():
            kind = QuestionKind.SCORE
            options = tuple(
                Option(value=x, text=text or str(x)) for x, text in enumerate(given.criteria)
            )
    if not asked:
        raise BadRequest(f"cannot read the question '{name}': it has no instructions")
    return Question(kind=kind, name=name, instructions=asked, options=options)


def write_systemone(
    asked: Questions, found: Sequence[Distribution], *, model: str, counts: Counts
) -> SystemOneAnswers:
    """Return the answer of `/v1/systemone`."""
    pairs = zip(asked.questions, found, strict=True)
    answers = {str(one.name): _systemone_answer(one, shares) for one, shares in pairs}
    usage = {"input_tokens": counts.prompt, "output_tokens": counts.completion}
    return SystemOneAnswers(model, answers, usage)


def _systemone_answer(question: Question, found: Distribution) -> dict[str, Any]:
    if question.kind is QuestionKind.NOUL:
        return {"type": "noul", "noul": found.probabilities[0]}
    keys = [str(option.value) for option in question.options]
    shares = dict(zip(keys, found.probabilities, strict=True))
    if question.kind is QuestionKind.CHOICE:
        return {
            "type": "choice", "choice": keys[found.best], "probabilities": shares,
            "confidence": found.confidence,
        }  # fmt: skip
    return {
        "type": "score",
        "score": found.expected,
        "legend": {key: option.text for key, option in zip(keys, question.options, strict=True)},
        "probabilities": shares,
        "confidence": found.confidence,
    }


def _write_content(value: _Content | None) -> str:
    """Return text as it is, and JSON as text."""
    if value is None or isinstance(value, str):
        return value or ""
    return encode_json(value).decode()
