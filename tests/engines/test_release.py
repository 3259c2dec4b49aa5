"""Builds that a project releases itself: what is taken, what is refused, what remains."""

from __future__ import annotations

import ast
import asyncio
import io
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scripts import release as release_script
from scripts import renew_build
from tests.engines.releases import PROGRAM, Releases, make_archive, make_build
from tests.engines.test_install import CPU, Painter, wheels, with_gpu
from tests.machine.environments.installer import Fake
from vllama.base.errors import EngineMissing, EnvironmentFailed, NotFound
from vllama.cli.engine_install import describe_offer, install_first
from vllama.engines import recipe as recipes
from vllama.engines.base import Installation, Origin, SearchPaths
from vllama.engines.install import Offer, install, make_offers, uninstall_release
from vllama.engines.llamacpp import llama_server
from vllama.engines.llamacpp.llama_server import ENGINE
from vllama.engines.recipe import Archive, Recipe, Wheels, find_misfit
from vllama.engines.release import install_build, open_releases
from vllama.machine.types import Vendor
from vllama.net.web import bodies

OLD, NEW = "b11434", "b11500"
NAME = "llama-{tag}-bin-ubuntu-x64.tar.gz"
ARCHIVE = Archive(
    project="llama.cpp",
    releases="http://127.0.0.1:9/releases",
    name=NAME,
    tag=OLD,
    program="llama-server",
)
BUILD = Wheels(
    archive=ARCHIVE,
    check=("llama-server", "--version"),
    download_bytes=10,
    disk_bytes=20,
)


def name(tag: str) -> str:
    return NAME.format(tag=tag)


@pytest.fixture
def releases() -> Iterator[Releases]:
    with Releases({tag: {name(tag): make_build(tag)} for tag in (OLD, NEW)}) as server:
        yield server


def offer(folder: Path, way: Wheels = BUILD) -> Offer:
    return Offer(engine=ENGINE, folder=folder / "llama-server", wheels=way, python="3.11")


def tagged(tag: str) -> Wheels:
    return replace(BUILD, archive=replace(ARCHIVE, tag=tag))


def bring(releases: Releases, folder: Path, way: Wheels = BUILD) -> Installation:
    return asyncio.run(install(offer(folder, mirrored(releases, way))))


def mirrored(releases: Releases, way: Wheels) -> Wheels:
    assert way.archive is not None
    return replace(way, archive=replace(way.archive, releases=releases.url))


def list_left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "llama-server").iterdir())


def test_a_build_is_installed_and_found(releases: Releases, tmp_path: Path) -> None:
    told: list[tuple[str, int | None, int | None]] = []
    chosen = offer(tmp_path, mirrored(releases, BUILD))
    found = asyncio.run(install(chosen, tell=lambda *progress: told.append(progress)))
    size = len(releases.archives[OLD][name(OLD)])
    assert (found.version, found.origin) == (OLD, Origin.OWN)
    assert found.executable is not None and found.executable.parent.name == f"llama-{OLD}"
    assert (found.executable.parent / "libllama.so").is_symlink()
    assert told[-1] == ("unpacking", None, None)
    assert (f"downloading {name(OLD)}", size, size) in told
    assert list_left(tmp_path) == [name(OLD).removesuffix(".tar.gz"), "vllama-environment.json"]


def test_one_version_can_be_removed(releases: Releases, tmp_path: Path) -> None:
    for tag in (OLD, NEW):
        bring(releases, tmp_path, tagged(tag))
    with pytest.raises(NotFound, match=r"b11499 of .*: it is not installed"):
        uninstall_release(ENGINE, tmp_path, "b11499")
    assert uninstall_release(ENGINE, tmp_path, NEW) == OLD
    found = ENGINE.find(SearchPaths(environments=tmp_path, search=""))
    assert isinstance(found, Installation) and found.version == OLD
    assert list_left(tmp_path) == [name(OLD).removesuffix(".tar.gz"), "vllama-environment.json"]
    assert uninstall_release(ENGINE, tmp_path, OLD) == ""
    assert not (tmp_path / "llama-server").exists()


