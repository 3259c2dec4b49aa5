"""What a storage may answer to a request for a range, and caches that are not as usual."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hub import Fault, StandInHub
from tests.models.conftest import Events
from tests.models.download.test_file_download import BIG, Once, blobs, content, fetch
from vllama.base.errors import Cancelled, SourceError
from vllama.models.settings import ModelsSettings
from vllama.models.stores.hf_cache import HfCacheStore

pytestmark = pytest.mark.slow

PAGE = Fault(status=200, headers={"Content-Type": "text/html; charset=utf-8"})


@pytest.fixture
def big(hub: StandInHub) -> StandInHub:
    hub.add_repo("o/r", {"m.gguf": BIG})
    return hub


@pytest.mark.parametrize("times", [1, 3, -1])
def test_another_range_than_asked_for(
    big: StandInHub, settings: ModelsSettings, times: int
) -> None:
    big.fault = Once(Fault(shift=7), times=times)
    assert content(fetch(settings)) == BIG


def test_a_page_instead_of_the_file_costs_nothing_that_is_here(
    big: StandInHub, settings: ModelsSettings
) -> None:
    big.fault = Once(Fault(bytes_per_s=2e6), times=-1)
    stopped = Events()
    stopped.cancel_at = 300_000
    with pytest.raises(Cancelled):
        fetch(settings, stopped)
    first = big.sent("cdn")
    big.fault = Once(PAGE, times=-1)
    with pytest.raises(SourceError, match="unexpected content instead of the file"):
        fetch(settings)
    pages = big.sent("cdn") - first
    big.fault = Once(PAGE, times=2)
    assert content(fetch(settings)) == BIG
    # what arrived before the stop did not come again: the stop itself loses at most some pieces
    assert big.sent("cdn") - pages < len(BIG) + 300_000


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (206, {"Content-Range": "bytes 0-999/1000"}),
        (416, {"Content-Range": "bytes */1000"}),
        (200, {"Content-Type": "application/octet-stream"}),
    ],
)
def test_a_file_shorter_than_announced_is_not_asked_for_again(
    big: StandInHub, with_settings: Callable[..., ModelsSettings], status: int, headers: Any
) -> None:
    big.fault = Once(Fault(status=status, headers=headers), times=-1)
    pause_s, began_s = 60.0, time.monotonic()
    with pytest.raises(SourceError, match=r"cannot download .m.gguf': .* has \d+ bytes, not"):
        fetch(with_settings(backoff_s=pause_s))
    assert time.monotonic() - began_s < pause_s


def test_a_storage_that_asks_to_wait(big: StandInHub, settings: ModelsSettings) -> None:
    big.fault = Once(Fault(status=429, headers={"Retry-After": "0"}), times=2)
    assert content(fetch(settings)) == BIG


def test_a_storage_that_asks_for_too_long_a_wait(big: StandInHub, settings: ModelsSettings) -> None:
    big.fault = Once(Fault(status=503, headers={"Retry-After": "9999"}), times=-1)
    with pytest.raises(SourceError, match="returned 503"):
        fetch(settings)


def test_a_trickling_connection_is_left(
    big: StandInHub, with_settings: Callable[..., ModelsSettings]
) -> None:
    big.fault = Once(Fault(bytes_per_s=200), times=2)
    assert content(fetch(with_settings(stall_timeout_s=1.0))) == BIG


def test_a_storage_that_only_trickles(
    big: StandInHub, with_settings: Callable[..., ModelsSettings]
) -> None:
    big.fault = Once(Fault(bytes_per_s=200), times=-1)
    with pytest.raises(SourceError, match=r"only \d+ bytes received in 1 s"):
        fetch(with_settings(stall_timeout_s=1.0, attempts=2))


def test_a_complete_model_writes_nothing(
    big: StandInHub, settings: ModelsSettings, events: Events
) -> None:
    """So a cache that may only be read is fine, if the model is there."""
    snapshot = fetch(settings)
    shutil.rmtree(settings.hf_cache_dir / ".locks")
    before = {path: path.lstat().st_mtime_ns for path in settings.hf_cache_dir.rglob("*")}
    assert fetch(settings, events) == snapshot
    assert {p: p.lstat().st_mtime_ns for p in settings.hf_cache_dir.rglob("*")} == before
    (told,) = [event for event in events.all if event.digest]
    assert told.completed_bytes == told.total_bytes == len(BIG)


def test_a_file_system_without_links(
    hub: StandInHub, settings: ModelsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "symlink", refuse)
    files = {"a-Q8_0-00001-of-00002.gguf": BIG, "a-Q8_0-00002-of-00002.gguf": BIG}
    hub.add_repo("o/r", files)
    snapshot = fetch(settings)
    for name, data in files.items():
        assert not (snapshot / name).is_symlink() and content(snapshot, name) == data
    assert blobs(settings) == []
    sent = hub.sent("cdn")
    assert fetch(settings) == snapshot and hub.sent("cdn") == sent
    (bundle,) = HfCacheStore(settings.hf_cache_dir).list()
    assert bundle.size_bytes == 2 * len(BIG)
    found = huggingface_hub.hf_hub_download(
        "o/r", "a-Q8_0-00001-of-00002.gguf", cache_dir=settings.hf_cache_dir, local_files_only=True
    )
    assert Path(found).read_bytes() == BIG
