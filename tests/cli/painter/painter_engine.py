"""An engine of a package of its own that has to be installed first, by `vllama engines install`.

PackageServer by the fake engine once its distribution `paint` is there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from vllama_fake import FakeEngine

from vllama.engines.base import Missing
from vllama.engines.locate import find_package
from vllama.engines.recipe import Recipe, Wheels
from vllama.machine.environments.layout import Step


@dataclass(frozen=True)
class Painter(FakeEngine):
    """The fake engine under another name, which is not always there."""

    name: str = "painter"
    aliases: tuple = ("paint",)
    title: str = "Painter"
    install: Recipe = Recipe(
        wheels=(
            Wheels(
                steps=(Step(requirements=("paint==2.5",)),),
                download_bytes=7_000_000,
                disk_bytes=9_000_000,
                check=("paint", "--version"),
                package="paint",
            ),
        )
    )

    def find(self, places):
        """Look for it where all engines are looked for."""
        found = find_package(places, self.name, distributions=("paint",), executable="paint")
        if isinstance(found, Missing):
            return found
        # the fake engine is a program of the tests' own Python
        return replace(found.installation(offloads=False), python=Path(sys.executable))

    def preference(self, platform):
        """Only by its name."""
        return 0, "this is a test"


ENGINE = Painter()