def test_the_version_in_use_stays_when_another_is_removed(
    releases: Releases, tmp_path: Path
) -> None:
    for tag in (NEW, OLD):
        bring(releases, tmp_path, tagged(tag))
    assert uninstall_release(ENGINE, tmp_path, NEW) == OLD
    assert list_left(tmp_path) == [name(OLD).removesuffix(".tar.gz"), "vllama-environment.json"]


def test_versions_lie_beside_each_other(releases: Releases, tmp_path: Path) -> None:
    bring(releases, tmp_path)
    assert "llama-b11500" in str(bring(releases, tmp_path, tagged("latest")).executable)
    asked = len(releases.asked)
    assert "llama-b11434" in str(bring(releases, tmp_path).executable)
    assert len(releases.asked) == asked, "what is here is not asked for again"
    assert len(list_left(tmp_path)) == 3


def test_a_download_that_breaks_off_goes_on(releases: Releases, tmp_path: Path) -> None:
    releases.faults = {"cut"}
    with pytest.raises(EnvironmentFailed, match="own build: the connection was closed early"):
        bring(releases, tmp_path)
    assert list_left(tmp_path) == [f"{name(OLD)}.part"]
    before = (tmp_path / "llama-server" / f"{name(OLD)}.part").stat().st_size
    releases.faults.clear()
    bring(releases, tmp_path)
    assert releases.asked[-1].endswith(f"bytes={before}-")


@pytest.mark.parametrize(
    "faults",
    [
        {"cut once"},
        {"cut once", "416"},
        {"cut once", "no ranges"},
        {"cut once", "another part"},
        {"busy once"},
    ],
)
def test_it_goes_on_by_itself(faults: set[str], releases: Releases, tmp_path: Path) -> None:
    releases.faults = faults
    assert bring(releases, tmp_path).version == OLD


@pytest.mark.parametrize("fault", ["drip", "drip later"])
def test_a_server_that_only_drips_is_given_up(
    fault: str, releases: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "SLOW_AFTER_S", 0.1)
    releases.faults = {fault}
    with pytest.raises(EnvironmentFailed, match=r"cannot download .*: only \d+ bytes received in"):
        bring(releases, tmp_path)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("wrong digest", "does not match the SHA-256 in its release"),
        ("damaged", "does not match the SHA-256 in its release"),
        ("no digest", "release b11434 has no SHA-256 of llama-b11434-bin-ubuntu-x64.tar.gz"),
        ("limit", r"rejects further requests until \d\d:\d\d \(rate limit\)"),
        ("garbage", "does not describe a release"),
        ("other", "describes another release"),
        ("gone", "returned 503"),
        ("larger", r"the download stopped after \d+ of \d+ bytes"),
    ],
)
def test_what_is_refused_leaves_nothing_in_use(
    fault: str, says: str, releases: Releases, tmp_path: Path
) -> None:
    releases.faults = {fault}
    with pytest.raises(EnvironmentFailed, match=says) as failed:
        bring(releases, tmp_path)
    assert "VLLAMA_RELEASES_URL" in (failed.value.hint or "")
    left = [] if fault != "larger" else [f"{name(OLD)}.part"]
    assert list_left(tmp_path) == left
    releases.faults.clear()
    bring(releases, tmp_path)


def test_a_mirror_s_password_is_not_shown(releases: Releases, tmp_path: Path) -> None:
    releases.faults = {"garbage"}
    address = releases.url.replace("://", "://user:secret@")
    way = replace(BUILD, archive=replace(ARCHIVE, releases=address))
    with pytest.raises(EnvironmentFailed, match="does not describe a release") as failed:
        asyncio.run(install(offer(tmp_path, way)))
    assert "secret" not in str(failed.value)


