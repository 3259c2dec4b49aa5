from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import pytest

from tests.hub import Fault, StandInHub
from tests.models.conftest import Events
from vllama.base.errors import (
    AuthRequired,
    Cancelled,
    ChecksumMismatch,
    DiskFull,
    SourceError,
    VllamaError,
)
from vllama.models.download.fetch import fetch_variant
from vllama.models.download.partial_file import count_saved_bytes
from vllama.models.hub_cache import HubRepo
from vllama.models.settings import ModelsSettings
from vllama.models.sources.hf import HuggingFace
from vllama.models.stores.hf_cache import HfCacheStore

pytestmark = pytest.mark.slow

BIG = Random(7).randbytes(1_000_000)  # 16 parts of 64 KiB
PART = 64 * 1024


def fetch(settings: ModelsSettings, events: Events | None = None) -> Path:
    source = HuggingFace(settings)
    repository = source.resolve("o/r")
    events = events or Events()
    variant = repository.variants[0]
    return fetch_variant(source, settings, repository, variant, events, events.cancel)


def content(snapshot: Path, name: str = "m.gguf") -> bytes:
    return (snapshot / name).read_bytes()


def blobs(settings: ModelsSettings) -> list[str]:
    return sorted(p.name for p in (settings.hf_cache_dir / "models--o--r" / "blobs").iterdir())


class Once:
    """A fault that happens `times` times, at requests to the CDN that `when` accepts."""

    def __init__(
        self, fault: Fault, times: int = 1, when: Callable[[str, str], bool] | None = None
    ) -> None:
        self.fault, self.left, self.when = fault, times, when or (lambda server, path: True)
        self.lock = threading.Lock()

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str], server: str
    ) -> Fault | None:
        with self.lock:
            if server != "cdn" or self.left == 0 or not self.when(server, path):
                return None
            self.left -= 1
            return self.fault


@pytest.fixture
def big(hub: StandInHub) -> StandInHub:
    hub.add_repo("o/r", {"m.gguf": BIG})
    return hub


def test_whole_flow(big: StandInHub, settings: ModelsSettings, events: Events) -> None:
    snapshot = fetch(settings, events)
    assert content(snapshot) == BIG
    link = snapshot / "m.gguf"
    sha = big.repos["o/r"].snapshots[snapshot.name]["m.gguf"].sha256
    assert str(link.readlink()) == f"../../blobs/{sha}"
    assert blobs(settings) == [sha]
    assert big.sent("cdn") == len(BIG)
    assert len(big.requests("cdn")) == 16
    assert all(entry.headers["accept-encoding"] == "identity" for entry in big.requests("cdn"))
    moving = [event for event in events.all if event.digest]
    assert {event.digest for event in moving} == {f"sha256:{sha}"}
    assert {event.status for event in moving} == {f"pulling {sha[:12]}"}
    counts = [event.completed_bytes or 0 for event in moving]
    assert counts == sorted(counts) and (counts[0], counts[-1]) == (0, len(BIG))
    assert {event.total_bytes for event in moving} == {len(BIG)}
    assert [e.status for e in events.all[-2:]] == ["verifying sha256 digest", "writing manifest"]


def test_huggingface_hub_sees_the_files(big: StandInHub, settings: ModelsSettings) -> None:
    import huggingface_hub

    snapshot = fetch(settings)
    found = huggingface_hub.hf_hub_download(
        "o/r", "m.gguf", cache_dir=settings.hf_cache_dir, local_files_only=True
    )
    assert Path(found).read_bytes() == BIG
    cache = huggingface_hub.scan_cache_dir(settings.hf_cache_dir)
    assert not cache.warnings
    (repo,) = cache.repos
    (revision,) = repo.revisions
    assert (repo.repo_id, revision.commit_hash) == ("o/r", snapshot.name)
    assert set(revision.refs) == {"main"}
    assert repo.size_on_disk == len(BIG)
    big.settle()
    asked = len(big.log)
    huggingface_hub.snapshot_download(
        "o/r", revision=snapshot.name, cache_dir=settings.hf_cache_dir, local_files_only=True
    )
    assert len(big.log) == asked
    assert (settings.hf_cache_dir / "CACHEDIR.TAG").is_file()


def test_a_second_pull_moves_nothing(
    big: StandInHub, settings: ModelsSettings, events: Events
) -> None:
    fetch(settings)
    sent = big.sent("cdn")
    fetch(settings, events)
    assert big.sent("cdn") == sent
    (event,) = [event for event in events.all if event.digest]
    assert event.completed_bytes == event.total_bytes == len(BIG)


