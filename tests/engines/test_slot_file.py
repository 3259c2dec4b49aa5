"""Files of llama-server's slots, for engines with more or fewer slots."""

import pytest

from vllama.engines.llamacpp.slot_file import fit_slots


def make_file(slots, used, tokens=3, cells=(7,), data=b"contents"):
    """Return a file as an engine with `slots` writes it of the slot `used`."""
    words = [4, tokens, *range(1000, 1000 + tokens), slots, *[0] * used, *cells]
    whole = b"".join(word.to_bytes(4, "little") for word in words)
    return b"qsgg" + whole + data + bytes(4 * (slots - 1 - used))


@pytest.mark.parametrize(
    ("before", "used", "slots"),
    [(4, 0, 1), (4, 3, 1), (4, 1, 2), (1, 0, 4), (2, 1, 3), (4, 2, 4), (1, 0, 1), (256, 255, 1)],
)
def test_a_file_fits_another_number_of_slots(tmp_path, before, used, slots):
    path = tmp_path / "new-1.slot"
    path.write_bytes(make_file(before, used))
    fit_slots(path, slots)
    assert path.read_bytes() == make_file(slots, 0)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content",
    [
        make_file(4, 1).replace(b"qsgg", b"ggsn"),  # another kind
        make_file(4, 1)[:-1] + b"x",  # the last slot has cells, too
        make_file(4, 1)[:40],
        make_file(2, 1, cells=(0,)),  # none has any
        b'[5, "a text of the fake engine"]',
        b"qsgg",
        b"",
    ],
)
def test_what_is_none_stays_as_it_is(tmp_path, content):
    path = tmp_path / "new-1.slot"
    path.write_bytes(content)
    with pytest.raises(ValueError):
        fit_slots(path, 2)
    assert path.read_bytes() == content
