"""`org/repo@revision`: pulled, recorded, shown, found again and removed, beside the branch main."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hub import StandInHub
from tests.models.conftest import Events
from tests.tiny import make_weights, write_tiny_gguf
from vllama.base.errors import ModelNotFound
from vllama.models.convert.job import ConversionOptions
from vllama.models.convert.prepare import prepare
from vllama.models.library import Library, open_library
from vllama.models.settings import ModelsSettings
from vllama.models.types import Format

REPO = "Org/Tiny-GGUF"
GGUF = (Format.GGUF,)


@pytest.fixture
def commits(hub: StandInHub, tmp_path: Path) -> dict[str, str]:
    """Publish three revisions of one repository; each has its own weights."""
    hub.add_repo(REPO)
    made = {}
    for seed, revision in enumerate(("v1.0", "refs/pr/7", "main")):
        path = write_tiny_gguf(tmp_path / f"{seed}-Q4_K_M.gguf", seed=seed)
        files = {"tiny-Q4_K_M.gguf": path, "tiny-Q8_0.gguf": path} if revision == "main" else {}
        made[revision] = hub.commit(REPO, files or {"tiny-Q4_K_M.gguf": path}, revision)
    return made


@pytest.fixture
def opened(
    commits: dict[str, str], with_settings: Callable[..., ModelsSettings]
) -> Callable[..., Library]:
    return lambda **changes: open_library(with_settings(**changes))


@pytest.mark.parametrize("revision", ["v1.0", "refs/pr/7", "a commit"])
def test_a_revision_is_pulled_recorded_and_shown(
    opened: Callable[..., Library], commits: dict[str, str], revision: str
) -> None:
    revision = commits["v1.0"] if revision == "a commit" else revision
    library = opened()
    pulled = library.remote.pull(f"{REPO}@{revision}", formats=GGUF)
    assert pulled.name == f"hf.co/{REPO}@{revision}:Q4_K_M"
    assert (pulled.hub_id, pulled.revision) == (REPO, revision)
    assert pulled.path.parent.name == commits.get(revision, revision)
    later = opened(hf_offline=True)
    for name in (pulled.name, f"{REPO.lower()}@{revision}", f"hf.co/{REPO}:Q4_K_M@{revision}"):
        assert later.find(name).bundle == pulled
    assert [bundle.name for bundle in later.list()] == [pulled.name]
    with pytest.raises(ModelNotFound):
        later.find(REPO)  # main is another model
    # shown names can be pulled again, from the same revision
    assert opened().remote.pull(pulled.name, formats=GGUF) == pulled


def test_revisions_lie_side_by_side(opened: Callable[..., Library]) -> None:
    library = opened()
    names = [
        library.remote.pull(f"{REPO}{at}", formats=GGUF).name for at in ("", "@v1.0", "@refs/pr/7")
    ]
    bundles = {bundle.name: bundle for bundle in library.list()}
    assert sorted(bundles) == sorted(names)
    assert len({bundle.digest for bundle in bundles.values()}) == 3
    assert library.remote.pull(REPO, formats=GGUF).revision is None
    gone = library.remove(f"{REPO}@v1.0")
    assert gone >= bundles[f"hf.co/{REPO}@v1.0:Q4_K_M"].size_bytes
    assert sorted(bundle.name for bundle in library.list()) == sorted(
        {*names} - {f"hf.co/{REPO}@v1.0:Q4_K_M"}
    )


def test_a_pinned_commit_that_is_main_too(
    opened: Callable[..., Library], commits: dict[str, str]
) -> None:
    library = opened()
    main = library.remote.pull(REPO, formats=GGUF)
    pinned = library.remote.pull(f"{REPO}@{commits['main']}", formats=GGUF)
    assert pinned.path == main.path and pinned.key == main.key
    assert library.remove(pinned.name) < 100  # the note of the revision
    assert [bundle.name for bundle in library.list()] == [main.name] and main.path.exists()


def test_a_revision_stays_when_main_moves_on(
    opened: Callable[..., Library], commits: dict[str, str], hub: StandInHub, tmp_path: Path
) -> None:
    library = opened()
    pinned = library.remote.pull(f"{REPO}@{commits['main']}", formats=GGUF)
    newer = write_tiny_gguf(tmp_path / "newer-Q4_K_M.gguf", seed=9)
    hub.commit(REPO, {"tiny-Q4_K_M.gguf": newer})
    moved = library.remote.pull(REPO, formats=GGUF)
    assert moved.digest != pinned.digest
    assert library.remote.pull(pinned.name, formats=GGUF) == pinned


def test_a_revision_has_only_its_own_files(
    opened: Callable[..., Library], events: Events, hub: StandInHub
) -> None:
    library = opened()
    with pytest.raises(ModelNotFound, match="cannot find ':Q8_0'"):
        library.remote.pull(f"{REPO}@v1.0:Q8_0", formats=GGUF)
    with pytest.raises(ModelNotFound, match="has no such revision") as caught:
        library.remote.pull(f"{REPO}@v2.0", formats=GGUF, progress=events)
    assert "omit the @revision" in str(caught.value.hint)
    hub.settle()
    assert hub.sent("cdn") == 0


def test_a_revision_is_looked_up_and_converted(
    opened: Callable[..., Library], hub: StandInHub, tmp_path: Path
) -> None:
    library = opened()
    found = library.remote.look_up(f"{REPO}@v1.0", formats=GGUF)
    assert found.repository.branch == "v1.0"
    hub.commit(REPO, {"config.json": b"{}", "model.safetensors": make_weights(2)}, "safe")
    job = prepare(library, f"{REPO}@safe", ConversionOptions(quantize="Q8_0"))
    assert job.original.pull_name == f"hf.co/{REPO}@safe:latest"
    assert job.result == f"hf.co/{REPO}@safe:Q8_0"
