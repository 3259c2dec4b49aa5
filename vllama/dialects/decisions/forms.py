"""OpenAI's Decisions API: typed questions about an input, `POST /v1/decisions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllama.base.errors import BadRequest
from vllama.chat.bodies import encode_json, name_type
from vllama.dialects.decisions.questions import (
    LETTERS,
    MAX_LEVELS,
    Counts,
    Decision,
    Distribution,
    Option,
    Question,
    QuestionKind,
    check_count,
    check_options,
    describe_option,
    make_noul_options,
    read_text,
)
from vllama.dialects.openai.answer_types import Decisions, SystemOneAnswers
from vllama.dialects.responses.items import input_messages


def parse_decisions(body: Mapping[str, Any]) -> Decision:
    """Parse a decoded body, whose fields of `DecisionsBody` have their types. Raises BadRequest."""
    questions = body.get("questions")
    if not isinstance(questions, list) or not questions:
        raise BadRequest("Invalid value for 'questions': expected an array that is not empty.")
    check_count(questions)
    parsed = [
        _parse_decisions_question(f"questions[{number}]", value)
        for number, value in enumerate(questions)
    ]
    messages = input_messages(body.get("input"))
    if not messages:
        raise BadRequest("Missing required parameter: 'input'.")
    return Decision(messages=tuple(messages), questions=tuple(parsed))


def _parse_decisions_question(where: str, value: object) -> Question:
    if not isinstance(value, Mapping):
        raise BadRequest(f"Invalid value for '{where}': expected an object.")
    name = value.get("name")
    if name is not None and not isinstance(name, str):
        raise BadRequest(f"Invalid value for '{where}.name': expected a string.")
    asked = _parts(f"{where}.instructions", value.get("instructions"))
    match value.get("type"):
        case "predicate":
            known = QuestionKind.NOUL
            options = make_noul_options(where, None)
        case "choice":
            known = QuestionKind.CHOICE
            rows = _objects(f"{where}.choices", value.get("choices"), "value", len(LETTERS))
            options = tuple(_decisions_option(row, "value") for row in rows)
        case "score":
            known = QuestionKind.SCORE
            rows = _objects(f"{where}.levels", value.get("levels"), "label", MAX_LEVELS)
            options = tuple(_decisions_option(row, "label") for row in rows)
        case other:
            raise BadRequest(
                f"Invalid value for '{where}.type': {other!r:.80}. Supported values are: "
                "'predicate', 'choice' and 'score'."
            )
    return Question(kind=known, name=name, instructions=asked, options=options)


def _objects(where: str, rows: object, field: str, most: int) -> list[Mapping[str, Any]]:
    """Return objects that have a `field` which is text, or true or false where that may be."""
    given = rows if isinstance(rows, list) else []
    check_options(where, len(given), most)
    allowed = (str, bool) if field == "value" else (str,)
    for number, row in enumerate(given):
        if not isinstance(row, Mapping) or not isinstance(row.get(field), allowed):
            raise BadRequest(f"Missing required parameter: '{where}[{number}].{field}'.")
    return given


def _decisions_option(row: Mapping[str, Any], field: str) -> Option:
    value = row[field]
    word = value if isinstance(value, str) else str(value).lower()
    return Option(value=value, text=describe_option(word, read_text(field, row.get("description"))))


def write_decisions(
    asked: Decision, found: Sequence[Distribution], *, model: str, counts: Counts
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


def _parts(where: str, value: object) -> str:
    """Return instructions of `/v1/decisions`: text, or parts of text and JSON."""
    if isinstance(value, str) and value:
        return value
    texts: list[str] = []
    for number, part in enumerate(value if isinstance(value, list) else ()):
        match part:
            case {"type": "input_text", "text": str(text)}:
                texts.append(text)
            case {"type": "input_json", "data": Mapping() | list() as data}:
                texts.append(encode_json(data).decode())
            case _:
                raise BadRequest(f"Invalid value for '{where}[{number}]': expected text or JSON.")
    if not texts:
        raise BadRequest(f"Missing required parameter: '{where}'.")
    return "\n".join(texts)


def parse_systemone(body: Mapping[str, Any]) -> Decision:
    """Parse a decoded body of `/v1/systemone`. Raises BadRequest."""
    if "state" not in body:
        raise BadRequest("state is required")
    for name in ("images", "videos"):
        if body.get(name):
            raise BadRequest(f"cannot use '{name}': a state is text or JSON here")
    questions = body.get("questions")
    if not isinstance(questions, Mapping) or not questions:
        raise BadRequest("questions must be an object that is not empty")
    check_count(questions)
    parsed = [_parse_systemone_question(str(name), value) for name, value in questions.items()]
    state = {"role": "user", "content": _content("state", body["state"])}
    return Decision(messages=(state,), questions=tuple(parsed))


def _parse_systemone_question(name: str, value: object) -> Question:
    where = f"questions.{name}"
    if not isinstance(value, Mapping):
        raise BadRequest(f"{where} must be an object, but is {name_type(value)}")
    criteria, instructions = value.get("criteria"), value.get("instructions")
    asked = _content(f"{where}.instructions", instructions) if instructions is not None else ""
    match value.get("type"):
        case "noul":
            options = make_noul_options(where, criteria)
            if not asked and not criteria:
                raise BadRequest(f"{where}.instructions is required")
            return Question(
                kind=QuestionKind.NOUL,
                name=name,
                instructions=asked or "Which of the two is the case?",
                options=options,
            )
        case "choice":
            given = criteria if isinstance(criteria, Mapping) else {}
            options = tuple(
                Option(
                    value=key, text=describe_option(key, read_text(f"{where}.criteria.{key}", text))
                )
                for key, text in given.items()
            )
            check_options(f"{where}.criteria", len(options), len(LETTERS))
        case "score":
            levels = criteria if isinstance(criteria, list) else []
            options = tuple(
                Option(
                    value=number, text=read_text(f"{where}.criteria[{number}]", text) or str(number)
                )
                for number, text in enumerate(levels)
            )
            check_options(f"{where}.criteria", len(options), MAX_LEVELS)
        case other:
            raise BadRequest(f"{where}.type must be choice, noul or score, but is {other!r:.80}")
    if not asked:
        raise BadRequest(f"{where}.instructions is required")
    return Question(
        kind=QuestionKind(value["type"]), name=name, instructions=asked, options=options
    )


def write_systemone(
    asked: Decision, found: Sequence[Distribution], *, model: str, counts: Counts
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


def _content(where: str, value: object) -> str:
    """Return text as it is, and JSON as text."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, Mapping | list):
        return "" if value is None else encode_json(value).decode()
    raise BadRequest(f"{where} must be text, an object or an array, but is {name_type(value)}")
