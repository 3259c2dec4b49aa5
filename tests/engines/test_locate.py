"""Where an engine is looked for: every place, their order, and what is told where it is not."""

from __future__ import annotations

import inspect
import sys
import threading
from pathlib import Path

import pytest

from vllama.engines import registry
from vllama.engines.base import Engine, Installation, Missing, Origin, Places
from vllama.engines.locate import Located, find_package
from vllama.engines.registry import by_name, discover, engine_named, find, load_engines
from vllama.environments.place import Step, complete
from vllama.errors import ConfigError

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
        complete(folder, [Step(requirements=("paint",))])
    return folder


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def paint(places: Places, **more) -> Located | Missing:
    more = {"distributions": ("paint-cpu", "paint"), "executable": "paint-serve"} | more
    return find_package(places, "painter", **more)


def test_its_own_environment(tmp_path: Path) -> None:
    folder = environment(tmp_path / "painter", "1.2", "paint-serve")
    found = paint(Places(environments=tmp_path, search=""))
    assert isinstance(found, Located)
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
    found = paint(Places(environments=tmp_path, search=""))
    assert isinstance(found, Missing) and found.reason == "it is not installed"


def test_the_environment_that_runs_us() -> None:
    found = find_package(Places(search=""), "x", distributions=(HERE,), executable=HERE)
    assert isinstance(found, Located)
    assert (found.origin, found.python) == (Origin.HERE, Path(sys.executable))
    assert found.executable == Path(sys.executable).with_name(HERE)
    assert found.module_folder("pytest") is not None
    assert find_package(Places(search=""), "x", distributions=("no-such-thing",)) == Missing(
        engine="x", reason="it is not installed", hint="see how to get it: vllama engines"
    )


def test_path_comes_last(tmp_path: Path) -> None:
    elsewhere = program(tmp_path / "bin/paint-serve")
    places = Places(environments=tmp_path / "none", search=str(elsewhere.parent))
    found = paint(places)
    assert isinstance(found, Located)
    assert (found.origin, found.executable, found.version) == (Origin.PATH, elsewhere, "")
    assert found.installation(offloads=False).version == "unknown"
    assert found.installation(offloads=False, version="7").version == "7"
    environment(tmp_path / "all/painter", "1.2", "paint-serve")
    found = paint(Places(environments=tmp_path / "all", search=str(elsewhere.parent)))
    assert isinstance(found, Located) and found.origin is Origin.OWN


def test_a_link_on_path_into_an_environment_tells_its_version(tmp_path: Path) -> None:
    """As pipx and `uv tool` put it there."""
    folder = environment(tmp_path / "tools/paint", "3.1", "paint-serve")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/paint-serve").symlink_to(folder / "bin/paint-serve")
    found = paint(Places(search=str(tmp_path / "bin")))
    assert isinstance(found, Located)
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
    found = paint(Places(environments=tmp_path, paths={"painter": tmp_path / given}))
    assert isinstance(found, Located)
    assert (found.origin, found.executable) == (Origin.GIVEN, tmp_path / executable)
    assert found.version == ("2.0" if given.startswith("mine") else "")


def test_a_wrong_path_is_told_and_nothing_else_taken(tmp_path: Path) -> None:
    environment(tmp_path / "painter", "1.2", "paint-serve")
    places = Places(environments=tmp_path, paths={"painter": tmp_path / "nowhere"})
    found = paint(places)
    assert isinstance(found, Missing)
    assert found.reason == (
        f"there is no paint-cpu or paint or paint-serve at '{tmp_path / 'nowhere'}', which the "
        "settings name"
    )
    assert "engine_paths" in found.hint


def test_a_place_without_what_it_needs_is_passed_over(tmp_path: Path) -> None:
    environment(tmp_path / "painter", "1.2")
    places = Places(environments=tmp_path, search="")
    found = paint(places, needs=("paint", "easel"))
    assert isinstance(found, Missing)
    assert found.reason == "it is installed without easel (its own environment)"
    (tmp_path / "painter/lib/python3.11/site-packages/easel.py").touch()
    assert isinstance(paint(places, needs=("paint", "easel")), Located)


