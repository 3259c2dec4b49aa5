"""What would be installed where, and that it is found afterwards; the installer is a stand-in."""

from __future__ import annotations

import asyncio
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fake_engine.vllama_fake import FakeEngine
from tests.machine.environments.installer import Fake
from vllama.base.errors import DiskFull, EngineMissing, EnvironmentFailed
from vllama.engines.base import Missing, Origin, SearchPaths
from vllama.engines.install import Offer, install, make_offers, uninstall
from vllama.engines.locate import find_package
from vllama.engines.recipe import (
    MachineKind,
    Plugin,
    Recipe,
    Wheels,
    get_machine_kind,
)
from vllama.engines.registry import load_engines
from vllama.engines.tinygrad import ENGINE as TINYGRAD
from vllama.machine.environments.layout import Step, find_existing, list_requirements
from vllama.machine.probe import make_install_hint
from vllama.machine.types import Accelerator, Platform, Vendor


def make_offer(*args: Any, **how: Any) -> Offer:
    """Return the best way to install an engine."""
    return make_offers(*args, **how)[0]


CPU = Platform(os="linux", arch="x86_64", cores=2, ram_total_bytes=8, ram_available_bytes=8)


def with_gpu(vendor: Vendor, os: str = "linux", arch: str = "x86_64") -> Platform:
    gpu = Accelerator(vendor=vendor, index=0, name="GPU", total_bytes=8, free_bytes=8)
    return replace(CPU, os=os, arch=arch, accelerators=(gpu,))


NVIDIA = with_gpu(Vendor.NVIDIA)
APPLE = with_gpu(Vendor.APPLE, "darwin", "arm64")
MACHINES = [CPU, NVIDIA, with_gpu(Vendor.AMD), APPLE, replace(CPU, os="darwin")]


def wheels(name: str, **more) -> Wheels:
    return Wheels(steps=(Step(requirements=(name,)),), download_bytes=10, disk_bytes=20, **more)


@dataclass(frozen=True)
class Painter(FakeEngine):
    """An engine of a distribution `paint` with a program of that name."""

    name: str = "painter"
    title: str = "Painter"

    def find(self, search_paths: SearchPaths):
        found = find_package(search_paths, self.name, distributions=("paint",), executable="paint")
        return found if isinstance(found, Missing) else found.installation(offloads=False)

    def preference(self, platform: Platform) -> tuple[int, str]:
        return 1, "it paints"


RECIPE = Recipe(
    wheels=(
        wheels("paint-cuda", on=(MachineKind.NVIDIA,), programs=("nvcc",)),
        wheels("paint-mac", on=(MachineKind.APPLE,), archs=("arm64",)),
        wheels("paint==1", on=(MachineKind.CPU, MachineKind.NVIDIA), systems=("linux",)),
    )
)


@pytest.mark.parametrize(
    ("platform", "programs", "taken"),
    [
        (CPU, [], "paint==1"),
        (NVIDIA, [], "paint==1"),
        (NVIDIA, ["nvcc"], "paint-cuda"),
        (APPLE, [], "paint-mac"),
        (with_gpu(Vendor.AMD), [], None),
        (replace(CPU, os="darwin"), [], None),
    ],
)
def test_what_suits_the_machine(
    tmp_path: Path, platform: Platform, programs: list[str], taken: str | None
) -> None:
    for name in programs:
        (tmp_path / name).touch(mode=0o755)
    painter = Painter(install=RECIPE)
    if taken is None:
        with pytest.raises(EngineMissing, match="nothing for this machine"):
            make_offer(painter, platform, tmp_path, search=str(tmp_path))
        return
    chosen = make_offer(painter, platform, tmp_path, search=str(tmp_path))
    assert chosen.wheels.steps[0].requirements == (taken,)
    assert chosen.folder == tmp_path / "painter"
    assert chosen.python == Path(sys.executable)


def test_what_is_lacking_is_told(tmp_path: Path) -> None:
    compiled = Recipe(wheels=(wheels("paint", programs=("c++|g++", "cmake")),))
    (tmp_path / "apt-get").touch(mode=0o755)
    with pytest.raises(EngineMissing, match=r"c\+\+ and cmake, which it needs, are not on") as no:
        make_offer(Painter(install=compiled), CPU, tmp_path, search=str(tmp_path))
    hint = "install a C++ compiler and cmake (apt install build-essential cmake)"
    assert no.value.hint == hint
    (tmp_path / "g++").touch(mode=0o755)
    (tmp_path / "cmake").touch(mode=0o755)
    assert make_offer(Painter(install=compiled), CPU, tmp_path, search=str(tmp_path))


