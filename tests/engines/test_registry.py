"""Which adapters are used, which are refused and why, and how installations are looked for."""

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from tests.facts import CPU, INFO, bundle, facts
from tests.fake_engine.vllama_fake import FakeEngine
from vllama.base.errors import ConfigError
from vllama.engines import registry
from vllama.engines.base import Installation, Mode, SearchPaths
from vllama.engines.registry import (
    ask_preference,
    discover_engines,
    find_engine,
    load_engines,
    locate_engine,
    resolve_engine_paths,
)
from vllama.models.types import ModelInfo
from vllama.plan.choose import rank_engines
from vllama.plan.engine_report import describe_engine
from vllama.plan.ladder import make_first_plan
from vllama.plan.refuse import find_refusal
from vllama.plan.types import Need
from vllama.supervise.spec import Endpoint, Fault, LaunchFailed


class Odd(FakeEngine):
    """An adapter as somebody else may write it."""

    def __init__(self, find) -> None:
        super().__init__(name="odd", aliases=("strange",), title="Odd")
        self.__dict__["find"] = find


def raise_an_error(search_paths: SearchPaths) -> Installation:
    raise RuntimeError("no such color")


def test_an_adapter_that_raises_counts_as_missing() -> None:
    here = Installation(engine="odd", version="1")
    assert locate_engine(Odd(lambda search_paths: here), SearchPaths()) is here
    found = discover_engines({"odd": Odd(raise_an_error)}).missing["odd"]
    assert found.reason == "detection failed (RuntimeError: no such color)"


class Raising(Odd):
    """An adapter with methods that raise."""

    def __init__(self) -> None:
        super().__init__(lambda search_paths: Installation(engine="odd", version="1"))

    def fail(self, *_: object) -> NoReturn:
        raise RuntimeError("no such color")

    configure = preference = refuses = fail


def test_methods_that_raise_harm_their_own_engine_only(caplog: pytest.LogCaptureFixture) -> None:
    found = discover_engines({**load_engines(), "odd": Raising()})
    assert "cannot configure engine 'odd': RuntimeError: no such color" in caplog.text
    machine = replace(facts(CPU), found=found)
    assert "odd" not in [engine.name for engine, _, _ in rank_engines(machine)]
    assert ask_preference(found.engines["odd"], CPU) == (
        0,
        "its adapter failed (RuntimeError: no such color)",
    )
    refusal = find_refusal(
        found.engines["odd"], machine, ModelInfo(architecture="llama"), Mode.CHAT
    )
    assert refusal == "its adapter failed (RuntimeError: no such color)"


