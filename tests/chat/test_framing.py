from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chat.cuts import ways
from vllama.base.errors import UpstreamError
from vllama.chat.framing import SseReader, frame_event

CASES = [
    (b"data: one\n\ndata: two\n\n", [b"one", b"two"]),
    (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
    (b"data: one\r\rdata: two\r\r", [b"one", b"two"]),
    (b"data:one\n\n", [b"one"]),
    (b"data:  one\n\n", [b" one"]),
    (b": ping - 2026\n\ndata: one\n\n:\n\n", [b"one"]),
    (b": ping\ndata: one\n\n", [b"one"]),
    (b"event: message\nid: 4\nretry: 5\ndata: one\n\n", [b"one"]),
    (b"data: one\ndata: two\n\n", [b"one two"]),
    (b"data\n\n", [b""]),
    (b"data: \n\n", [b""]),
    (b"data: one\n\n\n\ndata: two\n\n", [b"one", b"two"]),
    (b"nonsense\n\ndata: one\n\n", [b"one"]),
    (b'error: {"message":"x"}\n\n', [b'{"error":{"message":"x"}}']),
    (b'data: {"a":"b: c"}\n\n', [b'{"a":"b: c"}']),
    (b"data: one", [b"one"]),
    (b"data: one\n", [b"one"]),
    (b"data: one\r\n", [b"one"]),
    (b"", []),
    (b"\n\n", []),
]


@pytest.mark.parametrize(("stream", "events"), CASES)
def test_any_cut(stream: bytes, events: list[bytes]) -> None:
    for reads in ways(stream, seeds=30) if stream else [[b""]]:
        reader = SseReader()
        got = [event for read in reads for event in reader.feed(read)]
        assert got + reader.close() == events, reads


def test_events_come_at_once() -> None:
    reader = SseReader()
    assert reader.feed(b"data: one\n\ndata: tw") == [b"one"]
    assert reader.feed(b"o\n") == []
    assert reader.feed(b"\n") == [b"two"]
    assert reader.close() == []


def test_an_endless_event_is_an_error() -> None:
    reader = SseReader(limit_bytes=100)
    reader.feed(b"data: " + b"x" * 50)
    with pytest.raises(UpstreamError):
        reader.feed(b"x" * 51)


def test_a_long_event_in_small_reads_is_not_quadratic() -> None:
    reader = SseReader()
    for _ in range(200_000):
        assert reader.feed(b"data: 12345" if _ == 0 else b"x" * 20) == []
    (event,) = reader.feed(b"\n\n")
    assert len(event) == 5 + 20 * 199_999


@given(st.lists(st.binary(max_size=30), max_size=8), st.data())
def test_any_bytes_any_cut(pieces: list[bytes], data: st.DataObject) -> None:
    stream = b"\n\n".join(pieces)
    whole = SseReader()
    expected = whole.feed(stream) + whole.close()
    cut = data.draw(st.integers(0, len(stream)))
    reader = SseReader()
    assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) + reader.close() == expected


@given(st.lists(st.from_regex(rb"[^\r\n]{1,30}", fullmatch=True), max_size=6))
def test_round_trip(payloads: list[bytes]) -> None:
    assert SseReader().feed(b"".join(map(frame_event, payloads))) == payloads
