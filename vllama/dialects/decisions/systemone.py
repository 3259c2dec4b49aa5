"""System One: typed questions about a state, `POST /v1/systemone`.

TypeSafe's form, which Ollama has since 0.35, and vLLM and llama.cpp as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllama.base.errors import BadRequest
from vllama.chat.go_json import encode_json, kind
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
from vllama.dialects.openai.answer_types import SystemOneAnswers


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
        raise BadRequest(f"{where} must be an object, but is {kind(value)}")
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
    raise BadRequest(f"{where} must be text, an object or an array, but is {kind(value)}")
