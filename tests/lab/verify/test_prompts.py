"""Prompts of a file, in the three forms."""

import pytest

from vllama.base.errors import ConfigError
from vllama.lab.asker import BUILT_IN, parse_prompts


@pytest.mark.parametrize(
    ("data", "prompts"),
    [
        (b"one\n\n two \r\n", ("one", " two ")),
        (b'["a\\nb", "c"]', ("a\nb", "c")),
        (b'{"prompt": "a", "id": 1}\n\n"b"\n', ("a", "b")),
        (b"\xef\xbb\xbfone", ("one",)),
        ("a\u2028b".encode(), ("a\u2028b",)),
    ],
)
def test_forms(data, prompts):
    assert parse_prompts(data, "file") == prompts


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "there are none"),
        (b"[]", "there are none"),
        (b"[1]", "number 1 has no text"),
        (b'{"prompt": "a"}\n{"text": "b"}', "number 2 has no text"),
        (b'["a"', "Expecting"),
        (b"\xff\xfe", "utf-8"),
    ],
)
def test_what_is_no_list_of_prompts(data, words):
    with pytest.raises(ConfigError, match=words) as caught:
        parse_prompts(data, "mine.txt")
    assert "'mine.txt'" in caught.value.message


def test_the_built_in_ones_differ():
    assert len(set(BUILT_IN)) == len(BUILT_IN) >= 8
