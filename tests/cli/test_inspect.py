"""What `vllama inspect` reads from its command line."""

from __future__ import annotations

import pytest

from vllama.base.errors import ConfigError
from vllama.cli.commands.inspect_ import read_layers, read_steering


@pytest.mark.parametrize(
    ("text", "layers"),
    [("3", [3]), ("0-2", [0, 1, 2]), ("3, 7", [3, 7]), ("0-1,5", [0, 1, 5])],
)
def test_layers(text, layers) -> None:
    assert read_layers(text) == layers


@pytest.mark.parametrize("text", ["", "a", "-1", "0-", "3-1", "0-100000000000", "1,,2"])
def test_what_is_no_list_of_layers(text) -> None:
    with pytest.raises(ConfigError, match="cannot read the layers"):
        read_layers(text)


def test_steering() -> None:
    assert read_steering("calm@1") == {"vector": "calm", "layers": [1], "strength": 1.0}
    assert read_steering("calm@1-2=0.5")["strength"] == 0.5


@pytest.mark.parametrize("text", ["calm", "@1", "calm@1=x", "calm@1=nan", "calm@1=inf"])
def test_what_is_no_steering(text) -> None:
    with pytest.raises(ConfigError, match="--steer"):
        read_steering(text)
