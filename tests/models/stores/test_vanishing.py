"""Models that somebody removes while they are listed: what is left is listed, and nothing fails."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.models.conftest import open_offline
from tests.models.stores.test_local import make
from vllama.models.library import Library

ROUNDS = 300


def opened(home: Path) -> Library:
    (home / "own").mkdir(exist_ok=True)
    return open_offline(home, folders=(home / "own",))


@contextmanager
def again_and_again(change: Callable[[], None]) -> Iterator[None]:
    """Do something in another thread all the time; it must not fail there."""
    over, failures = threading.Event(), []

    def work() -> None:
        try:
            while not over.is_set():
                change()
        except Exception as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not failures


def test_created_models(tmp_path, tiny):
    library = opened(tmp_path)
    shutil.copy(tiny, tmp_path / "own" / "tiny.gguf")
    make(library, "stays")

    def change() -> None:
        library.local.remove(make(library, "somebody/goes"))

    with again_and_again(change):
        for _ in range(ROUNDS):
            names = {bundle.name for bundle in opened(tmp_path).list()}
            assert {"stays:latest", "tiny:latest"} <= names


def test_a_folder_of_the_user(tmp_path, tiny):
    library = opened(tmp_path)
    shutil.copy(tiny, tmp_path / "own" / "tiny.gguf")

    def change() -> None:
        folder = tmp_path / "own" / "below" / "deeper"
        folder.mkdir(parents=True)
        shutil.rmtree(tmp_path / "own" / "below")

    with again_and_again(change):
        for _ in range(ROUNDS):
            assert {bundle.name for bundle in library.list()} == {"tiny:latest"}


def test_the_cache_of_the_hub(tmp_path, tiny):
    library = opened(tmp_path)
    repo = tmp_path / "hub" / "models--test--Goes"

    def change() -> None:
        snapshot = repo / "snapshots" / "0" / "Q8_0"
        snapshot.mkdir(parents=True)
        shutil.copy(tiny, snapshot / "Goes-Q8_0.gguf")
        shutil.rmtree(repo)

    with again_and_again(change):
        for _ in range(ROUNDS):
            assert {b.name for b in library.list()} <= {"hf.co/test/Goes:Q8_0"}
