from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.base.errors import BadRequest
from vllama.chat.stops import MAX_STOP_TEXT, MAX_STOPS, StopFinder, check_stops


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    finder = StopFinder(stops)
    text = "".join(finder.feed(piece) for piece in pieces)
    return text + finder.finish(), finder.found


@pytest.mark.parametrize(
    ("stops", "text", "before", "found"),
    [
        (["END"], "one END two", "one ", "END"),
        (["END"], "one EN", "one EN", None),
        (["END"], "", "", None),
        (["END"], "END", "", "END"),
        (["hello", "ll"], "a hello", "a he", "ll"),  # complete first
        (["abc", "ab"], "xabc", "x", "ab"),
        (["bc", "abc"], "xabc", "x", "abc"),  # complete at once: the one that began first
        (["\n\n", "\nHuman:"], "a\nHuman:b", "a", "\nHuman:"),
        (["aab"], "aaab", "a", "aab"),
        (["é😀"], "xé😀y", "x", "é😀"),
    ],
)
def test_table(stops: list[str], text: str, before: str, found: str | None) -> None:
    assert run(stops, [text]) == (before, found)
    assert run(stops, list(text)) == (before, found)


def test_nothing_certain_waits() -> None:
    finder = StopFinder(["END"])
    assert [finder.feed(letter) for letter in "xEyENz"] == ["x", "", "Ey", "", "", "ENz"]
    assert finder.feed("aEND") == "a" and finder.feed("more") == "" and finder.finish() == ""


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=5), max_size=8),
)
def test_any_cut_is_the_same_as_letters(stops: list[str], pieces: list[str]) -> None:
    whole = "".join(pieces)
    text, found = run(stops, pieces)
    assert (text, found) == run(stops, list(whole)) == run(stops, [whole])
    assert whole.startswith(text + (found or ""))
    if found is None:
        assert text == whole and not any(stop in whole for stop in stops)
    else:
        assert not any(stop in text for stop in stops)


def test_more_sequences_than_can_be_looked_for_are_refused() -> None:
    """One of 45 MB took 6 s to look at, and 190,000 of them 44 ms with each token."""
    check_stops(["a"] * MAX_STOPS)
    check_stops(["a" * MAX_STOP_TEXT])
    for stops in (["a"] * (MAX_STOPS + 1), ["a" * MAX_STOP_TEXT, "b"]):
        with pytest.raises(BadRequest, match="too many stop sequences"):
            check_stops(stops)
