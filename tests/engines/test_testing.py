"""The conformance kit: our adapters pass it, and each fault of an adapter is found."""

import re
import sys
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from vllama import engines
from vllama.base.errors import ConfigError
from vllama.chat.engine.traits import Traits
from vllama.engines.base import FailurePattern, Installation, Missing
from vllama.engines.package_server import PackageServer
from vllama.engines.testing import Recording, check_engine, load_object
from vllama.engines.testing.samples import KEY
from vllama.models.types import Format
from vllama.supervise.spec import Fault, HttpProbe

BUILT_IN = [
    point.load()
    for point in entry_points(group="vllama.engines")
    if point.value.startswith("vllama.engines.")
]


@pytest.mark.parametrize("engine", BUILT_IN, ids=lambda engine: engine.name)
def test_our_own_adapters_conform(engine) -> None:
    assert check_engine(engine) == []


def test_all_of_our_adapters_are_found_and_checked_by_mypy() -> None:
    sources = [path.read_text() for path in Path(engines.__path__[0]).rglob("*.py")]
    declared = re.findall(r"^\w*ENGINE: Engine = ", "\n".join(sources), re.MULTILINE)
    assert len({engine.name for engine in BUILT_IN}) == len(declared) > 0


@dataclass(frozen=True, kw_only=True)
class Good(PackageServer):
    """An adapter without a fault; each test adds one."""

    name: str = "good"
    title: str = "Good"
    distributions: tuple[str, ...] = ("good",)
    formats: tuple[Format, ...] = (Format.GGUF,)
    ready: HttpProbe = HttpProbe(path="/health", verify_path="/v1/models")

    def preference(self, platform):
        return 0, "only by name"

    def build_arguments(self, bundle, settings, endpoint):
        return ("-m", "good", "--port", endpoint.port)

    def build_environment(self, settings, endpoint):
        return {"GOOD_KEY": endpoint.api_key or ""}

    def traits(self, bundle, settings):
        return Traits(context_length=settings.context_length)


def with_method(name: str, method) -> Good:
    """Return the adapter with another method."""
    return type("Bad", (Good,), {name: method})()


def with_traits(**changes) -> Good:
    return with_method("traits", lambda self, b, s: replace(Good().traits(b, s), **changes))


def with_launch(change) -> Good:
    """Return the adapter with the changes that `change(spec, environ)` makes to each start."""

    def launch(self, bundle, settings, installation, endpoint, environ):
        spec = Good.launch(self, bundle, settings, installation, endpoint, environ)
        return replace(spec, **change(spec, environ))

    return with_method("launch", launch)


COUNTER = iter(range(100))


def change_environ(spec, environ) -> dict:
    environ["CHANGED"] = "1"
    return {}


def raise_an_error(self, *arguments):
    raise RuntimeError("no such color")


