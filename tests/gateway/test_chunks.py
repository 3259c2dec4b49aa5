"""Taking HTTP chunks apart beside the parser."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vllama.gateway.connection import whole_chunks


def chunk(body: bytes) -> bytes:
    """Frame one chunk."""
    return b"%x\r\n%b\r\n" % (len(body), body)


@given(st.lists(st.binary(min_size=1, max_size=40)), st.binary(max_size=40), st.data())
def test_whole_ones_are_taken_and_the_rest_is_left(bodies, last, data) -> None:
    framed = chunk(last) if last else b"0\r\n\r\n"
    cut = data.draw(st.integers(0, len(framed) - 1))
    read = b"".join(map(chunk, bodies)) + framed[:cut]
    found, rest = whole_chunks(read, {})
    assert found == bodies and rest == framed[:cut]


def test_what_is_unusual_is_left() -> None:
    for odd in (
        b"-3\r\nabc\r\n",
        b"12",
        b"0\r\n\r\n",
        b"3;x=y\r\nabc\r\n",
        b"zz\r\nabc\r\n",
        b"\r\n",
        b"",
        b"aaaaaaaaaaaa",
    ):
        assert whole_chunks(odd, {}) == ([], odd)