@pytest.mark.parametrize("raised", ["SystemExit(3)", "GeneratorExit", "BaseException('x')"])
def test_nothing_that_a_package_raises_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str
) -> None:
    install_adapter(tmp_path, f"raise {raised}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "strange_module", raising=False)
    engines, left_out = registry.load_adapters()
    assert "strange" not in engines and "llama-cpp-python" in engines
    kind = raised.partition("(")[0]
    assert left_out["strange"].startswith(
        f"cannot use engine 'strange' of package vllama-strange 1.5: {kind}"
    )


def test_a_search_that_exits_counts_as_missing() -> None:
    found = discover_engines({"odd": Odd(lambda search_paths: sys.exit(3))}).missing["odd"]
    assert found.reason == "detection failed (SystemExit: 3)"


def test_one_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FIND_LIMIT_S", 0.05)
    never = threading.Event()
    here = Installation(engine="b", version="1")
    found = discover_engines({"odd": Odd(lambda _: never.wait()), "b": Odd(lambda _: here)})
    never.set()
    assert found.missing["odd"].reason == "detection took more than 0.05 s"
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


@pytest.mark.parametrize(
    ("metadata", "points"),
    [
        (b"Name: x\nVersion: 1\n", b"\xff"), (b"Name: x\nVersion: 1\n", b"[vllama.engines]\nx\n"),
        (b"\xff", b"[vllama.engines]\nx = y:Z\n"), (b"", b"[vllama.engines]\n=\n\0 = \n"),
    ],
)  # fmt: skip
def test_packages_whose_files_are_damaged_are_left_out(
    metadata: bytes, points: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "strange-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_bytes(metadata)
    (info / "entry_points.txt").write_bytes(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "llama-cpp-python" in registry.load_adapters()[0]


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
    def refuses(self, platform, info): ...
    def launch(self, bundle, settings, installation, endpoint, environ): ...
    def traits(self, bundle, settings): ...
ENGINE = Strange()
"""


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (WHOLE, None),
        (
            "ENGINE = object()",
            "it has no `name`, `title`, `find`, `launch`, `preference`, `traits`; see CONTRIBUTING",
        ),
        (WHOLE + "del Strange.traits, Strange.preference", "it has no `preference`, `traits`; "),
        (WHOLE + "Strange.title = None", "has a `title` that is not a string"),
        (WHOLE + "Strange.name = ''", "has a `name` that is not a non-empty string"),
        (WHOLE + "Strange.name = '../x'", "has a `name` that is not of lower-case letters"),
        (WHOLE + "Strange.formats = ('gguf',)", "not a tuple of vllama.models.types.Format"),
        (WHOLE + "Strange.aliases = 'alias'", "has a `aliases` that is not a tuple of strings"),
        (WHOLE + "Strange.launch = ()", "has a `launch` that is not a method"),
        (
            WHOLE + "Strange.find = lambda self: None",
            "has a `find` that cannot be called with (search_paths)",
        ),
        (WHOLE + "ENGINE = Strange", "is the class Strange, not an instance of it"),
        (WHOLE + "Strange.name = 'vllm'", "the name 'vllm' belongs to vllama itself"),
        (WHOLE + "Strange.aliases = ('Llama.cpp',)", "'llama.cpp' belongs to vllama itself"),
        ("ENGINE = {}[1]", "KeyError: 1"),
    ],
)
def test_why_an_adapter_is_refused_is_told_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, told: str | None
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "strange_module", raising=False)
    install_adapter(tmp_path, module)
    before = load_engines()["vllm"]
    engines, broken = registry.load_adapters()
    monkeypatch.delitem(sys.modules, "strange_module", raising=False)
    assert ("strange" in engines) is (told is None)
    assert engines["vllm"] is before
    if told:
        words = "cannot use engine 'strange' of package vllama-strange 1.5: "
        assert broken["strange"].startswith(words)
        assert told in broken["strange"]
        with pytest.raises(ConfigError, match="cannot use engine 'strange' of package"):
            find_engine(engines.values(), "Strange", broken)


def test_of_two_packages_that_claim_one_name_the_first_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        info = tmp_path / f"vllama_strange{number}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: vllama-strange{number}\nVersion: 1.0\n")
        point = f"strange = strange_{number}:ENGINE"
        (info / "entry_points.txt").write_text(f"[vllama.engines]\n{point}\n")
        (tmp_path / f"strange_{number}.py").write_text(WHOLE + f"Strange.title = 'Of {number}'")
    monkeypatch.syspath_prepend(str(tmp_path))
    engines, broken = registry.load_adapters()
    assert engines["strange"].title == "Of 1"
    assert broken["strange"] == (
        "cannot use engine 'strange' of package vllama-strange2 1.0: the name 'strange' belongs "
        "to package vllama-strange1 1.0; choose another one"
    )


WAYS = ("sys.exit(3)", "raise BaseException('x')", "1 / 0", "return 7", "return 'ab', float('nan')")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ("find", "preference", "refuses", "launch", "traits"))
def test_whatever_a_method_does_harms_only_its_own_engine(
    name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "strange_module", raising=False)
    method = f"\nimport sys\ndef odd(*args):\n    {way}\nStrange.{name} = odd\n"
    good = """
from vllama.chat.engine.traits import Traits
from vllama.engines.base import Installation, Mode
from vllama.models.types import Format
Strange.find = lambda self, paths: Installation(engine="strange", version="1")
Strange.preference = lambda self, platform: (1000, "best")
Strange.traits = lambda self, bundle, settings: Traits(context_length=1, max_concurrency=1)
Strange.formats, Strange.modes = tuple(Format), tuple(Mode)
"""
    install_adapter(tmp_path, WHOLE + good + method)
    strange = {"strange": load_engines()["strange"]}
    mine, others = discover_engines(strange), facts(CPU)
    found = replace(
        others.found,
        engines={**others.found.engines, **mine.engines},
        installations={**others.found.installations, **mine.installations},
        missing={**others.found.missing, **mine.missing},
    )
    known = replace(others, found=found)
    plan = make_first_plan(known, bundle(), INFO, Need())
    assert (plan.engine == "strange") is (name == "launch")
    if name == "launch":
        with pytest.raises(LaunchFailed, match="cannot use engine 'strange': its adapter") as why:
            found.engines["strange"].launch(
                plan.bundle, plan.settings, plan.installation, Endpoint(port=1), {}
            )
        assert why.value.fault is Fault.MISMATCH
    describe_engine(known, found.engines["strange"], None)


@pytest.mark.parametrize("way", WAYS)
def test_an_engine_serves_without_what_its_adapter_fails_to_tell(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "strange_module", raising=False)
    method = f"\nimport sys\ndef odd(*args):\n    {way}\nStrange.sleeps = Strange.drafts = odd\n"
    install_adapter(tmp_path, WHOLE + method)
    engine = load_engines()["strange"]
    assert engine.sleeps(None) is engine.drafts(None, None) is False


def test_an_adapter_that_inherits_from_nothing_gets_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "strange_module", raising=False)
    install_adapter(tmp_path, WHOLE + "Strange.attach = lambda self, bundle=None: ((), '/up')\n")
    strange = load_engines()["strange"]
    assert (strange.max_adapters, strange.slots(2), strange.tunes) == (0, None, False)
    assert strange.attaches and strange.attach() == ((), "/up")
    assert strange.configure({}) is strange


def test_names_that_are_offered_are_those_that_are_listed() -> None:
    known = load_engines()
    with pytest.raises(ConfigError) as caught:
        find_engine(known.values(), "nonsense")
    assert caught.value.hint == f"choose one of {', '.join(sorted(known))}"


def test_paths_may_use_any_name_of_an_engine(tmp_path: Path) -> None:
    engines = [Odd(raise_an_error)]
    assert resolve_engine_paths(SearchPaths(paths={"Strange": tmp_path}), engines).paths == {
        "odd": tmp_path
    }
    with pytest.raises(ConfigError, match="cannot use engine 'other'"):
        resolve_engine_paths(SearchPaths(paths={"other": tmp_path}), engines)