def test_safetensors_set_with_git_and_empty_files(
    hub: StandInHub, settings: ModelsSettings
) -> None:
    files = {
        "config.json": b'{"a": 1}',
        "model.safetensors": BIG,
        "tokenizer.json": b"x" * 200_000,
        "merges.txt": b"",
        "empty.safetensors": b"",
        "ignored.bin": b"no",
    }
    hub.add_repo("o/r", files)
    snapshot = fetch(settings)
    got = {path.name: path.read_bytes() for path in snapshot.iterdir()}
    left_out = {"ignored.bin", "empty.safetensors"}  # not the model's
    assert got == {name: data for name, data in files.items() if name not in left_out}
    hub.settle()
    assert not [entry for entry in hub.requests("cdn") if "e3b0c442" in entry.path]  # empty
    (bundle,) = HfCacheStore(settings.hf_cache_dir).list()
    assert bundle.path == snapshot


def test_update_keeps_what_is_equal(hub: StandInHub, settings: ModelsSettings) -> None:
    shards = {f"m-Q8_0-0000{i}-of-00002.gguf": bytes([i]) * 100_000 for i in (1, 2)}
    hub.add_repo("o/r", shards)
    first = fetch(settings)
    sent = hub.sent("cdn")
    shards["m-Q8_0-00002-of-00002.gguf"] = b"new" * 50_000
    hub.commit("o/r", shards)
    second = fetch(settings)
    assert first != second and hub.sent("cdn") - sent == 150_000
    bundle = HfCacheStore(settings.hf_cache_dir).list()[0]
    assert bundle.path.parent == second


def test_resume_after_cancel(big: StandInHub, settings: ModelsSettings) -> None:
    big.fault = lambda method, path, headers, server: Fault(bytes_per_s=2e6)
    stopped = Events()
    stopped.cancel_at = 300_000
    with pytest.raises(Cancelled):
        fetch(settings, stopped)
    assert HfCacheStore(settings.hf_cache_dir).list() == []
    names = blobs(settings)
    assert [name[64:] for name in names] == [".vllama-partial", ".vllama-partial.json"]
    partial = HubRepo(settings.hf_cache_dir, "o/r").partial(names[0][:64])
    saved = count_saved_bytes(partial, len(BIG))
    assert 300_000 <= saved < len(BIG)
    big.fault = None
    before, events = big.sent("cdn"), Events()
    assert content(fetch(settings, events)) == BIG
    assert big.sent("cdn") - before == len(BIG) - saved
    assert (events.all[0].completed_bytes or 0) == saved
    assert len(blobs(settings)) == 1


@pytest.mark.parametrize("seed", range(5))
def test_cancel_at_any_moment_keeps_what_came(
    big: StandInHub, settings: ModelsSettings, seed: int
) -> None:
    random = Random(seed)
    big.fault = Once(Fault(cut_after=10_000), times=20)
    events = Events()
    timer = threading.Timer(random.uniform(0.02, 0.15), events.cancel.set)
    timer.start()
    try:
        assert content(fetch(settings, events)) == BIG
    except Cancelled:
        done = max((event.completed_bytes or 0 for event in events.all), default=0)
        sha = big.repos["o/r"].snapshots[big.repos["o/r"].refs["main"]]["m.gguf"].sha256
        assert (
            count_saved_bytes(HubRepo(settings.hf_cache_dir, "o/r").partial(sha), len(BIG)) >= done
        )
        assert content(fetch(settings)) == BIG
    timer.join()


def test_redirects_without_end(big: StandInHub, settings: ModelsSettings) -> None:
    big.fault = Once(Fault(status=302, headers={"Location": "/around"}), times=-1)
    with pytest.raises(SourceError, match="cannot download"):
        fetch(settings)


def test_cancel_wakes_a_silent_connection(
    big: StandInHub, with_settings: Callable[..., ModelsSettings], events: Events
) -> None:
    big.fault = Once(Fault(stall_after=1000), times=-1)
    threading.Timer(0.3, events.cancel.set).start()
    with pytest.raises(Cancelled):
        fetch(with_settings(stall_timeout_s=1e6), events)
    assert threading.active_count() < 30


