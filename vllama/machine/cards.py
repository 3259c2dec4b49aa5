"""GPUs that people own or think of buying, for plans of a machine that is not here. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from vllama.base.errors import ConfigError
from vllama.base.spelling import find_similar
from vllama.base.units import parse_bytes
from vllama.machine.apple import share_with_gpu
from vllama.machine.types import Accelerator, Vendor

GIB = 1024**3


# the vendor and NVIDIA's compute capability, then name and GB by the vendors' specifications
_TABLE = """
nvidia 6.1: GTX 1050 Ti 4, GTX 1060 6, GTX 1070 8, GTX 1080 8, GTX 1080 Ti 11, Tesla P40 24
nvidia 7.0: Tesla V100 32
nvidia 7.5: GTX 1650 4, GTX 1660 6, GTX 1660 SUPER 6, RTX 2060 6, RTX 2070 8
nvidia 7.5: RTX 2080 8, RTX 2080 Ti 11, Tesla T4 16
nvidia 8.0: A100 80, A30 24
nvidia 8.6: RTX 3050 8, RTX 3060 12, RTX 3060 Ti 8, RTX 3070 8, RTX 3080 10
nvidia 8.6: RTX 3070 Ti 8, RTX 3080 Ti 12, RTX 3090 24, RTX A4000 16, RTX A6000 48, A10 24
nvidia 8.9: RTX 4060 8, RTX 4060 Ti 8, RTX 4070 12, RTX 4070 Ti SUPER 16, L4 24
nvidia 8.9: RTX 4070 SUPER 12, RTX 4070 Ti 12, RTX 4080 SUPER 16
nvidia 8.9: RTX 4060 Laptop 8, RTX 4070 Laptop 8, RTX 4080 Laptop 12, RTX 4090 Laptop 16
nvidia 8.9: RTX 4080 16, RTX 4090 24, RTX 6000 Ada 48, L40S 48
nvidia 9.0: H100 80, H200 141
nvidia 10.0: B200 180
nvidia 12.0: RTX 5060 8, RTX 5060 Ti 16, RTX 5070 12, RTX 5070 Ti 16
nvidia 12.0: RTX 5080 16, RTX 5090 32, RTX PRO 6000 96
amd: RX 580 8, RX 6600 8, RX 6700 XT 12, RX 6800 XT 16, RX 7600 8
amd: RX 7800 XT 16, RX 7900 XT 20, RX 7900 XTX 24, RX 9060 XT 16, RX 9070 XT 16
amd: RX 7600 XT 16, RX 7700 XT 12, PRO W7900 48, MI300X 192
intel: Arc A750 8, Arc A770 16, Arc B570 10, Arc B580 12, Arc Pro B60 24
shared nvidia 8.7: Jetson AGX Orin 64
shared nvidia 11.0: Jetson Thor 128
shared nvidia 12.1: GB10 128, DGX Spark 128
shared amd: Strix Halo 128, Ryzen AI Max 128, Ryzen AI Max+ 395 128
shared apple: M1 8, M1 Max 32, M2 8, M2 Ultra 64, M3 8, M3 Max 36
shared apple: M4 16, M4 Pro 24, M4 Max 36, M3 Ultra 96
"""
_ASKED = re.compile(r"(?:([1-9]\d?)\s*[x×]\s*)?(.*?)\s*(\d+(?:\.\d+)?\s*[MGT]i?B)?", re.I)
_MAKERS = re.compile(r"nvidia|geforce|tesla|amd|radeon|instinct|intel|apple|[\s-]", re.I)


def _read_table() -> dict[str, Accelerator]:
    cards = {}
    for line in _TABLE.strip().splitlines():
        kind, _, rows = line.partition(": ")
        words = kind.removeprefix("shared ").split()
        major, minor = words[1].split(".") if len(words) > 1 else (0, 0)
        for row in rows.split(", "):
            name, memory = row.rsplit(" ", 1)
            cards[_shorten(name)] = Accelerator(
                vendor=Vendor(words[0]),
                index=0,
                name=name,
                total_bytes=int(memory) * GIB,
                free_bytes=int(memory) * GIB,
                compute_capability=(int(major), int(minor)) if major else None,
                shares_ram=kind.startswith("shared"),
            )
    return cards


def _shorten(name: str) -> str:
    """Return a name without its makers, as one word."""
    return _MAKERS.sub("", name).lower()


CARDS = _read_table()
SHORT = {re.sub("^(rtx|gtx|rx)", "", key): card for key, card in CARDS.items()}
UNNAMED = replace(CARDS["rtx3060"], name="NVIDIA GPU", compute_capability=None)


def read_size(text: str) -> int:
    """Parse the memory of a GPU or a machine: it is sold in GiB, whatever it is called."""
    try:
        number = re.sub(r"(?<=[MGT])B$", "", text.strip(), flags=re.I)
        is_short = re.fullmatch(r"\d{1,4}(\.\d+)?", number)
        if size := parse_bytes(f"{number}G" if is_short else number):
            return size
        raise ValueError("must be more than 0")
    except ValueError as error:
        raise ConfigError(f"cannot plan for memory of '{text}': {error}") from None


def read_cards(asked: Iterable[str]) -> list[Accelerator]:
    """Return the GPUs that are meant by `RTX 3060`, `2x RTX 4060 Ti 16GB` or `24GB`.

    Raises ConfigError for a name that is not in the table.
    """
    cards: list[Accelerator] = []
    for text in asked:
        match = _ASKED.fullmatch(text.strip())
        count, name, size = match.groups() if match else (None, text, None)
        card = CARDS.get(_shorten(name)) or SHORT.get(_shorten(name))
        if size and not name:
            card = UNNAMED
        if card is None:
            near = " or ".join(find_similar(name, (one.name for one in CARDS.values())))
            raise ConfigError(
                f"cannot plan for GPU '{text}': unknown GPU",
                hint=f"{f'did you mean {near}? Or ' if near else ''}specify its memory: --gpu 12GB",
            )
        memory_bytes = read_size(size) if size else card.total_bytes
        card = replace(card, total_bytes=memory_bytes, free_bytes=memory_bytes)
        cards += [card] * int(count or 1)
    return [replace(card, index=index) for index, card in enumerate(cards)]


def share_ram(gpu: Accelerator, ram_bytes: int) -> Accelerator:
    """Return a GPU with what its system gives it of the RAM if nobody says otherwise."""
    if not gpu.shares_ram:
        return gpu
    usual = {Vendor.APPLE: share_with_gpu(ram_bytes), Vendor.AMD: ram_bytes // 2}
    share_bytes = usual.get(gpu.vendor, ram_bytes)
    return replace(gpu, total_bytes=share_bytes, free_bytes=share_bytes)
