"""How a model would lie in this machine's memory: what `models` asks of whoever plans.

`models` knows neither engines nor the machine. Who composes the program passes a `Fits` in
(`plan.fitting`), so that a variant is chosen before its gigabytes move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vllama.models.types import Format, ModelInfo

MIB, GIB = 1024**2, 1024**3


def amount(size_bytes: int) -> str:
    """Return an amount of memory for people, fine enough to tell two quantisations apart."""
    if size_bytes < GIB:
        return f"{size_bytes / MIB:.0f} MiB"
    return f"{size_bytes / GIB:.1f} GiB"


def amounts(one_bytes: int, other_bytes: int) -> tuple[str, str]:
    """Return two amounts for people to compare, fine enough that different ones look different."""
    if amount(one_bytes) != amount(other_bytes) or one_bytes == other_bytes:
        return amount(one_bytes), amount(other_bytes)
    one, other = (f"{size / MIB:.1f} MiB" for size in (one_bytes, other_bytes))
    return (one, other) if one != other else (f"{one_bytes} bytes", f"{other_bytes} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a model takes with a context of so many tokens, and what there is; bytes.

    `roomy`: it fits with a context that one can work with, not only with a shrunken one.
    `weights_bytes` is a part of `needed_bytes`; `numbers` names all parts for people.
    """

    fits: bool
    roomy: bool
    needed_bytes: int
    usable_bytes: int
    weights_bytes: int
    context_length: int
    numbers: str

    @property
    def needed(self) -> str:
        """What it takes, for people."""
        return amounts(self.needed_bytes, self.usable_bytes)[0]

    @property
    def usable(self) -> str:
        """What there is, for people."""
        return amounts(self.needed_bytes, self.usable_bytes)[1]


class Fits(Protocol):
    """Judges a model by its metadata, or by its size alone."""

    def certainly(self, size_bytes: int, format_: Format) -> bool:
        """Tell whether files of that size fit whatever is in them: nothing needs to be read."""
        ...

    def judge(
        self, info: ModelInfo, format_: Format, context_length: int | None = None
    ) -> Fit | None:
        """Return how it would fit here, with a context of its own if one is given.

        None: no engine here reads the format, or it refuses the model for another reason, so
        that memory does not decide.
        """
        ...
