"""What to install to have an engine: declared by its adapter, carried out by `install`.

Values only. Sizes were measured once on one machine; users see them before anything is fetched, so
that nobody starts a download of gigabytes by mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from vllama.machine.environments.layout import Step
from vllama.machine.types import Platform, Vendor


class MachineKind(StrEnum):
    """Machines that need packages of their own."""

    NVIDIA = "nvidia"
    AMD = "amd"
    APPLE = "apple"
    CPU = "cpu"


ANY = tuple(MachineKind)


def get_machine_kind(platform: Platform) -> MachineKind:
    """Return the kind of a machine; one with GPUs of several makers counts as NVIDIA's."""
    for vendor in (Vendor.NVIDIA, Vendor.AMD, Vendor.APPLE):
        if platform.of(vendor):
            return MachineKind(vendor.value)
    return MachineKind.CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """One way to install an engine.

    `on`, `systems` ("linux", "darwin") and `archs` (as `uname -m`; empty means any) say where it
    works. `steps` are calls of the installer, in order. `python` is the lowest and the highest
    version that works. `programs` have to be on PATH, each as any of the names that `|` separates
    (a compiler for what comes as source). `env` holds variables for the installer that the user has
    not set. `compiled`: it is built from source for this machine, which takes minutes, so a way
    that comes ready-made is preferred unless the user asks to compile. `unused_features` are those
    of a processor (as Linux lists its flags) that the build could use and does not. `check` is a
    command of the new environment (`python` or one of its programs, with arguments) that succeeds
    if the engine starts at all. `note` is a sentence for the user.
    """

    steps: tuple[Step, ...]
    download_bytes: int
    disk_bytes: int
    on: tuple[MachineKind, ...] = ANY
    systems: tuple[str, ...] = ("linux", "darwin")
    archs: tuple[str, ...] = ()
    python: tuple[tuple[int, int], tuple[int, int]] = ((3, 11), (3, 14))
    programs: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    compiled: bool = False
    unused_features: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    note: str = ""

    def suits(self, platform: Platform) -> bool:
        """Tell whether it works on such a machine."""
        return (
            get_machine_kind(platform) in self.on
            and platform.os in self.systems
            and (not self.archs or platform.arch in self.archs)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All ways to install an engine, best first; `by_hand` tells how to get it without vllama."""

    wheels: tuple[Wheels, ...] = ()
    by_hand: str = ""

    def wheels_for(self, platform: Platform) -> tuple[Wheels, ...]:
        """Return those that suit the machine."""
        return tuple(one for one in self.wheels if one.suits(platform))


@runtime_checkable
class Installable(Protocol):
    """An engine that vllama can install."""

    @property
    def install(self) -> Recipe:
        """What to install."""
        ...


def get_recipe(engine: object) -> Recipe:
    """Return an engine's recipe, an empty one if it has none."""
    recipe = engine.install if isinstance(engine, Installable) else None
    return recipe if isinstance(recipe, Recipe) else Recipe()


def format_install_command(name: str) -> str:
    """Return the command that installs an engine."""
    return f"vllama engines install {name}"


def advise_installation(engine: object, name: str, platform: Platform, otherwise: str) -> str:
    """Return how to get an engine on this machine; `otherwise` if its recipe does not tell."""
    recipe = get_recipe(engine)
    if recipe.wheels_for(platform):
        return f"install it with: {format_install_command(name)}"
    if recipe.wheels and not recipe.by_hand:
        return "there is no package of it for this machine: choose another engine"
    return recipe.by_hand or otherwise
