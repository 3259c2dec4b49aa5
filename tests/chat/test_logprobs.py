"""Logprobs from one dialect's shape into another's."""

from __future__ import annotations

from typing import Any

import pytest

from vllama.chat.logprobs import convert_completion_logprobs, convert_logprobs, tidy


def test_of_two_alternatives_with_one_text_the_likelier_stays() -> None:
    """Parts of characters are all shown as the same mark."""
    alternatives = [
        {"token": "о", "logprob": -0.64, "bytes": [208, 190]},
        {"token": "�", "logprob": -1.0, "bytes": [208]},
        {"token": "�", "logprob": -6.1, "bytes": [209]},
    ]
    entry = {"token": "о", "logprob": -0.64, "bytes": [208, 190], "top_logprobs": alternatives}
    found = convert_completion_logprobs({"content": [entry]}, 0, 3)
    assert found is not None
    assert found["top_logprobs"] == [{"о": -0.64, "�": -1.0}]


@pytest.mark.parametrize(
    "content",
    [
        5, "x", {"a": 1}, [5, None, "x", []], [{"token": 5, "bytes": None, "top_logprobs": 5}],
        [{"token": "a", "top_logprobs": {"a": 1}}], [{"token": "a", "top_logprobs": [5, None]}],
    ],
)  # fmt: skip
def test_what_is_none_is_passed_over(content: Any) -> None:
    for source in ({"content": content}, {"tokens": content, "token_logprobs": content}):
        tidy(source, 1)
        convert_logprobs(source, 1)
        convert_completion_logprobs(source, 0, 1)
