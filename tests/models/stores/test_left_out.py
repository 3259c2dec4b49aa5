"""One bad item in each place that lists: it is left out with the reason, and the rest is listed."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.models.conftest import open_offline
from vllama.base import left_out
from vllama.base.errors import BadModelFile, BadRequest
from vllama.models.library import Library
from vllama.models.ollama.layout import OllamaModels
from vllama.observe.captures.folder import list_summaries
from vllama.routes.batches.store import BatchStore
from vllama.routes.response_store import ResponseStore
from vllama.scheduler.slot_cache.store import read_records
from vllama.supervise.leftovers import sweep

ODD = os.fsdecode(b"mod\xe8le")
STORES = {  # where a store has a model, and where a bad item may lie
    "folder": ("own/good.gguf", "own/{}.gguf"),
    "lmstudio": ("lms/org/repo/good.gguf", "lms/org/{}/x.gguf"),
    "lmstudio's file": ("lms/org/repo/good.gguf", "lms/org/repo/{}-Q8_0.gguf"),
    "hub": ("hub/models--o--r/snapshots/c/good.gguf", "hub/models--o--{}/snapshots/c/x.gguf"),
    "hub's file": (
        "hub/models--o--r/snapshots/c/good.gguf", "hub/models--o--r/snapshots/c/{}-Q8_0.gguf",
    ),
    "created": ("own/good.gguf", "data/models/registry.ollama.ai/library/m/{}.json"),
    "ollama": ("own/good.gguf", "ollama/manifests/registry.ollama.ai/library/m/{}"),
}  # fmt: skip


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link_to_nowhere(path: Path) -> None:
    path.symlink_to("/nowhere/at-all")


def a_loop(path: Path) -> None:
    path.symlink_to(path)


def broken(path: Path) -> None:
    path.write_bytes(b"\xff{")


ITEMS: list[Callable[[Path], None]] = [a_folder, a_link_to_nowhere, a_loop, broken]


def opened(home: Path) -> Library:
    if not (home / "own").is_symlink():
        (home / "own").mkdir(parents=True, exist_ok=True)
    return open_offline(
        home,
        folders=(home / "own",),
        lmstudio_dirs=(home / "lms",),
        ollama_dirs=(home / "ollama",),
    )


@pytest.mark.parametrize("item", ITEMS)
@pytest.mark.parametrize("name", ["bad", ODD])
@pytest.mark.parametrize("store", STORES)
def test_a_bad_item_costs_itself(tmp_path, tiny, store: str, name: str, item) -> None:
    good, bad = (tmp_path / path for path in STORES[store])
    good.parent.mkdir(parents=True)
    shutil.copy(tiny, good)
    bad = Path(str(bad).format(name))
    bad.parent.mkdir(parents=True, exist_ok=True)
    item(bad)
    library = opened(tmp_path)
    assert str(good) in [str(bundle.path) for bundle in library.list()]
    reported = [(x.name, str(x.path), x.reason) for x in library.list_skipped()]
    json.dumps(reported, ensure_ascii=False).encode()  # valid UTF-8
    for bundle in library.list():
        f"{bundle.name}{bundle.path}{bundle.files}{bundle.digest}".encode()


@pytest.mark.parametrize("store", ["folder", "lmstudio's file", "hub's file"])
def test_a_name_that_is_no_utf8_is_reported_once(tmp_path, tiny, caplog, store: str) -> None:
    bad = Path(str(tmp_path / STORES[store][1]).format(ODD))
    bad.parent.mkdir(parents=True)
    shutil.copy(tiny, bad)
    library = opened(tmp_path)
    (left,) = library.list_skipped()
    assert "UTF-8" in left.reason and "mod\ufffdle" in str(left.path)
    left_out.note.cache_clear()
    with caplog.at_level(logging.INFO, "vllama.files"):
        assert not library.list() and not library.list()
    assert len(caplog.records) == 1 and str(left.path) in caplog.text
    with pytest.raises(BadModelFile, match="not UTF-8"):
        library.find(str(bad))


@pytest.mark.parametrize("where", ["own", "lms", "ollama", "hub", "data/models"])
def test_a_drive_that_is_gone_is_reported(tmp_path, tiny, where: str) -> None:
    (tmp_path / "lms/org/repo").mkdir(parents=True)
    shutil.copy(tiny, tmp_path / "lms/org/repo/good.gguf")
    place = tmp_path / where
    if place.exists():
        shutil.rmtree(place)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to("/media/unplugged")
    library = opened(tmp_path)
    assert [str(item.path) for item in library.list_skipped()][:1] == [str(place)]
    assert len(library.list()) == (where != "lms")


def test_other_folders_with_a_bad_item(tmp_path, caplog) -> None:
    names = {
        "captures": "20260101T000000000Z-a-1.json",
        "batches": "batch_1.json",
        "files": "file-1.json",
        "uploads": "new-1",
        "conversations": "c.json",
        "run": "engine.json",
    }
    for item in ITEMS:
        for kind, name in names.items():
            (tmp_path / item.__name__ / kind).mkdir(parents=True)
            item(tmp_path / item.__name__ / kind / name)
        home = tmp_path / item.__name__
        assert list(list_summaries(home / "captures")) == []
        for kind in ("batches", "files", "uploads"):
            store = BatchStore(home / kind, 1000)
            assert store.open() and store.list_batches() == []
            store.close()
        assert read_records(home / "conversations") == []
        assert sweep(home / "run") == []
        assert list(OllamaModels(home).names()) == []
    assert "ignored: " in caplog.text


@pytest.mark.parametrize("item", ITEMS)
@pytest.mark.parametrize("name", ["resp_x", "resp_x.y.json", f"resp_{ODD}.a.json"])
def test_kept_responses_with_a_bad_item(tmp_path, item, name: str) -> None:
    item(tmp_path / name)
    ResponseStore(tmp_path)._prune(tmp_path / "resp_new.owner.json", 0)


# -- folders that are named where a model is wanted -----------------------------------------------


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["one.gguf"], "one.gguf"),
        (["one-Q4_K_M.gguf", "one-Q8_0.gguf"], "one-Q4_K_M.gguf"),
        (["one-Q8_0-00001-of-00002.gguf", "one-Q8_0-00002-of-00002.gguf"], "one-Q8_0-00001"),
        (["one.gguf", "two.gguf"], None),
        (["one-Q8_0.gguf", "two-Q8_0.gguf", "mmproj-one.gguf"], None),
    ],
)
def test_a_folder_of_ggufs(tmp_path: Path, names: list[str], chosen: str | None) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    library = opened(tmp_path / "home")
    if chosen is not None:
        assert library.find(str(tmp_path)).bundle.path.name.startswith(chosen)
        return
    with pytest.raises(BadRequest, match="several") as caught:
        library.find(str(tmp_path))
    assert all(name in (caught.value.hint or "") for name in names if "mmproj" not in name)


def test_a_folder_with_a_part_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "one-00001-of-00003.gguf").write_bytes(b"x")
    with pytest.raises(BadModelFile, match="2 of 3 parts are missing, such as one-00002-of-00003"):
        opened(tmp_path / "home").find(str(tmp_path))
