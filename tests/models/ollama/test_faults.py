"""What can go wrong in a pull by Ollama's protocol, and what is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hub import Fault
from tests.models.conftest import Events
from tests.models.ollama.conftest import (
    NAME,
    WEIGHTS,
    Once,
    files,
    model,
    stored,
)
from tests.registry import (
    OllamaModel,
    StandInRegistry,
)
from vllama.base.errors import (
    AuthRequired,
    ChecksumMismatch,
    DiskFull,
    ModelNotFound,
    NoPlan,
    Offline,
    SourceError,
    VllamaError,
)
from vllama.models.download.partial_file import count_saved_bytes
from vllama.models.library import Library, open_library
from vllama.models.settings import ModelsSettings
from vllama.models.types import Format

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("redirect", [False, True], ids=["direct", "storage"])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(cut_after=30_000),
        Fault(reset_after=30_000),
        Fault(stall_after=30_000),
        Fault(status=503),
        Fault(status=429),
        Fault(ignore_range=True),
    ],
    ids=["fin", "rst", "stall", "503", "429", "no-range"],
)
def test_transient_faults_are_survived(
    registry: StandInRegistry, settings: ModelsSettings, fault: Fault, redirect: bool
) -> None:
    registry.redirect = redirect
    registry.fault = Once(fault, times=2)
    silence_s = 10.0 if fault.stall_after is None else 0.3
    library = open_library(replace(settings, stall_timeout_s=silence_s))
    assert library.remote.pull(f"{registry.host}/library/tiny").path.read_bytes() == WEIGHTS


def test_an_address_that_runs_out_is_renewed(registry: StandInRegistry, library: Library) -> None:
    registry.redirect = True
    lock, seen = threading.Lock(), [0]

    def expire(method: str, path: str, headers: Mapping[str, str], server: str) -> None:
        with lock:
            seen[0] += server == "cdn"
            if seen[0] == 8 and server == "cdn":
                registry.expire()

    registry.fault = expire
    assert library.remote.pull(f"{registry.host}/library/tiny").path.read_bytes() == WEIGHTS
    assert any(entry.status == 403 for entry in registry.requests("cdn"))


def test_a_wrong_byte_is_found(
    registry: StandInRegistry, settings: ModelsSettings, library: Library
) -> None:
    published = registry.models[NAME]
    registry.fault = Once(Fault(corrupt_at=500_000), times=-1)
    with pytest.raises(ChecksumMismatch, match="expected"):
        library.remote.pull(f"{registry.host}/library/tiny")
    left = files(settings)
    assert not [name for name in left if "manifests" in name or published.layer("model") in name]
    registry.fault = None
    assert library.remote.pull(f"{registry.host}/library/tiny").path.read_bytes() == WEIGHTS


def test_a_blob_that_the_registry_lacks(registry: StandInRegistry, library: Library) -> None:
    published = registry.models[NAME]
    del published.blobs[published.layer("model")]
    with pytest.raises(SourceError, match="is missing one of its files"):
        library.remote.pull(f"{registry.host}/library/tiny")
    assert library.list() == []


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        (Fault(status=404), ModelNotFound, "^pull model manifest: file does not exist$"),
        (Fault(status=401), AuthRequired, "requires a login"),
        (Fault(status=403), AuthRequired, "does not allow"),
        (Fault(status=500), SourceError, "returned 500"),
        (Fault(status=302, headers={"Location": "/around"}), SourceError, "edirects"),
        *(
            (Fault(status=302, headers={"Location": f"http://{host}/"}), SourceError, "cannot")
            for host in ("a..b", "127..0.1:1", "a" * 99, "[::1", "a:99999", "a:b", "é..é", "-")
        ),
        (Fault(reset_after=0), Offline, "cannot reach"),
    ],
)
def test_a_manifest_that_does_not_come(
    registry: StandInRegistry,
    settings: ModelsSettings,
    library: Library,
    fault: Fault,
    error: type[VllamaError],
    says: str,
) -> None:
    registry.fault = lambda method, path, headers, server: fault
    with pytest.raises(error, match=says):
        library.remote.pull(f"{registry.host}/library/tiny")
    assert not settings.ollama_dirs[0].exists()


@pytest.mark.parametrize("host", ["127..0.1:1", "a..b", "a" * 99 + ".b", "x.-.y", "127.0.0.1-:1"])
def test_a_host_that_no_name_server_knows(library: Library, host: str) -> None:
    with pytest.raises(VllamaError, match=r"cannot|invalid"):
        library.remote.pull(f"http://{host}/library/tiny", insecure=True)


def test_an_overloaded_registry_is_asked_again(registry: StandInRegistry, library: Library) -> None:
    asked: list[str] = []

    def fault(method: str, path: str, headers: Mapping[str, str], server: str) -> Fault | None:
        asked.append(path)
        return Fault(status=(503, 429)[len(asked) - 1]) if len(asked) < 3 else None

    registry.fault = fault
    assert library.remote.pull(f"{registry.host}/library/tiny").store == "ollama"


def test_without_a_network_the_model_that_is_here_will_do(
    registry: StandInRegistry, library: Library, events: Events
) -> None:
    here = library.remote.pull(f"{registry.host}/library/tiny")
    registry.fault = lambda method, path, headers, server: Fault(reset_after=0)
    assert library.remote.pull(here.name, progress=events) == here
    assert events.statuses == ["pulling manifest", "success"]


@pytest.mark.parametrize(
    ("document", "error", "says"),
    [
        (b"{", SourceError, "damaged"),
        (b"[]", SourceError, "damaged"),
        (b"\xff\xfe", SourceError, "damaged"),
        (json.dumps({"layers": [{"digest": "../../x"}]}).encode(), SourceError, "invalid blob"),
        (json.dumps({"layers": []}).encode(), NoPlan, "no model layer"),
        (json.dumps({"manifests": [{"digest": "x"}]}).encode(), SourceError, "a manifest list"),
        (b" " * 5_000_000, SourceError, "too large"),
    ],
)
def test_manifests_that_are_none(
    registry: StandInRegistry,
    library: Library,
    document: bytes,
    error: type[VllamaError],
    says: str,
) -> None:
    models: dict[str, object] = registry.models  # type: ignore[assignment]
    models[NAME] = document
    with pytest.raises(error, match=says):
        library.remote.pull(f"{registry.host}/library/tiny")


@pytest.mark.parametrize(
    ("layers", "formats", "says"),
    [
        ([("tensor", b"x"), ("json", "{}")], (Format.GGUF,), "MLX"),
        ([("model", b"x"), ("model", b"y")], (Format.GGUF,), "split"),
        ([("model", b"x")], (Format.SAFETENSORS,), "GGUF"),
    ],
)
def test_what_nothing_here_serves_is_refused_before_it_comes(
    registry: StandInRegistry,
    library: Library,
    layers: list[tuple[str, object]],
    formats: tuple[Format, ...],
    says: str,
) -> None:
    registry.add(NAME, OllamaModel(layers))
    with pytest.raises(NoPlan, match=says):
        library.remote.pull(f"{registry.host}/library/tiny", formats=formats)
    assert registry.requests("hub", part="/blobs/") == []


def test_a_full_disk_is_told_before(
    registry: StandInRegistry, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllama.models.download.fetch.get_free_bytes", lambda path: 500_000)
    with pytest.raises(DiskFull) as caught:
        library.remote.pull(f"{registry.host}/library/tiny")
    assert "1.0 MB" in caught.value.message and "OLLAMA_MODELS" in str(caught.value.hint)
    assert registry.requests("hub", part="/blobs/") == []


def test_a_folder_that_cannot_be_written(
    registry: StandInRegistry, settings: ModelsSettings, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    library = open_library(replace(settings, ollama_dirs=(tmp_path / "file" / "models",)))
    with pytest.raises(VllamaError) as caught:
        library.remote.pull(f"{registry.host}/library/tiny")
    assert "OLLAMA_MODELS" in str(caught.value.hint)


def test_two_pulls_at_once_share_the_download(
    registry: StandInRegistry, settings: ModelsSettings
) -> None:
    published = registry.models[NAME]
    registry.fault = lambda method, path, headers, server: Fault(bytes_per_s=4e6)
    done: list[bytes] = []
    threads = [
        threading.Thread(
            target=lambda: done.append(
                open_library(settings)
                .remote.pull(f"{registry.host}/library/tiny")
                .path.read_bytes()
            )
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [WEIGHTS] * 3
    moved = sum(
        entry.sent_bytes
        for entry in registry.requests("hub", part=published.layer("model"))
        if entry.headers.get("range") != "bytes=0-0"
    )
    assert moved == len(WEIGHTS)


def test_a_removal_meanwhile_does_not_leave_a_hole(
    registry: StandInRegistry, settings: ModelsSettings, library: Library
) -> None:
    """A blob that was here when the pull began belongs to a model that is removed meanwhile."""
    registry.add("library/other:latest", model(system="Other."))
    other = library.remote.pull(f"{registry.host}/library/other")
    removed = threading.Event()

    def remove(event: object) -> None:
        if "verifying" in str(event) and not removed.is_set():
            removed.set()
            library.remove(other.name)

    bundle = library.remote.pull(f"{registry.host}/library/tiny", progress=remove)
    assert removed.is_set() and bundle.path.read_bytes() == WEIGHTS


def test_what_was_never_finished_goes_after_a_while(
    registry: StandInRegistry, settings: ModelsSettings, library: Library
) -> None:
    models = stored(settings)
    models.prepare()
    old, new = models.partial("a" * 64), models.partial("b" * 64)
    for path in (old, old.with_name(old.name + ".json"), new):
        path.write_text("x")
        if path != new:
            os.utime(path, (1, 1))
    stray, fresh = old.parent / ".abcdefgh", old.parent / ".bcdefghi"
    for path in (stray, fresh):
        path.write_text("{}")
    os.utime(stray, (1, 1))
    library.remote.pull(f"{registry.host}/library/tiny")
    assert [p.name for p in old.parent.glob("*.partial*")] == [new.name]
    assert fresh.exists() and not stray.exists()


def test_whoever_may_not_write_cannot_hold_a_lock(
    registry: StandInRegistry, settings: ModelsSettings, library: Library
) -> None:
    before = os.umask(0)
    try:
        library.remote.pull(f"{registry.host}/library/tiny")
    finally:
        os.umask(before)
    locks = list(stored(settings).folder.rglob("*.lock"))
    assert locks and {path.stat().st_mode & 0o777 for path in locks} == {0o660}


@pytest.mark.slow
def test_after_a_kill_no_byte_comes_twice(
    registry: StandInRegistry, settings: ModelsSettings, library: Library
) -> None:
    published = registry.models[NAME]
    digest = published.layer("model")
    registry.fault = Once(Fault(stall_after=40_000), times=-1)
    script = (
        "import sys; from pathlib import Path\n"
        "from vllama.models.library import open_library\n"
        "from vllama.models.settings import ModelsSettings\n"
        "hub, models, name = sys.argv[1:]\n"
        "settings = ModelsSettings(hf_cache_dir=Path(hub), package_dirs=(), part_bytes=65536,\n"
        "    data_dir=Path(hub) / 'data', ollama_dirs=(Path(models),))\n"
        "open_library(settings).remote.pull(name)\n"
    )
    where = [str(settings.hf_cache_dir), str(settings.ollama_dirs[0])]
    child = subprocess.Popen(
        [sys.executable, "-c", script, *where, f"{registry.host}/library/tiny"]
    )
    partial = stored(settings).partial(digest)
    arrived = 4 * 40_000  # what the four connections get before they fall silent
    deadline = threading.Event()
    timer = threading.Timer(30, deadline.set)
    timer.start()
    while count_saved_bytes(partial, len(WEIGHTS)) < arrived:
        assert child.poll() is None and not deadline.is_set()
    timer.cancel()
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert count_saved_bytes(partial, len(WEIGHTS)) == arrived
    assert library.list() == []
    registry.settle()
    registry.fault = None
    before = {id(entry) for entry in registry.log}
    assert library.remote.pull(f"{registry.host}/library/tiny").path.read_bytes() == WEIGHTS
    registry.settle()
    moved = sum(
        entry.sent_bytes
        for entry in registry.log
        if id(entry) not in before
        and digest in entry.path
        and entry.headers.get("range") != "bytes=0-0"
        and entry.status == 206
    )
    assert moved == len(WEIGHTS) - arrived