def test_what_is_cancelled_while_it_is_unpacked_leaves_nothing(
    releases: Releases, tmp_path: Path
) -> None:
    cancelled = threading.Event()
    folder = tmp_path / "llama-server"
    folder.mkdir()

    def tell(status: str, *_: int | None) -> None:
        if status == "unpacking":
            cancelled.set()

    way = mirrored(releases, BUILD)
    assert way.archive is not None
    with pytest.raises(EnvironmentFailed, match="it was canceled"), open_releases() as connections:
        install_build(way.archive, folder, tell=tell, connections=connections, cancelled=cancelled)
    assert list_left(tmp_path) == []


def test_what_is_installed_outlives_a_failure(releases: Releases, tmp_path: Path) -> None:
    bring(releases, tmp_path)
    releases.faults = {"wrong digest"}
    with pytest.raises(EnvironmentFailed):
        bring(releases, tmp_path, tagged(NEW))
    found = ENGINE.find(SearchPaths(environments=tmp_path))
    assert isinstance(found, Installation) and found.version == OLD


@pytest.mark.parametrize(
    ("archive", "says"),
    [
        (make_archive({"llama-b11434/README": "no"}), "its archive has no executable llama-server"),
        (make_archive({"../llama-server": PROGRAM}), "its archive cannot be unpacked"),
        (make_archive({}, links={"llama-server": "/bin/true"}), "its archive cannot be unpacked"),
        (make_build(OLD, "#!/bin/sh\necho lib missing >&2; exit 127\n"), "lib missing"),
        (make_build(OLD, "#!/bin/sh\nkill -SEGV $$\n"), r"Segmentation fault \(signal 11\)"),
        (b"\x1f\x8b no gzip", "its archive cannot be unpacked"),
        (make_build(OLD)[:-200], "its archive cannot be unpacked"),
        (b"", "its archive cannot be unpacked"),
    ],
)
def test_archives_that_cannot_be_used(
    archive: bytes, says: str, releases: Releases, tmp_path: Path
) -> None:
    releases.archives[OLD][name(OLD)] = archive
    with pytest.raises(EnvironmentFailed, match=says):
        bring(releases, tmp_path)
    assert not any("bin-ubuntu-x64" in left and ".part" not in left for left in list_left(tmp_path))


@pytest.mark.parametrize("tag", ["b1", "../../etc", "b 1", "%2e%2e"])
def test_there_is_no_such_release(tag: str, releases: Releases, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match=r"no such release: b1|is not a release name"):
        bring(releases, tmp_path, tagged(tag))


def test_a_release_without_this_machine_s_archive(releases: Releases, tmp_path: Path) -> None:
    releases.archives[OLD] = {"llama-b11434-bin-macos-arm64.tar.gz": b"x"}
    with pytest.raises(EnvironmentFailed, match=f"b11434 has no {name(OLD)}"):
        bring(releases, tmp_path)


def test_what_cannot_be_reached_is_replaced_by_the_next_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, value in Fake(tmp_path / "uv").environ.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    painter = Painter(install=Recipe(wheels=(BUILD, wheels("paint==1"))))
    found = install_first(make_offers(painter, CPU, tmp_path / "e"), yes=False)
    assert found.version == "1"
    said = " ".join(capsys.readouterr().err.split())
    assert "cannot download llama.cpp's own build: " in said and "installing paint==1" in said


