"""What filters say of the events that they have seen."""

import msgspec
import pytest

from vllama.chat.engine.events import Event, decode_event
from vllama.chat.engine.traits import Traits
from vllama.chat.filters import compose_filters


def pass_on(*deltas: dict[str, str]) -> Event:
    """Return the event of the last delta as the filters of a model that may think leave it."""
    filters = compose_filters(Traits(context_length=4096, splits_reasoning=False), thinks=True)
    for delta in deltas:
        choice = {"index": 0, "delta": delta}
        event = decode_event(msgspec.json.encode({"choices": [choice]}))
        for each in filters:
            each.take(event)
    return event


@pytest.mark.parametrize(
    "deltas",
    [
        [{"role": "assistant", "content": ""}],
        [{"content": "Hello"}],
        [{"role": "assistant", "content": ""}, {"content": "Hello"}],
    ],
)
def test_an_event_without_thinking_stays_as_it_came(deltas: list[dict[str, str]]) -> None:
    assert not pass_on(*deltas).changed


@pytest.mark.parametrize(
    "deltas",
    [[{"content": "<think>why"}], [{"content": "<thi"}], [{"content": "<th"}, {"content": "is"}]],
)
def test_an_event_whose_text_moves_is_changed(deltas: list[dict[str, str]]) -> None:
    assert pass_on(*deltas).changed
