"""llama.cpp's quantiser, as whoever has found it describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiser:
    """A program that is called `command… SOURCE TARGET QUANT`; `env` is all that it may see."""

    title: str
    command: tuple[str, ...]
    env: Mapping[str, str]

    def argv(self, source: Path, target: Path, quant: str) -> tuple[str, ...]:
        """Return the command that makes `target`; of a split model `source` is the first part."""
        return (*self.command, str(source), str(target), quant)