FAULTS = [
    (object(), "it has no `name`, `title`, `find`"),
    (Good, "the entry point is the class Good"),
    (Good(name="Good One"), "a `name` that is not of lower-case letters, digits"),
    (Good(aliases=("good",)), "`aliases` repeats the name"),
    (Good(formats=()), "`formats` is empty"),
    (Good(modes=()), "`modes` is empty"),
    (with_method("preference", lambda self, platform: (-1, "")), "`preference` returns (-1, '')"),
    (with_method("preference", raise_an_error), "RuntimeError: no such color (in raise_an_error"),
    (with_method("refuses", lambda self, platform, info: False), "`refuses` returns False"),
    (
        with_method("find", lambda self, paths: Missing(engine="good", reason="", hint="")),
        "a Missing without a reason or a hint",
    ),
    (
        with_method("find", lambda self, paths: Installation(engine="good", version="1")),
        "without `python` and `executable`",
    ),
    (
        with_method("find", lambda self, paths: Missing(engine="bad", reason="r", hint="h")),
        "an installation of engine 'bad'",
    ),
    (
        with_launch(lambda spec, _: {"argv": (spec.argv[0], str(next(COUNTER)), *spec.argv[1:])}),
        "`launch` is not pure",
    ),
    (with_launch(change_environ), "`launch` changes the mapping `environ`"),
    (with_launch(lambda spec, _: {"argv": ()}), "`launch` returns the command line ()"),
    (with_launch(lambda spec, _: {"argv": ("", *spec.argv)}), "each item must be a string"),
    (with_launch(lambda spec, _: {"argv": ("good", *spec.argv[1:])}), "`launch` starts 'good'"),
    (
        with_launch(lambda spec, _: {"argv": (*spec.argv[:2], *spec.argv[-2:])}),
        "does not pass the port to the server",
    ),
    (
        with_launch(lambda spec, _: {"argv": (*spec.argv[:-2], f"--key={KEY}", *spec.argv[-2:])}),
        "puts the key into the command line",
    ),
    (with_launch(lambda spec, _: {"argv": (*spec.argv, "--x")}), "`settings.extra_args` last"),
    (with_launch(lambda spec, env: {"env": dict(env)}), "the user's whole environment"),
    (with_launch(lambda spec, _: {"name": "x"}), "`launch` names the process 'x'"),
    (with_launch(lambda spec, _: {"hopeless": "("}), "it raised"),
    (with_launch(lambda spec, _: {"probe": HttpProbe(path="health")}), "a probe of 'health'"),
    (Good(ready=HttpProbe(path="/health")), "the probe does not verify the key"),
    (
        Good(ready=HttpProbe(path="/health", ready_statuses=frozenset({200, 503}))),
        "succeeds with a server that returns 503",
    ),
    (with_traits(context_length=1), "context_length=1, but 4096 was planned"),
    (with_traits(num_ctx=1), "sets `num_ctx`"),
    (with_traits(max_concurrency=0), "allows no requests"),
    (with_traits(parameters={"heat": "temperature"}), "unknown names in `parameters`: heat"),
    (
        with_traits(finish_body=lambda body: body.pop("messages")),
        "`finish_body` returns [",
    ),
    (
        with_traits(finish_body=lambda body: {**body, "n": next(COUNTER)}),
        "`finish_body` is not pure",
    ),
    (with_traits(finish_body=lambda body: {}), "`finish_body` drops `messages`"),
    (with_traits(rerank_path="rerank"), "the rerank_path 'rerank': a path starts with '/'"),
    (with_traits(roles=frozenset({"user"})), "does not accept messages with the roles assistant"),
    (
        with_method(
            "traits",
            lambda self, b, s: replace(Good().traits(b, s), max_concurrency=1 + next(COUNTER)),
        ),
        "`traits` is not pure",
    ),
    (with_method("slots", lambda self, parallel: 4), "`slots` returns more slots"),
    (with_method("lacks", lambda self, *_: "is slow"), "`lacks` returns 'is slow'"),
    (with_method("tune", lambda self, request: next(COUNTER)), "`tune` is not pure"),
    (
        with_method("wake", lambda self: ("GET", "x")), "`wake` returns ('GET', 'x')",
    ),
    (Good(failures=(FailurePattern(pattern="(", cause="c"),)), "a bad regular expression: ("),
    (
        Good(failures=(FailurePattern(pattern="(a)", cause="{0} {1}"),)),
        "uses a group in '{0} {1}' that (a) does not have",
    ),
    (
        Good(failures=(FailurePattern(pattern="Error: (.+)", cause="{0}"),)),
        "is diagnosed as None, not memory",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("adapter", "words"), FAULTS)
def test_a_fault_is_found(adapter: object, words: str) -> None:
    findings = check_engine(adapter)
    assert any(words in finding for finding in findings), findings


def test_an_adapter_without_a_fault_has_no_finding() -> None:
    assert check_engine(Good()) == []


def test_recordings_are_diagnosed() -> None:
    burnt = FailurePattern(
        pattern="oven at (.+) °C", cause="it is too hot ({0} °C)", fault=Fault.MISMATCH
    )
    engine = Good(failures=(burnt,))
    right = Recording(lines=("oven at 300 °C", "bye"), cause="too hot (300", fault=Fault.MISMATCH)
    assert check_engine(engine, [right]) == []
    assert check_engine(engine, [replace(right, cause="too cold")]) == [
        "the recording of 'too cold' is diagnosed as 'it is too hot (300 °C)'"
    ]
    (finding,) = check_engine(engine, [replace(right, fault=Fault.MEMORY)])
    assert "is diagnosed as mismatch (retryable: False), not memory (False)" in finding


def test_objects_are_loaded_from_the_current_folder(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text("ENGINE = {'a': 1}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    before = list(sys.path)
    assert load_object("mine:ENGINE") == {"a": 1} and sys.path == before
    for target, words in (
        ("mine", "does not specify an object"),
        ("mine:", "does not specify an object"),
        ("mine:OTHER", "AttributeError"),
        ("no_such_module:ENGINE", "ModuleNotFoundError"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_object(target)