def test_what_is_compiled_is_taken_only_where_it_is_asked_for(tmp_path: Path) -> None:
    ways = Recipe(
        wheels=(wheels("paint"), wheels("paint-source", programs=("c++",), compiled=True))
    )
    (tmp_path / "c++").touch(mode=0o755)

    def find_requirement(recipe: Recipe, *, compiled: bool) -> str:
        painter = Painter(install=recipe)
        offer = make_offer(painter, CPU, tmp_path, compiled=compiled, search=str(tmp_path))
        return offer.steps[0].requirements[0]

    assert find_requirement(ways, compiled=False) == "paint"
    assert find_requirement(ways, compiled=True) == "paint-source"
    only_source = Recipe(wheels=ways.wheels[1:])
    assert find_requirement(only_source, compiled=False) == "paint-source"
    with pytest.raises(EngineMissing, match=r"cannot compile Painter: .* prebuilt") as no:
        find_requirement(Recipe(wheels=ways.wheels[:1]), compiled=True)
    assert no.value.hint == "omit --compile: vllama engines install painter"


@pytest.mark.parametrize(
    ("features", "programs", "faster"),
    [
        ({"avx512f", "avx2"}, ["c++"], True),
        ({"avx2"}, ["c++"], False),
        ({"avx512f"}, [], False),  # it could not be compiled here
    ],
)
def test_a_faster_build_is_offered_where_there_is_one(tmp_path, features, programs, faster):
    for name in programs:
        (tmp_path / name).touch(mode=0o755)
    ways = Recipe(
        wheels=(
            wheels("paint", unused_features=("avx512f",)),
            wheels("paint-source", programs=("c++",), compiled=True),
        )
    )
    platform = replace(CPU, cpu_features=frozenset(features))
    offer = make_offer(Painter(install=ways), platform, tmp_path, search=str(tmp_path))
    sentence = (
        "this build does not use AVX512F, which this processor has: "
        "vllama engines install painter --compile"
    )
    assert offer.faster == (sentence if faster else "")
    offers = make_offers(Painter(install=ways), platform, tmp_path, search=str(tmp_path))
    assert [each.wheels.compiled for each in offers] == ([False, True] if programs else [False])


def test_what_is_compiled_at_its_start_wants_its_compiler_first(tmp_path: Path) -> None:
    with pytest.raises(
        EngineMissing, match=r"tinygrad: clang, which it needs, is not on PATH"
    ) as no:
        make_offer(TINYGRAD, CPU, tmp_path, search=str(tmp_path))
    assert no.value.hint == "install clang"


@pytest.mark.parametrize(
    ("manager", "programs", "hint"),
    [
        ("apt-get", ["clang"], "install clang (apt install clang)"),
        ("dnf", ["nvcc", "c++"],
         "install NVIDIA's CUDA toolkit and a C++ compiler (dnf install cuda-toolkit gcc-c++)"),
        ("xcode-select", ["clang"], "install clang (xcode-select --install)"),
        ("brew", ["cmake"], "install cmake (brew install cmake)"),
        ("xcode-select", ["cmake"], "install cmake"),
        ("unheard-of", ["clang"], "install clang"),
    ],
)  # fmt: skip
def test_programs_are_named_as_the_machine_s_package_manager_does(
    tmp_path: Path, manager: str, programs: list[str], hint: str
) -> None:
    (tmp_path / manager).touch(mode=0o755)
    assert make_install_hint(programs, str(tmp_path)) == hint


def test_without_a_recipe_it_is_said_how_to_get_it(tmp_path: Path) -> None:
    by_hand = Recipe(by_hand="brew install painter")
    with pytest.raises(EngineMissing, match="no known package") as caught:
        make_offer(Painter(install=by_hand), CPU, tmp_path)
    assert caught.value.hint == "brew install painter"


def test_another_python(tmp_path: Path) -> None:
    minor = sys.version_info.minor + 1
    newer = Recipe(wheels=(wheels("paint", python=((3, minor), (3, minor + 1))),))
    there = tmp_path / f"python3.{minor}"
    there.touch(mode=0o755)
    assert make_offer(Painter(install=newer), CPU, tmp_path, search=str(tmp_path)).python == there
    there.unlink()
    chosen = make_offer(Painter(install=newer), CPU, tmp_path, search=str(tmp_path))
    assert chosen.python == f"3.{minor + 1}"  # uv gets one


def test_pyenv_s_shims_are_followed(tmp_path: Path) -> None:
    """They fail unless their version is switched on; where none is installed uv gets one."""
    minor = sys.version_info.minor + 1
    painter = Painter(install=Recipe(wheels=(wheels("paint", python=((3, minor), (3, minor))),)))
    shim = tmp_path / "shims" / f"python3.{minor}"
    shim.parent.mkdir()
    shim.touch(mode=0o755)
    search = str(shim.parent)
    assert make_offer(painter, CPU, tmp_path, search=search).python == f"3.{minor}"
    real = tmp_path / "versions" / f"3.{minor}.2" / "bin" / shim.name
    real.parent.mkdir(parents=True)
    real.touch(mode=0o755)
    assert make_offer(painter, CPU, tmp_path, search=search).python == real