def test_resume_survives_other_part_sizes_and_junk(
    big: StandInHub, settings: ModelsSettings, with_settings: Callable[..., ModelsSettings]
) -> None:
    stopped = Events()
    stopped.cancel_at = 1
    big.fault = lambda method, path, headers, server: Fault(bytes_per_s=4e6)
    with pytest.raises(Cancelled):
        fetch(settings, stopped)
    big.fault = None
    state = next((settings.hf_cache_dir).rglob("*.json"))
    for junk in ("", "[]", '{"size": 5}', json.dumps({"size": len(BIG), "part_bytes": 0})):
        state.write_text(junk)
        assert count_saved_bytes(state.with_suffix(""), len(BIG)) == 0
    assert content(fetch(with_settings(part_bytes=300_000))) == BIG


@pytest.mark.parametrize(
    "fault",
    [
        Fault(cut_after=30_000),
        Fault(reset_after=30_000),
        Fault(stall_after=30_000),
        Fault(cut_after=0),
        Fault(reset_after=0),
        Fault(status=503),
        Fault(status=500),
        Fault(status=429),
        Fault(status=403),
    ],
    ids=["fin", "rst", "stall", "fin0", "rst0", "503", "500", "429", "403"],
)
def test_transient_failures_are_survived(
    big: StandInHub, with_settings: Callable[..., ModelsSettings], fault: Fault
) -> None:
    big.fault = Once(fault, times=2)
    silence_s = 10.0 if fault.stall_after is None else 0.3
    assert content(fetch(with_settings(stall_timeout_s=silence_s))) == BIG
    # only what was lost in the network is asked for again
    assert big.sent("cdn") <= len(BIG) + 300_000


def test_every_part_is_cut_again_and_again(big: StandInHub, settings: ModelsSettings) -> None:
    big.fault = Once(Fault(cut_after=20_000), times=-1)
    assert content(fetch(settings)) == BIG


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault(status=503), "returned 503"),
        (Fault(status=403), "returned 403"),
        (Fault(status=400), "returned 400"),
        (Fault(cut_after=0), "m.gguf"),
        (Fault(stall_after=0), "m.gguf"),
    ],
)
def test_lasting_failures_end(
    big: StandInHub, with_settings: Callable[..., ModelsSettings], fault: Fault, says: str
) -> None:
    big.fault = Once(fault, times=-1)
    settings = with_settings(stall_timeout_s=10.0 if fault.stall_after is None else 0.3)
    with pytest.raises(SourceError, match=says):
        fetch(settings)
    big.fault = None
    assert content(fetch(settings)) == BIG


def test_expired_signature_gets_a_new_address(big: StandInHub, settings: ModelsSettings) -> None:
    lock, count = threading.Lock(), [0]

    def expire(method: str, path: str, headers: Mapping[str, str], server: str) -> None:
        with lock:
            count[0] += server == "cdn"
            if server == "cdn" and count[0] == 6:
                big.expire()

    big.fault = expire
    assert content(fetch(settings)) == BIG
    big.settle()
    assert len(big.requests("hub", "HEAD")) == 2  # several workers, one new address
    assert any(entry.status == 403 for entry in big.requests("cdn"))


def test_server_without_ranges(big: StandInHub, settings: ModelsSettings) -> None:
    big.fault = Once(Fault(ignore_range=True), times=-1)
    assert content(fetch(settings)) == BIG


def test_server_without_ranges_that_cuts(big: StandInHub, settings: ModelsSettings) -> None:
    def fault(method: str, path: str, headers: Mapping[str, str], server: str) -> Fault | None:
        if server != "cdn":
            return None
        tries = len([e for e in big.requests("cdn") if "range" not in e.headers])
        cut = 400_000 if "Range" not in headers and tries < 2 else None
        return Fault(ignore_range=True, cut_after=cut)

    big.fault = fault
    assert content(fetch(settings)) == BIG


@pytest.mark.parametrize("offset", [0, 500_000, len(BIG) - 1])
def test_a_wrong_byte_is_found(big: StandInHub, settings: ModelsSettings, offset: int) -> None:
    big.fault = Once(Fault(corrupt_at=offset), times=-1)
    with pytest.raises(ChecksumMismatch) as caught:
        fetch(settings)
    assert "m.gguf" in caught.value.message and "pull again" in str(caught.value.hint)
    assert blobs(settings) == []
    big.fault = None
    assert content(fetch(settings)) == BIG


def test_a_wrong_byte_in_a_git_file_is_found(hub: StandInHub, settings: ModelsSettings) -> None:
    hub.add_repo("o/r", {"config.json": b'{"a": 1}', "model.safetensors": b"w"})

    def fault(method: str, path: str, headers: Mapping[str, str], server: str) -> Fault | None:
        return Fault(corrupt_at=3) if "resolve-cache" in path else None

    hub.fault = fault
    with pytest.raises(ChecksumMismatch, match="sha1"):
        fetch(settings)


