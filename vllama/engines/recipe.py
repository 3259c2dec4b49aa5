"""Recipe of an engine's installation: declared by its adapter, executed by `install`.

Values only. Sizes were measured once on one machine; users see them before anything is fetched, so
that nobody starts a download of gigabytes by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from platform import libc_ver

from vllama.machine.environments.layout import Step
from vllama.machine.types import Accelerator, Platform, Vendor


class MachineKind(StrEnum):
    """Machines that need packages of their own."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    APPLE = "apple"
    CPU = "cpu"


ANY = tuple(MachineKind)


def get_machine_kind(platform: Platform) -> MachineKind:
    """Return the kind of a machine; of several makers' GPUs it is that of the first `Vendor`."""
    for vendor in Vendor:
        if vendor is not Vendor.REMOTE and platform.of(vendor):
            return MachineKind(vendor.value)
    return MachineKind.CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNeeds:
    """The GPUs that packages can use: those of `vendor` (None: of all), NVIDIA's from here on.

    What a GPU does not report is not held against it. `since`: the first version that is judged.
    """

    vendor: Vendor | None = None
    capability: tuple[int, int] = (0, 0)
    driver: int = 0
    since: tuple[int, ...] = ()

    def covers(self, build: str) -> bool:
        """Tell whether this is so of a version; `0.33.0+rocm72` was built by others for others."""
        return not build or ("+" not in build and read_version(build) >= self.since)

    def find_old_driver(self, gpu: Accelerator) -> str:
        """Return that a driver is too old, in words after "it"; empty if it is not."""
        release = re.match(r"\d+", gpu.driver or "") if gpu.vendor is Vendor.NVIDIA else None
        if release and int(release[0]) < self.driver:
            return f"needs driver {self.driver}, and {gpu.driver} is installed (update it)"
        return ""

    def find_lack(self, gpu: Accelerator, build: str) -> str:
        """Return why a build cannot use a GPU, in words after its name; empty if it can.

        One that is installed may have what makes up for an old driver (NVIDIA's cuda-compat).
        """
        if self.vendor and gpu.vendor not in (self.vendor, Vendor.APPLE):  # which has plug-ins
            return f": its packages are for {self.vendor.upper()} GPUs"
        if (has := gpu.compute_capability) and has < self.capability:
            numbers = "which has compute capability {}.{} ({}.{} is needed)"
            return f", {numbers.format(*has, *self.capability)}"
        old = "" if build else self.find_old_driver(gpu)
        return f": it {old}" if old else ""

    def see(self, platform: Platform, build: str = "") -> tuple[Platform, str]:
        """Return a machine without the GPUs that a build cannot use, and why not, else ""."""
        judged = platform.accelerators if self.covers(build) else ()
        lacks = {gpu: self.find_lack(gpu, build) for gpu in judged}
        words = dict.fromkeys(f"the {gpu.name}{lack}" for gpu, lack in lacks.items() if lack)
        seen = tuple(gpu for gpu in platform.accelerators if not lacks.get(gpu))
        why = f"it does not use {', and '.join(words)}" if words else ""
        return replace(platform, accelerators=seen), why


# The wheels of vLLM 0.30 to 0.33 on PyPI link libcudart.so.13, and have code for 7.5 (not on ARM),
# 8.x, 9.0, 10.x and 12.x, on ARM also for 8.7 and 11.x. SGLang's need CUDA 13 since 0.5.20, and 7.5
# (docs.sglang.io). CUDA 13 needs driver 580 (docs.nvidia.com, CUDA compatibility)
CUDA_13 = GpuNeeds(vendor=Vendor.NVIDIA, capability=(7, 5), driver=580)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A build that the project of an engine releases itself; `engines.release` brings it.

    `releases` is the address of the project's releases in GitHub's API, `name` the archive's with
    `{tag}` in it, `tag` the release that was tested, `program` what is in it, and `glibc` the least
    version of that library that it needs, None without one. `digests` has the SHA-256 of the
    archives that were tested, by name; where it has none, the release's own description decides.
    """

    project: str
    releases: str
    name: str
    tag: str
    program: str
    glibc: tuple[int, int] | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Installation steps, as the marker of an environment names them."""
        build = self.name.format(tag=self.tag).removesuffix(".tar.gz")
        return (Step(requirements=(f"{self.project} {self.tag}",), extra_args=(build,)),)


@cache
def find_libc() -> tuple[str, str]:
    """Return the name and the version of the C library; empty on macOS and with musl."""
    return libc_ver()