class Odd:
    """An adapter as somebody else may write it."""

    name, aliases, title = "odd", ("strange",), "Odd"

    def __init__(self, find) -> None:
        self.find = find


def broken() -> Installation:
    raise RuntimeError("no such colour")


def test_an_adapter_may_do_without_places_and_may_fail() -> None:
    here = Installation(engine="odd", version="1")
    assert find(Odd(lambda: here), Places()) is here
    assert find(Odd(lambda places: here), Places()) is here
    found = discover({"odd": Odd(broken)}).missing["odd"]
    assert found.reason == "looking for it failed (RuntimeError: no such colour)"


def test_one_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FIND_LIMIT_S", 0.05)
    never = threading.Event()
    here = Installation(engine="b", version="1")
    found = discover({"odd": Odd(lambda: never.wait()), "b": Odd(lambda: here)})
    never.set()
    assert found.missing["odd"].reason == "looking for it took more than 0.05 s"
    assert found.installations == {"b": here}


def test_an_adapter_that_cannot_be_imported_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "strange-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: strange\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vllama.engines]\nstrange = no_such_module:ENGINE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    engines, left_out = registry.load_adapters()
    assert "strange" not in engines and "llama-cpp-python" in engines
    assert "no_such_module" in left_out["strange"]


def install_adapter(site: Path, module: str) -> None:
    """Write a package whose engine `strange` is what `module` calls ENGINE."""
    info = site / "vllama_strange-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: vllama-strange\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[vllama.engines]\nstrange = strange_module:ENGINE\n")
    (site / "strange_module.py").write_text(module)


WHOLE = """
from vllama.engines.base import Overhead
class Strange:
    name, title, aliases, formats, modes = "strange", "Strange", (), (), ()
    overhead, failures = Overhead(), ()
    def find(self, places): ...
    def preference(self, platform): ...
    def supports(self, platform, info): ...
    def launch(self, bundle, settings, installation, endpoint, environ): ...
    def traits(self, bundle, settings): ...
ENGINE = Strange()
"""


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (WHOLE, None),
        ("ENGINE = object()", "lacks name, aliases, title, formats, modes, overhead, failures"),
        (WHOLE + "del Strange.traits, Strange.preference", "it lacks preference, traits; "),
        (WHOLE + "Strange.title = None; Strange.launch = ()", "should be: title, launch"),
        (WHOLE + "ENGINE = Strange", "Strange is a class"),
        ("ENGINE = {}[1]", "KeyError: 1"),
    ],
)
def test_what_an_adapter_lacks_is_told_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, told: str | None
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "strange_module", raising=False)
    install_adapter(tmp_path, module)
    engines, left_out = registry.load_adapters()
    monkeypatch.delitem(sys.modules, "strange_module", raising=False)
    assert ("strange" in engines) is (told is None)
    if told:
        assert left_out["strange"].startswith("package vllama-strange 1.5: ")
        assert told in left_out["strange"]


def test_all_that_the_contract_demands_is_looked_for() -> None:
    methods = {name for name in vars(Engine) if inspect.isfunction(getattr(Engine, name))}
    assert set(registry.METHODS) == {name for name in methods if not name.startswith("_")}
    assert set(registry.KINDS) == set(inspect.get_annotations(Engine))


def test_names_that_are_offered_are_those_that_are_listed() -> None:
    known = load_engines()
    with pytest.raises(ConfigError) as caught:
        engine_named(known.values(), "nonsense")
    assert caught.value.hint == f"choose one of {', '.join(sorted(known))}"


def test_paths_may_use_any_name_of_an_engine(tmp_path: Path) -> None:
    engines = [Odd(broken)]
    assert by_name(Places(paths={"Strange": tmp_path}), engines).paths == {"odd": tmp_path}
    with pytest.raises(ConfigError, match="cannot use engine 'other'"):
        by_name(Places(paths={"other": tmp_path}), engines)