@pytest.mark.parametrize(
    ("libc", "why"),
    [
        (("glibc", "2.35"), ""),
        (("glibc", "2.41"), ""),
        (("glibc", "3.0"), ""),
        (("glibc", "2.31"), "it needs glibc 2.35, but this system has 2.31"),
        (("", ""), "it needs glibc 2.35, which this system does not use"),
    ],
)
def test_the_c_library_is_looked_at_before_the_download(
    libc: tuple[str, str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needy = replace(ARCHIVE, glibc=(2, 35))
    monkeypatch.setattr(recipes, "find_libc", lambda: libc)
    assert find_misfit(needy) == why
    painter = Painter(install=Recipe(wheels=(replace(BUILD, archive=needy), wheels("paint==1"))))
    first, *others = make_offers(painter, CPU, tmp_path)
    assert (first.wheels.archive is None, len(others)) == ((True, 0) if why else (False, 1))
    if why:
        assert (
            f"instead   llama.cpp's own build does not run here: {why}" in describe_offer(first)[-1]
        )
        with pytest.raises(EngineMissing, match=r"release b1 of Painter: llama.cpp"):
            make_offers(painter, CPU, tmp_path, release="b1")


def test_the_order_of_the_ways(tmp_path: Path) -> None:
    (tmp_path / "c++").touch(mode=0o755)
    source = wheels("paint-source", programs=("c++",), compiled=True)
    painter = Painter(
        install=Recipe(wheels=(wheels("paint==1"), source, wheels("paint==2"), BUILD))
    )

    def list_ways(**more: object) -> list[str]:
        found = make_offers(painter, CPU, tmp_path, search=str(tmp_path), **more)
        return [each.steps[0].requirements[0] for each in found]

    assert list_ways() == ["llama.cpp b11434", "paint==1", "paint-source"]
    assert list_ways(extra_args=["--pre"]) == ["paint==1", "paint-source"]
    assert list_ways(compiled=True) == ["paint-source"]
    assert list_ways(release="latest") == ["llama.cpp latest"]


def test_an_archive_that_has_changed_since_it_was_tested(
    releases: Releases, tmp_path: Path
) -> None:
    pinned = replace(ARCHIVE, digests={name(OLD): "0" * 64})
    with pytest.raises(EnvironmentFailed, match="differs from the tested file"):
        bring(releases, tmp_path, replace(BUILD, archive=pinned))


def test_the_pin_is_renewed(
    releases: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [way.archive.name for way in llama_server.BUILDS if way.archive is not None]
    releases.archives["b11600"] = {each.format(tag="b11600"): each.encode() for each in names}
    monkeypatch.setenv("VLLAMA_RELEASES_URL", releases.url)
    source = tmp_path / "llama_server.py"
    source.write_text(Path(llama_server.__file__).read_text())
    assert renew_build.main("latest", source) == 0
    said = source.read_text()
    assert 'TAG = "b11600"' in said and said.count("bin-ubuntu-x64.tar.gz': '") == 1
    compile(said, str(source), "exec")
    pins = re.search(r"DIGESTS.*= (\{[^}]*\})", said)
    assert pins and len(ast.literal_eval(pins[1])) == len(names)
    monkeypatch.setattr(llama_server, "DIGESTS", {"other": "0" * 64})
    with pytest.raises(SystemExit, match=r"cannot release: the SHA-256 of llama-.* is not pinned"):
        release_script.check_pins()
    tag = llama_server.TAG
    monkeypatch.setattr(llama_server, "DIGESTS", {each.format(tag=tag): "0" for each in names})
    release_script.check_pins()
    with pytest.raises(SystemExit, match="b11500 has no SHA-256 of"):
        renew_build.main("b11500", source)


@pytest.mark.parametrize(
    ("vendor", "ways"),
    [
        (Vendor.AMD, ["llama.cpp b11434", "xllamacpp>=2026.10"]),
        (Vendor.INTEL, ["llama.cpp b11434", "xllamacpp>=2026.10"]),
        (Vendor.NVIDIA, ["llama.cpp b11434"]),
    ],
)
def test_a_gpu_is_used_by_vulkan_or_else_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: Vendor, ways: list[str]
) -> None:
    monkeypatch.setattr(recipes, "find_libc", lambda: ("glibc", "2.39"))
    found = make_offers(ENGINE, with_gpu(vendor), tmp_path)
    assert [each.steps[0].requirements[0] for each in found] == ways
    assert "vulkan" in found[0].steps[0].extra_args[0]
    assert all("does not use the GPU" in each.wheels.note for each in found[1:])
