"""Typed questions about a state, and their answers as probabilities.

The options of a `Question` stand under letters in a prompt; the probabilities are those of the
letters as the next token. The expected value and the confidence are derived from them as TypeSafe
does. `forms` has the bodies in which clients ask.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from vllama.base.errors import BadRequest

LETTERS = string.ascii_uppercase
MAX_LEVELS = 10
"""TypeSafe's limit for the levels of a score."""
MAX_QUESTIONS = 400
"""OpenAI's limit for one request."""
PREFILL = "Answer: ("
_AROUND = " \t\r\n().:*\u2581\u0120"  # what tokens may have around a letter


class QuestionKind(StrEnum):
    """Kind of a question, in System One's words."""

    NOUL = "noul"  # whether something is true
    CHOICE = "choice"
    SCORE = "score"


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One possible answer: its value for the client, and what the model reads."""

    value: Any
    text: str

    @classmethod
    def describe(cls, value: Any, word: str | bool, description: str | None) -> Option:
        """Return an option that the model reads as a word with its description."""
        text = word if isinstance(word, str) else str(word).lower()
        if description and description != text:
            text = f"{text}: {description}"
        return cls(value=value, text=text)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One question. `name` None: the client gave none. Of a noul the first option is true."""

    kind: QuestionKind
    name: str | None
    instructions: str
    options: tuple[Option, ...]

    def write_prompt(self) -> str:
        """Return the question with its options, as the model reads it."""
        rows = [
            f"({letter}) {option.text}"
            for letter, option in zip(LETTERS, self.options, strict=False)
        ]
        return "\n".join(
            (f"Question: {self.instructions}", *rows, "Answer with the letter of one option.")
        )


class Distribution(msgspec.Struct, frozen=True):
    """The probabilities of a question's options, in their order; their sum is 1."""

    probabilities: tuple[float, ...]

    @property
    def best(self) -> int:
        """The number of the likeliest option."""
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @property
    def expected(self) -> float:
        """The mean of the options' numbers."""
        return sum(number * share for number, share in enumerate(self.probabilities))

    @property
    def confidence(self) -> float:
        """Margin of the likeliest over chance: 0 if all are alike, 1 if one is certain."""
        chance = 1 / len(self.probabilities)
        return max(0.0, min(1.0, (max(self.probabilities) - chance) / (1 - chance)))


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that all questions of a request took."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0


class Questions(msgspec.Struct, frozen=True, kw_only=True):
    """A request: the conversation that all questions are about, and the questions."""

    messages: tuple[Mapping[str, Any], ...]
    questions: tuple[Question, ...]

    def write_messages(self, question: Question) -> list[dict[str, Any]]:
        """Return the conversation in which the model answers one question.

        What comes before the question is the same for all, so that engines can keep it.
        """
        messages = [dict(message) for message in self.messages]
        text, last = question.write_prompt(), messages[-1]
        if last["role"] == "user" and isinstance(last["content"], str):
            messages[-1] = last | {"content": f"{last['content']}\n\n{text}"}
        else:
            messages.append({"role": "user", "content": text})
        return [*messages, {"role": "assistant", "content": PREFILL}]


def read_distribution(question: Question, tokens: Sequence[Mapping[str, Any]]) -> Distribution:
    """Return the probabilities of the options from those of the likeliest next tokens.

    `tokens` have a `token` and a `logprob`. An option that is not among them counts as impossible.
    Raises BadRequest if none is: the model would say something else first.
    """
    letters = LETTERS[: len(question.options)]
    shares = dict.fromkeys(letters, 0.0)
    for entry in tokens:
        text, logprob = entry.get("token"), entry.get("logprob")
        letter = text.strip(_AROUND) if isinstance(text, str) else ""
        if letter in shares and isinstance(logprob, int | float):
            shares[letter] += math.exp(min(0.0, logprob))
    total = sum(shares.values())
    if not total:
        raise BadRequest(
            f"cannot answer {_name(question)}: none of its options is among the model's "
            f"{len(tokens)} most likely next tokens",
            hint="use a model that follows instructions, without thinking",
        )
    return Distribution(tuple(share / total for share in shares.values()))


def make_noul_options(criteria: Mapping[Any, str | None]) -> tuple[Option, ...]:
    """Return the two options of a noul, which `criteria` may describe."""
    return (
        Option.describe(True, "yes", criteria.get("true")),
        Option.describe(False, "no", criteria.get("false")),
    )


def _name(question: Question) -> str:
    return f"question '{question.name}'" if question.name else "a question"