def test_a_plug_in_comes_with_the_packages(tmp_path: Path) -> None:
    minor = sys.version_info.minor
    brush = Plugin(
        name="brush",
        steps=(Step(requirements=("brush>=1",), extra_args=("--no-deps",)),),
        python=((3, minor), (3, minor)),
        check=("python", "-c", "import brush"),
        note="it has bristles",
    )
    painter = Painter(install=Recipe(wheels=(wheels("paint==1", note="a pot"),), plugins=(brush,)))
    offer = make_offer(painter, CPU, tmp_path, plugins=["brush"])
    assert list_requirements(offer.steps) == ["paint==1", "brush>=1"]
    assert (offer.wheels.check, offer.wheels.note) == (brush.check, "a pot. it has bristles")
    assert list_requirements(make_offer(painter, CPU, tmp_path).steps) == ["paint==1"]
    with pytest.raises(EngineMissing, match="with 'comb': it is not a plug-in") as caught:
        make_offer(painter, CPU, tmp_path, plugins=["comb"])
    assert caught.value.hint == "available plug-ins: brush"
    newer = replace(brush, python=((3, minor + 1), (3, minor + 1)))
    painter = replace(painter, install=replace(painter.install, plugins=(newer,)))
    with pytest.raises(EngineMissing, match=rf"it needs Python 3.{minor + 1} to"):
        make_offer(painter, CPU, tmp_path, plugins=["brush"], search=str(tmp_path))


def test_an_environment_of_another_python_is_made_anew(tmp_path: Path) -> None:
    uv = Fake(tmp_path / "uv")
    home = tmp_path / "environments"
    old = home / "painter" / "lib" / "python3.4" / "site-packages" / "old.py"
    old.parent.mkdir(parents=True)
    old.touch()
    painter = Painter(install=RECIPE)
    asyncio.run(install(make_offer(painter, CPU, home), environ=uv.environ))
    assert not old.exists()


def test_installed_found_and_removed(tmp_path: Path) -> None:
    uv = Fake(tmp_path / "uv")
    painter, home = Painter(install=RECIPE), tmp_path / "environments"
    chosen = make_offer(painter, CPU, home, search=uv.environ["PATH"], extra_args=["--pre"])
    assert not chosen.done
    found = asyncio.run(install(chosen, environ=uv.environ))
    assert (found.version, found.origin) == ("1", Origin.OWN)
    assert found.executable == home / "painter/bin/paint"
    assert "--pre" in uv.calls[-1]["args"]
    assert make_offer(painter, CPU, home, extra_args=["--pre"]).done
    assert not make_offer(painter, CPU, home).done
    assert uninstall(painter, home) is True
    assert uninstall(painter, home) is False
    assert isinstance(painter.find(SearchPaths(environments=home, search="")), Missing)


def test_what_is_not_found_after_its_installation(tmp_path: Path) -> None:
    uv = Fake(tmp_path / "uv")
    wrong = Painter(install=Recipe(wheels=(wheels("other==1"),)))
    chosen = make_offer(wrong, CPU, tmp_path / "e", search=uv.environ["PATH"])
    with pytest.raises(EnvironmentFailed, match="after installing it: it is not installed"):
        asyncio.run(install(chosen, environ=uv.environ))


def test_too_little_space_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    large = Recipe(wheels=(replace(wheels("paint"), disk_bytes=2 * free),))
    with pytest.raises(DiskFull, match="is free at"):
        asyncio.run(install(make_offer(Painter(install=large), CPU, tmp_path / "e"), environ={}))
    assert find_existing(tmp_path / "e/painter") is None and not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("recipe", "platform", "advice"),
    [
        (RECIPE, CPU, "install it with: vllama engines install painter"),
        (RECIPE, with_gpu(Vendor.AMD), "no package for this machine"),
        (Recipe(by_hand="brew install painter"), CPU, "brew install painter"),
        (replace(RECIPE, by_hand="buy it"), with_gpu(Vendor.AMD), "buy it"),
        (Recipe(), CPU, "otherwise"),
    ],
)
def test_advice_is_true_on_this_machine(recipe: Recipe, platform: Platform, advice: str) -> None:
    assert recipe.advise("painter", platform, "otherwise").startswith(advice)


@pytest.mark.parametrize(
    "platform", MACHINES, ids=lambda item: f"{item.os}-{get_machine_kind(item)}"
)
@pytest.mark.parametrize("name", sorted(load_engines()))
def test_the_recipes_of_all_engines(name: str, platform: Platform) -> None:
    for one in load_engines()[name].install.wheels_for(platform):
        assert one.contents and all(step.requirements for step in one.contents)
        assert one.download_bytes > 0 and one.disk_bytes > 0
        assert one.python[0] <= one.python[1]
        assert all(not item.startswith("-") for step in one.steps for item in step.requirements)
