"""Where an engine is looked for: every place, their order, and what is told where it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vllama.engines.base import Installation, Missing, Origin, SearchPaths
from vllama.engines.locate import PackageLocation, find_package
from vllama.machine.environments.layout import Step, mark_complete

HERE = "pytest"
"""A distribution with a program that the environment of the tests certainly has."""


def environment(folder: Path, version: str, *programs: str, whole: bool = True) -> Path:
    """Write an environment in which the distribution `paint` is installed."""
    site = folder / "lib/python3.11/site-packages"
    (site / f"paint-{version}.dist-info").mkdir(parents=True)
    (site / f"paint-{version}.dist-info/METADATA").write_text(f"Name: paint\nVersion: {version}\n")
    (site / "paint").mkdir()
    (site / "paint/__init__.py").touch()
    (folder / "bin").mkdir()
    (folder / "pyvenv.cfg").touch()
    (folder / "bin/python").symlink_to(sys.executable)
    for name in programs:
        program(folder / "bin" / name)
    if whole:
        mark_complete(folder, [Step(requirements=("paint",))])
    return folder


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def paint(places: SearchPaths, **more) -> PackageLocation | Missing:
    more = {"distributions": ("paint-cpu", "paint"), "executable": "paint-serve"} | more
    return find_package(places, "painter", **more)


def test_its_own_environment(tmp_path: Path) -> None:
    folder = environment(tmp_path / "painter", "1.2", "paint-serve")
    found = paint(SearchPaths(environments=tmp_path, search=""))
    assert isinstance(found, PackageLocation)
    assert found.installation(offloads=True) == Installation(
        engine="painter",
        version="1.2",
        python=folder / "bin/python",
        executable=folder / "bin/paint-serve",
        offloads=True,
        origin=Origin.OWN,
    )
    assert found.module_folder("paint") == folder / "lib/python3.11/site-packages/paint"
    assert found.module_folder("brush") is None
    assert (found.has("paint"), found.has("paint-cpu")) == (True, False)


def test_a_half_made_environment_does_not_count(tmp_path: Path) -> None:
    environment(tmp_path / "painter", "1.2", "paint-serve", whole=False)
    found = paint(SearchPaths(environments=tmp_path, search=""))
    assert isinstance(found, Missing) and found.reason == "it is not installed"


def test_the_environment_that_runs_us() -> None:
    found = find_package(SearchPaths(search=""), "x", distributions=(HERE,), executable=HERE)
    assert isinstance(found, PackageLocation)
    assert (found.origin, found.python) == (Origin.HERE, Path(sys.executable))
    assert found.executable == Path(sys.executable).with_name(HERE)
    assert found.module_folder("pytest") is not None
    assert find_package(SearchPaths(search=""), "x", distributions=("no-such-thing",)) == Missing(
        engine="x", reason="it is not installed", hint="see how to install it: vllama engines"
    )


def test_path_comes_last(tmp_path: Path) -> None:
    elsewhere = program(tmp_path / "bin/paint-serve")
    places = SearchPaths(environments=tmp_path / "none", search=str(elsewhere.parent))
    found = paint(places)
    assert isinstance(found, PackageLocation)
    assert (found.origin, found.executable, found.version) == (Origin.PATH, elsewhere, "")
    assert found.installation(offloads=False).version == "unknown"
    assert found.installation(offloads=False, version="7").version == "7"
    environment(tmp_path / "all/painter", "1.2", "paint-serve")
    found = paint(SearchPaths(environments=tmp_path / "all", search=str(elsewhere.parent)))
    assert isinstance(found, PackageLocation) and found.origin is Origin.OWN


def test_a_link_on_path_into_an_environment_tells_its_version(tmp_path: Path) -> None:
    """As pipx and `uv tool` put it there."""
    folder = environment(tmp_path / "tools/paint", "3.1", "paint-serve")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/paint-serve").symlink_to(folder / "bin/paint-serve")
    found = paint(SearchPaths(search=str(tmp_path / "bin")))
    assert isinstance(found, PackageLocation)
    assert (found.version, found.python) == ("3.1", folder / "bin/python")


@pytest.mark.parametrize(
    ("given", "executable"),
    [
        ("mine", "mine/bin/paint-serve"),
        ("mine/bin/python", "mine/bin/paint-serve"),
        ("mine/bin/paint-serve", "mine/bin/paint-serve"),
        ("loose", "loose/paint-serve"),
        ("loose/paint-serve", "loose/paint-serve"),
    ],
)
def test_the_users_path_comes_first(tmp_path: Path, given: str, executable: str) -> None:
    environment(tmp_path / "painter", "1.2", "paint-serve")
    environment(tmp_path / "mine", "2.0", "paint-serve")
    program(tmp_path / "loose/paint-serve")
    found = paint(SearchPaths(environments=tmp_path, paths={"painter": tmp_path / given}))
    assert isinstance(found, PackageLocation)
    assert (found.origin, found.executable) == (Origin.GIVEN, tmp_path / executable)
    assert found.version == ("2.0" if given.startswith("mine") else "")


def test_a_wrong_path_is_told_and_nothing_else_taken(tmp_path: Path) -> None:
    environment(tmp_path / "painter", "1.2", "paint-serve")
    places = SearchPaths(environments=tmp_path, paths={"painter": tmp_path / "nowhere"})
    found = paint(places)
    assert isinstance(found, Missing)
    assert found.reason == (
        f"no paint-cpu or paint or paint-serve at '{tmp_path / 'nowhere'}', which is set in "
        "engine_paths"
    )
    assert "engine_paths" in found.hint


def test_a_place_without_what_it_needs_is_passed_over(tmp_path: Path) -> None:
    environment(tmp_path / "painter", "1.2")
    places = SearchPaths(environments=tmp_path, search="")
    found = paint(places, needs=("paint", "easel"))
    assert isinstance(found, Missing)
    assert found.reason == "it is installed without easel (its own environment)"
    (tmp_path / "painter/lib/python3.11/site-packages/easel.py").touch()
    assert isinstance(paint(places, needs=("paint", "easel")), PackageLocation)
