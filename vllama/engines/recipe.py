"""What to install to have an engine: declared by its adapter, carried out by `install`.

Values only. Sizes are what was measured once on one machine; they are told before anything is
fetched, so that nobody starts gigabytes by mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from vllama.environments.place import Step
from vllama.hardware.types import Platform, Vendor


class Kind(StrEnum):
    """Machines that want wheels of their own."""

    NVIDIA = "nvidia"
    AMD = "amd"
    APPLE = "apple"
    CPU = "cpu"


ANY = tuple(Kind)


def kind_of(platform: Platform) -> Kind:
    """Return what kind of machine it is; one with several kinds of GPUs is NVIDIA's."""
    for vendor in (Vendor.NVIDIA, Vendor.AMD, Vendor.APPLE):
        if platform.of(vendor):
            return Kind(vendor.value)
    return Kind.CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """One way to install an engine.

    `on`, `systems` ("linux", "darwin") and `archs` (as `uname -m`; empty: any) say where. `steps`
    are calls of the installer, in order. `python` is the lowest and the highest version that works.
    `programs` have to be on PATH, each the first or any other of its `|` (a compiler, for what
    comes as source). `env` is for the installer, unless the
    user has set it. `check` is a command of the new environment
    (`python` or one of its programs, and arguments) that succeeds if the engine starts at all.
    `note` is a sentence for the user.
    """

    steps: tuple[Step, ...]
    download_bytes: int
    disk_bytes: int
    on: tuple[Kind, ...] = ANY
    systems: tuple[str, ...] = ("linux", "darwin")
    archs: tuple[str, ...] = ()
    python: tuple[tuple[int, int], tuple[int, int]] = ((3, 11), (3, 14))
    programs: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    check: tuple[str, ...] = ()
    note: str = ""

    def suits(self, platform: Platform) -> bool:
        """Tell whether these are for such a machine."""
        return (
            kind_of(platform) in self.on
            and platform.os in self.systems
            and (not self.archs or platform.arch in self.archs)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All ways to install an engine, best first; `by_hand` is how to get it without us."""

    wheels: tuple[Wheels, ...] = ()
    by_hand: str = ""

    def wheels_for(self, platform: Platform) -> tuple[Wheels, ...]:
        """Return those that suit the machine."""
        return tuple(one for one in self.wheels if one.suits(platform))


@runtime_checkable
class Installable(Protocol):
    """An engine that says how it is installed."""

    install: Recipe


def recipe_of(engine: object) -> Recipe:
    """Return an engine's recipe, an empty one if it has none."""
    return engine.install if isinstance(engine, Installable) else Recipe()


def command(name: str) -> str:
    """Return the command that installs an engine."""
    return f"vllama engines install {name}"


def how_to_get(engine: object, name: str, platform: Platform, otherwise: str) -> str:
    """Return the advice for somebody who lacks an engine: only what is true on this machine."""
    recipe = recipe_of(engine)
    if recipe.wheels_for(platform):
        return f"install it with: {command(name)}"
    if recipe.wheels and not recipe.by_hand:
        return "there is no package of it for this machine: choose another engine"
    return recipe.by_hand or otherwise
