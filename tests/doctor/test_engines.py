"""Which engine would serve, and what is not whole."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.doctor.facts import CPU, GPU, statuses
from tests.fake_engine.vllama_fake import FakeEngine
from vllama.doctor import engines
from vllama.engines.base import DiscoveredEngines, Installation, Missing, Origin, SearchPaths
from vllama.engines.external import ENGINE as EXTERNAL
from vllama.machine.environments.layout import Step, mark_complete
from vllama.machine.types import Platform
from vllama.models.settings import UpstreamSettings
from vllama.plan.engine_report import report_engines
from vllama.plan.types import Facts


@dataclass(frozen=True)
class Painter(FakeEngine):
    score: int = 0

    def preference(self, platform):
        return self.score, "it is fast"


ENGINES = {"fast": Painter(name="fast", score=9), "slow": Painter(name="slow", score=5)}
SLOW = Installation(engine="slow", version="1.0", offloads=False, origin=Origin.OWN)
NO_FAST = Missing(engine="fast", reason="it is not installed", hint="get it")


@pytest.mark.parametrize(
    ("platform", "installed", "told"),
    [
        (CPU, {"fast": replace(SLOW, engine="fast")}, ["ok"]),
        (CPU, {"slow": SLOW}, ["ok", "warning"]),
        (GPU, {"slow": SLOW}, ["ok", "warning", "warning"]),
        (GPU, {"slow": replace(SLOW, offloads=True)}, ["ok", "warning"]),
        (CPU, {}, ["failed"]),
    ],
)
def test_the_engine_that_would_serve(platform: Platform, installed, told: list[str]) -> None:
    missing = {name: replace(NO_FAST, engine=name) for name in ENGINES if name not in installed}
    found = DiscoveredEngines(engines=ENGINES, installations=installed, missing=missing)
    findings = list(engines.check_choice(Facts(platform=platform, found=found)))
    assert statuses(findings) == told
    if platform is GPU and len(told) == 3:
        assert "no GPU support: H100 is not used" in findings[-1].text


def test_which_of_several_programs_is_used_is_told() -> None:
    there = replace(SLOW, executable=Path("/opt/llama"), origin=Origin.PATH)
    found = DiscoveredEngines(
        engines=ENGINES, installations={"slow": there}, missing={"fast": NO_FAST}
    )
    facts = Facts(platform=CPU, found=found)
    assert "from PATH (/opt/llama)" in next(engines.check_choice(facts)).text
    (row,) = (one for one in report_engines(facts).engines if one.installed)
    assert row.where == "PATH (/opt/llama)"


def test_adapters_and_engines_that_cannot_be_used() -> None:
    bad = replace(NO_FAST, reason="it is installed without easel (PATH)")
    found = DiscoveredEngines(
        engines=ENGINES,
        missing={"fast": bad, "slow": replace(NO_FAST, engine="slow")},
        broken={"odd": "cannot use engine 'odd' of package p 1.0: ImportError: x"},
    )
    told = list(engines.unusable(Facts(platform=CPU, found=found)))
    assert statuses(told) == ["failed", "warning"]
    assert "odd" in told[0].text and "without easel" in told[1].text


def test_environments_that_are_not_whole(tmp_path: Path) -> None:
    assert list(engines.environments(SearchPaths(environments=tmp_path / "none"), ())) == []
    assert list(engines.environments(SearchPaths(), ())) == []
    for name in ("gone", "half", "whole"):
        (tmp_path / name / "bin").mkdir(parents=True)
    for name in ("gone", "whole"):
        mark_complete(tmp_path / name, [Step(requirements=("x",))])
    (tmp_path / "whole/bin/python").symlink_to(sys.executable)
    (tmp_path / "gone/pyvenv.cfg").touch()
    told = list(engines.environments(SearchPaths(environments=tmp_path), ("gone", "half")))
    assert statuses(told) == ["failed", "warning"]
    assert "gone is missing its Python" in told[0].text
    assert "half was interrupted" in told[1].text
    assert "vllama engines install half" in str(told[1].hint)
    *_, half = engines.environments(SearchPaths(environments=tmp_path), ())
    assert f"remove the folder '{tmp_path / 'half'}'" in str(half.hint)


def test_upstreams_are_asked_and_a_dead_one_is_a_failure() -> None:
    (none,) = engines.upstreams(Facts(platform=CPU, found=DiscoveredEngines(engines=ENGINES)))
    assert none.status == "skipped"
    with socket.socket() as bound:  # which does not listen
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        external = EXTERNAL.configure({"upstreams": (UpstreamSettings(url=url),)})
        found = DiscoveredEngines(
            engines={"external": external}, installations={"external": external.find(SearchPaths())}
        )
        (dead,) = engines.upstreams(Facts(platform=CPU, found=found))
    assert dead.status == "failed"
    assert dead.text.startswith(f"upstream {url} is not available: ")
