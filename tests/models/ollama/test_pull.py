"""Pulls by Ollama's registry protocol: the flow, real servers, storages elsewhere, tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.lacking import lacking
from tests.models.conftest import Events
from tests.models.ollama.conftest import (
    NAME,
    STATUSES,
    WEIGHTS,
    expected,
    files,
    model,
    stored,
)
from tests.registry import (
    PARAMS,
    OllamaModel,
    RealRegistry,
    StandInRegistry,
    find_registry,
    push,
    store,
)
from vllama.base.errors import (
    AuthRequired,
    BadRequest,
    Cancelled,
    ChecksumMismatch,
    ModelNotFound,
    Offline,
    VllamaError,
)
from vllama.models.download.partial_file import count_saved_bytes
from vllama.models.library import Library, open_library
from vllama.models.names.ref import CloudDisabled
from vllama.models.settings import ModelsSettings

pytestmark = pytest.mark.slow

# -- the flow ------------------------------------------------------------------------------------


@pytest.mark.parametrize("redirect", [False, True], ids=["direct", "storage"])
def test_whole_flow(
    registry: StandInRegistry,
    settings: ModelsSettings,
    library: Library,
    events: Events,
    redirect: bool,
) -> None:
    registry.redirect = redirect
    published = registry.models[NAME]
    bundle = library.remote.pull(f"{registry.host}/library/tiny", progress=events)
    assert bundle.name == f"{registry.host}/library/tiny:latest"
    assert (bundle.digest, bundle.size_bytes) == (published.digest, published.size)
    assert (bundle.system, bundle.template) == ("Be brief.", "{{ .Prompt }}")
    assert (bundle.parameters, bundle.quant) == (PARAMS, "F16")
    assert files(settings) == expected(registry.host, published)
    path = settings.ollama_dirs[0] / "manifests" / registry.host / "library/tiny/latest"
    assert path.read_bytes() == published.manifest
    blob = settings.ollama_dirs[0] / "blobs" / f"sha256-{published.layer('model')}"
    assert blob.read_bytes() == WEIGHTS and bundle.path == blob
    assert events.statuses[0] == "pulling manifest" and events.statuses[-3:] == STATUSES
    assert {status.removeprefix("pulling ") for status in events.statuses[1:-3]} == {
        digest[:12] for digest in published.blobs
    }
    moving = [e for e in events.all if e.digest == f"sha256:{published.layer('model')}"]
    counts = [event.completed_bytes or 0 for event in moving]
    assert counts == sorted(counts) and (counts[0], counts[-1]) == (0, len(WEIGHTS))
    assert {event.total_bytes for event in moving} == {len(WEIGHTS)}
    origin = "cdn" if redirect else "hub"
    assert registry.sent(origin) >= published.size


def test_a_second_pull_moves_nothing(
    registry: StandInRegistry, library: Library, events: Events
) -> None:
    name = f"{registry.host}/library/tiny"
    library.remote.pull(name)
    asked = len(registry.requests("hub", part="/blobs/"))
    library.remote.pull(name, progress=events)
    assert len(registry.requests("hub", part="/blobs/")) == asked
    assert events.statuses[-3:] == STATUSES
    moving = [event for event in events.all if event.digest]
    assert all(event.completed_bytes == event.total_bytes for event in moving)


def test_an_update_moves_what_is_new_and_drops_what_is_old(
    registry: StandInRegistry, settings: ModelsSettings, library: Library, events: Events
) -> None:
    name = f"{registry.host}/library/tiny"
    library.remote.pull(name)
    newer = registry.add(NAME, model(system="Be long."))
    sent = len(registry.requests("hub", part=newer.layer("model")))
    bundle = library.remote.pull(name, progress=events)
    assert (bundle.system, bundle.digest) == ("Be long.", newer.digest)
    assert len(registry.requests("hub", part=newer.layer("model"))) == sent
    assert files(settings) == expected(registry.host, newer)
    assert events.statuses[-2:] == ["removing unused layers", "success"]


@pytest.mark.parametrize("name", ["tiny", "ollama://tiny", "registry.ollama.ai/library/tiny"])
def test_a_mirror_keeps_the_short_names(
    registry: StandInRegistry, settings: ModelsSettings, name: str
) -> None:
    library = open_library(replace(settings, ollama_registry=registry.url))
    assert library.remote.pull(name).name == "tiny:latest"
    assert files(settings) == expected("registry.ollama.ai", registry.models[NAME])
    full = library.find("registry.ollama.ai/library/tiny:latest")
    assert library.find("tiny").bundle == full.bundle
    assert library.remote.pull("tiny").name == "tiny:latest"


def test_a_name_keeps_the_spelling_that_it_has_here(
    registry: StandInRegistry, settings: ModelsSettings, library: Library
) -> None:
    registry.add("library/Tiny:latest", registry.models[NAME])
    library.remote.pull(f"{registry.host}/library/tiny")
    assert library.remote.pull(f"{registry.host}/library/Tiny").name.endswith("/tiny:latest")
    assert len(library.list()) == 1


# -- the real server -----------------------------------------------------------------------------


def test_from_a_real_registry(
    real: RealRegistry, settings: ModelsSettings, library: Library, tiny: Path, events: Events
) -> None:
    published = OllamaModel([("model", tiny), ("license", "MIT"), ("license", "and more")])
    push(real, "team/tiny:f16", published)
    bundle = library.remote.pull(f"{real.host}/team/tiny:f16", progress=events)
    assert bundle.path.read_bytes() == tiny.read_bytes()
    assert bundle.license == "MIT\nand more"
    assert library.info(bundle).parameter_count == 119_488
    assert files(settings) == expected(real.host, published, name="team/tiny/f16")
    assert events.statuses[-3:] == STATUSES
    with pytest.raises(ModelNotFound, match="pull model manifest: file does not exist"):
        library.remote.pull(f"{real.host}/team/tiny:q8_0")


def test_a_stopped_pull_from_a_real_registry_goes_on(
    real: RealRegistry, settings: ModelsSettings, library: Library
) -> None:
    published = model(Random(6).randbytes(2_000_000))
    push(real, "team/big:latest", published)
    stopped = Events()
    stopped.cancel_at = 300_000
    with pytest.raises(Cancelled):
        library.remote.pull(f"{real.host}/team/big", progress=stopped, cancel=stopped.cancel)
    assert library.list() == []
    saved = count_saved_bytes(stored(settings).partial(published.layer("model")), 2_000_000)
    assert saved >= 300_000
    events = Events()
    library.remote.pull(f"{real.host}/team/big", progress=events)
    moving = [e for e in events.all if e.digest == f"sha256:{published.layer('model')}"]
    assert moving[0].completed_bytes == saved


def test_a_blob_damaged_at_a_real_registry(
    real: RealRegistry, settings: ModelsSettings, library: Library
) -> None:
    published = model(Random(8).randbytes(100_000))
    push(real, "team/bad:latest", published)
    path = real.blob(published.layer("model"))
    content = path.read_bytes()
    path.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    with pytest.raises(ChecksumMismatch):
        library.remote.pull(f"{real.host}/team/bad")
    assert library.list() == [] and library.list_skipped() == ()
    path.write_bytes(content)
    assert library.remote.pull(f"{real.host}/team/bad").path.read_bytes() == content


def test_a_real_registry_that_sends_to_a_storage(
    registry: StandInRegistry, tmp_path: Path, library: Library
) -> None:
    program = find_registry()
    if program is None:
        lacking("docker-registry is not installed; make test fetches it with apt")
    published = registry.models[NAME]
    with RealRegistry(program, tmp_path / "real", redirect=registry.cdn_url) as real:
        push(real, "library/tiny:latest", published)
        bundle = library.remote.pull(f"{real.host}/library/tiny")
    assert bundle.path.read_bytes() == WEIGHTS
    assert registry.sent("cdn") >= published.size


# -- tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize("redirect", [False, True], ids=["direct", "storage"])
def test_a_token_is_fetched_and_stays_with_the_registry(
    registry: StandInRegistry, library: Library, redirect: bool
) -> None:
    registry.wanted, registry.redirect = "secret", redirect
    library.remote.pull(f"{registry.host}/library/tiny")
    (asked,) = registry.requests("hub", part="/token")
    assert asked.path == "/token?service=here&scope=repository%3Alibrary%2Ftiny%3Apull"
    assert "authorization" not in asked.headers
    assert not [e for e in registry.requests("cdn") if "authorization" in e.headers]


def test_a_token_that_runs_out_is_renewed(registry: StandInRegistry, library: Library) -> None:
    registry.wanted = "first"
    lock, seen = threading.Lock(), [0]

    def expire(method: str, path: str, headers: Mapping[str, str], server: str) -> None:
        with lock:
            seen[0] += "/blobs/" in path
            if seen[0] == 8:
                registry.wanted = "second"

    registry.fault = expire
    assert library.remote.pull(f"{registry.host}/library/tiny").path.read_bytes() == WEIGHTS
    assert len(registry.requests("hub", part="/token")) >= 2


@pytest.mark.parametrize(
    ("realm", "given", "says"),
    [
        ("http://127.0.0.1:9/token", None, "another host"),
        ("http://evil.example/token", None, "another host"),
        (None, "wrong", "does not allow it"),
        ("", None, "requires a login"),
    ],
)
def test_refused_tokens(
    registry: StandInRegistry,
    settings: ModelsSettings,
    library: Library,
    realm: str | None,
    given: str | None,
    says: str,
) -> None:
    registry.wanted, registry.given = "right", given
    registry.realm = registry.realm if realm is None else realm
    with pytest.raises(AuthRequired, match=says):
        library.remote.pull(f"{registry.host}/library/tiny")
    assert files(settings) == []


# -- who may pull, and how -----------------------------------------------------------------------


def test_plain_http_is_for_this_machine_and_for_who_asks(
    registry: StandInRegistry, library: Library
) -> None:
    with pytest.raises(BadRequest, match=r"^insecure protocol http$"):
        library.remote.pull("http://registry.invalid/library/tiny")
    with pytest.raises(Offline):  # allowed, but there is no such host
        library.remote.pull("http://registry.invalid/library/tiny", insecure=True)
    with pytest.raises(Offline):  # TLS was asked for
        library.remote.pull(f"https://{registry.host}/library/tiny")
    assert library.remote.pull(f"http://{registry.host}/library/tiny").size_bytes > 0


def test_cloud_names_are_refused(library: Library) -> None:
    with pytest.raises(CloudDisabled):
        library.remote.pull("ollama://big:120b-cloud")


def test_a_model_of_ollamas_own_stays_ollamas_after_an_update(
    registry: StandInRegistry, settings: ModelsSettings, library: Library
) -> None:
    store(settings.ollama_dirs[0], f"{registry.host}/library/tiny:latest", model(system="Old."))
    name = f"{registry.host}/library/tiny"
    assert library.find(name).bundle.system == "Old."
    assert library.remote.pull(name).system == "Be brief."
    with pytest.raises(BadRequest, match="vllama did not pull it"):
        library.remove(name)


@pytest.fixture
def with_registry(settings: ModelsSettings) -> Callable[[str], Library]:
    return lambda address: open_library(replace(settings, ollama_registry=address))


@pytest.mark.parametrize("address", ["ftp://x", "https://", "http:///x"])
def test_a_setting_that_is_no_address(
    with_registry: Callable[[str], Library], address: str
) -> None:
    with pytest.raises(VllamaError, match="not a registry address"):
        with_registry(address).remote.pull("tiny")
