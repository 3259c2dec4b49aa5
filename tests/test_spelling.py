"""Names that a misspelled one may mean."""

from __future__ import annotations

import pytest

from vllama.base.spelling import find_similar, suggest

COMMANDS = ["run", "pull", "serve", "verify", "show", "list", "stop"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("pul", "pull"),
        ("srve", "serve"),
        ("SHWO", "show"),
        ("vreify", "verify"),
        ("lsit", "list"),
    ],
)
def test_a_slip_is_understood(name: str, meant: str) -> None:
    assert find_similar(name, COMMANDS)[0] == meant


@pytest.mark.parametrize("name", ["version", "purge", "x", "", "status", "nonsense"])
def test_another_word_is_not_taken_for_a_slip(name: str) -> None:
    assert find_similar(name, COMMANDS) == []


def test_a_hint_names_what_was_meant_or_what_there_is() -> None:
    assert suggest("lsit", COMMANDS) == "did you mean list?"
    assert suggest("nonsense", ["a", "b"]) == "choose one of a, b"
    assert suggest("nonsense", ["a", "b"], "see the page") == "see the page"