def test_disk_too_small_is_told_before(
    big: StandInHub, settings: ModelsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 900_000
    monkeypatch.setattr("vllama.models.download.fetch.get_free_bytes", lambda path: free)
    with pytest.raises(DiskFull) as caught:
        fetch(settings)
    assert "needs 1 MB" in caught.value.message and "900 KB" in caught.value.message
    assert str(settings.hf_cache_dir) in caught.value.message
    assert big.sent("cdn") == 0
    free = len(BIG) + 1
    with pytest.raises(DiskFull):  # it would fit to the last byte
        fetch(settings)
    free = 2 * len(BIG)
    fetch(settings)
    free = 0
    fetch(settings)  # nothing is missing


def test_disk_fills_up_meanwhile(
    big: StandInHub, settings: ModelsSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = os.pwrite, [0]

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        written[0] += len(data)
        if written[0] > 400_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(DiskFull, match="is full"):
            fetch(settings)
    sent = big.sent("cdn")
    assert content(fetch(settings)) == BIG
    assert big.sent("cdn") - sent < 800_000


def test_cache_that_cannot_be_written(
    big: StandInHub, with_settings: Callable[..., ModelsSettings], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(VllamaError, match="cannot write to"):
        fetch(with_settings(hf_cache_dir=tmp_path / "file" / "cache"))


def test_gated_file(hub: StandInHub, settings: ModelsSettings) -> None:
    hub.add_repo("o/r", {"m.gguf": BIG}, gated="manual")
    with pytest.raises(AuthRequired, match="license"):
        fetch(settings)


def test_hub_is_asked_again_when_it_is_overloaded(
    big: StandInHub, settings: ModelsSettings
) -> None:
    seen = [0]

    def fault(method: str, path: str, headers: Mapping[str, str], server: str) -> Fault | None:
        seen[0] += method == "HEAD"
        return Fault(status=503) if method == "HEAD" and seen[0] < 3 else None

    big.fault = fault
    assert content(fetch(settings)) == BIG


def test_one_failure_among_small_files_is_the_one_shown(
    hub: StandInHub, settings: ModelsSettings
) -> None:
    files = {f"f{i}.json": b"x" * i for i in range(1, 9)}
    hub.add_repo("o/r", {"config.json": b"{}", "model.safetensors": b"w", **files})

    def fault(method: str, path: str, headers: Mapping[str, str], server: str) -> Fault | None:
        return Fault(status=418) if path.endswith("f5.json") else None

    hub.fault = fault
    with pytest.raises(SourceError, match="418"):
        fetch(settings)


def test_two_pulls_share_one_download(big: StandInHub, settings: ModelsSettings) -> None:
    big.fault = lambda method, path, headers, server: (
        Fault(bytes_per_s=2e6) if server == "cdn" else None
    )
    results: list[bytes] = []
    all_events = [Events(), Events(), Events()]
    threads = [
        threading.Thread(target=lambda e=e: results.append(content(fetch(settings, e))))
        for e in all_events
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [BIG] * 3
    assert big.sent("cdn") == len(BIG)
    for events in all_events:
        assert [e.completed_bytes for e in events.all if e.digest][-1] == len(BIG)


def test_a_waiting_pull_can_be_cancelled(big: StandInHub, settings: ModelsSettings) -> None:
    big.fault = lambda method, path, headers, server: (
        Fault(bytes_per_s=5e5) if server == "cdn" else None
    )
    first, second = Events(), Events()
    ends: list[str] = []

    def pull(events: Events, name: str) -> None:
        try:
            fetch(settings, events)
            ends.append(f"{name} done")
        except Cancelled:
            ends.append(f"{name} canceled")

    threads = [threading.Thread(target=pull, args=a) for a in ((first, "1"), (second, "2"))]
    threads[0].start()
    while not first.all:
        time.sleep(0.005)
    threads[1].start()
    second.cancel.set()
    threads[1].join(60)
    assert ends == ["2 canceled"]
    threads[0].join(60)
    assert ends == ["2 canceled", "1 done"]


def test_progress_is_not_a_flood(big: StandInHub, settings: ModelsSettings, events: Events) -> None:
    big.fault = lambda method, path, headers, server: (
        Fault(bytes_per_s=5e5) if server == "cdn" else None
    )
    begin = time.monotonic()
    fetch(settings, events)
    took = time.monotonic() - begin
    assert len([e for e in events.all if e.digest]) <= took / 0.06 + 3
