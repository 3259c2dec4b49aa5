"""What people call the GPUs of a machine that is not here."""

from __future__ import annotations

import pytest

from vllama.base.errors import ConfigError
from vllama.machine.cards import CARDS, read_cards, read_size, share_ram
from vllama.machine.types import Vendor

GIB = 1024**3


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["RTX 3060"], [("RTX 3060", 12)]),
        (["NVIDIA GeForce RTX 3060 12GB"], [("RTX 3060", 12)]),
        (["rtx4060ti 16 GiB"], [("RTX 4060 Ti", 16)]),
        (["A100 40GB", "A100"], [("A100", 40), ("A100", 80)]),
        (["2x RTX 3090"], [("RTX 3090", 24)] * 2),
        (["P40", "7900xtx"], [("Tesla P40", 24), ("RX 7900 XTX", 24)]),
        (["3060"], [("RTX 3060", 12)]),
        (["3 × 24gb"], [("NVIDIA GPU", 24)] * 3),
        (["512MB"], [("NVIDIA GPU", 0.5)]),
        (["AMD Radeon RX 7900 XTX"], [("RX 7900 XTX", 24)]),
        (["Apple M4 Max 128GB"], [("M4 Max", 128)]),
        (["RTX 4090 Laptop", "3070 Ti"], [("RTX 4090 Laptop", 16), ("RTX 3070 Ti", 8)]),
        (["ryzen ai max+ 395"], [("Ryzen AI Max+ 395", 128)]),
        ([], []),
    ],
)
def test_names_and_sizes(asked, told) -> None:
    cards = read_cards(asked)
    assert [(card.name, card.total_bytes / GIB) for card in cards] == told
    assert [card.index for card in cards] == list(range(len(told)))


@pytest.mark.parametrize(
    "asked", ["RTX 3065", "RTX 9999 Ti 12GB", "Voodoo", "", "24", "1", "NVIDIA", "0x RTX 3090"]
)
def test_what_is_not_known(asked: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_cards([asked])
    hint = caught.value.hint or ""
    assert hint.endswith("specify its memory: --gpu 12GB")
    assert ("did you mean RTX 3060" in hint) is (asked == "RTX 3065")


def test_every_row_is_whole() -> None:
    assert len(CARDS) > 60
    for card in CARDS.values():
        assert read_cards([card.name])[0].name == card.name
        assert 4 * GIB <= card.total_bytes <= 192 * GIB
        assert (card.compute_capability is not None) is (card.vendor is Vendor.NVIDIA)


@pytest.mark.parametrize(
    ("name", "ram", "share"),
    [("RTX 3060", 32, 12), ("GB10", 128, 128), ("M1", 16, 32 / 3), ("M4 Max", 64, 48),
     ("Strix Halo", 128, 64)],
)  # fmt: skip
def test_what_of_the_ram_is_the_gpus(name: str, ram: int, share: float) -> None:
    (card,) = read_cards([name])
    assert share_ram(card, ram * GIB).total_bytes / GIB == pytest.approx(share)


def test_memory_is_sold_in_gib() -> None:
    assert [read_size(text) for text in ("32GB", "32 gib", "32G", "34359738368")] == [32 * GIB] * 4
    for text in ("much", "0GB", "0"):
        with pytest.raises(ConfigError):
            read_size(text)


@pytest.mark.parametrize("text", ["32", "32GB", "32 GiB", "32G"])
def test_a_number_alone_is_in_gib(text: str) -> None:
    assert read_size(text) == 32 * GIB