def find_misfit(archive: Archive) -> str:
    """Return why the programs of an archive cannot run on this system, empty if they can."""
    if archive.glibc is None:
        return ""
    name, version = find_libc()
    needed = ".".join(map(str, archive.glibc))
    if name != "glibc":
        return f"it needs glibc {needed}, which this system does not use"
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < archive.glibc:
        return f"it needs glibc {needed}, and this system has {version}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """One way to install an engine: packages of an index, or an `archive`.

    `on`, `systems` ("linux", "darwin") and `archs` (as `uname -m`; empty means any) say where it
    works. `steps` are calls of the installer, in order. `python` is the lowest and the highest
    version that works. `programs` have to be on PATH, each as any of the names that `|` separates
    (a compiler for what comes as source). `env` holds variables for the installer that the user has
    not set. `compiled`: it is built from source for this machine, which takes minutes, so a way
    that comes ready-made is preferred unless the user asks to compile. `unused_features` are those
    of a processor (as Linux lists its flags) that the build could use and does not. `check` is a
    command of the new environment (`python` or one of its programs, with arguments) that succeeds
    if the engine starts at all. `note` is a sentence for the user. `package` is the one whose
    version may be chosen.
    """

    steps: tuple[Step, ...] = ()
    download_bytes: int
    disk_bytes: int
    archive: Archive | None = None
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
    package: str = ""

    @property
    def contents(self) -> tuple[Step, ...]:
        """Packages to install, or the build of an archive."""
        return self.archive.steps if self.archive is not None else self.steps

    def pin(self, version: str) -> Wheels:
        """Return the same way with this version of `package`."""
        mine, pinned = re.compile(rf"^{self.package}[=<>].*"), f"{self.package}=={version}"
        steps = (
            replace(step, requirements=tuple(mine.sub(pinned, each) for each in step.requirements))
            for step in self.steps
        )
        return replace(self, steps=tuple(steps))

    @property
    def oldest_version(self) -> str:
        """The lowest version that it may bring of its first package but PyTorch; empty for any."""
        packages = [package for step in self.contents for package in step.requirements]
        engine = next(package for package in packages if not package.startswith("torch"))
        found = re.search(r"(?:[=>]=| )([\w.]+)$", engine)
        return found[1] if found else ""

    def suits(self, platform: Platform) -> bool:
        """Tell whether it works on such a machine."""
        return (
            get_machine_kind(platform) in self.on
            and platform.os in self.systems
            and (not self.archs or platform.arch in self.archs)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A package that can be installed beside an engine; the fields are those of `Wheels`."""

    name: str
    steps: tuple[Step, ...]
    python: tuple[tuple[int, int], tuple[int, int]]
    check: tuple[str, ...]
    note: str

    def add_to(self, wheels: Wheels) -> Wheels:
        """Return a way to install an engine with this beside it."""
        return replace(
            wheels,
            steps=(*wheels.steps, *self.steps),
            python=(max(wheels.python[0], self.python[0]), min(wheels.python[1], self.python[1])),
            check=self.check,
            note=". ".join(filter(None, (wheels.note, self.note))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All ways to install an engine, best first; `by_hand` tells how to get it without vllama.

    `needs` tells which GPUs they can use. `plugins` can be installed with those of its packages.
    """

    wheels: tuple[Wheels, ...] = ()
    needs: GpuNeeds = GpuNeeds()
    by_hand: str = ""
    plugins: tuple[Plugin, ...] = ()

    def wheels_for(self, platform: Platform) -> tuple[Wheels, ...]:
        """Return those that suit the machine, and whose programs run on it."""
        platform, _ = self.needs.see(platform)
        return tuple(
            one
            for one in self.wheels
            if one.suits(platform) and not (one.archive and find_misfit(one.archive))
        )

    def explain_misfit(self, platform: Platform) -> str:
        """Return why the best packages for such a machine do not run on it, empty if they do."""
        for one in self.wheels:
            if one.archive and one.suits(platform) and (why := find_misfit(one.archive)):
                return f"{one.archive.project}'s own build does not run here: {why}"
        seen, why = self.needs.see(platform)
        return "" if seen.accelerators else why

    def advise(self, name: str, platform: Platform, otherwise: str) -> str:
        """Return how to get the engine `name` on this machine; `otherwise` if it does not tell."""
        if self.wheels_for(platform):
            why = self.explain_misfit(platform)
            return f"install it with: {format_install_command(name)}{why and f' ({why})'}"
        if self.wheels and not self.by_hand:
            return "there is no package of it for this machine: choose another engine"
        return self.by_hand or otherwise


def read_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version."""
    return tuple(map(int, re.findall(r"\d+", text)))


def format_install_command(name: str) -> str:
    """Return the command that installs an engine."""
    return f"vllama engines install {name}"
