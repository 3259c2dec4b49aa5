"""`vllama export` and `vllama import`: one machine's own things on another one."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tracemalloc
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cli.conftest import Vllama
from tests.tiny import write_tiny_gguf
from vllama.accounts.usage.store import UsageRow
from vllama.admin.backup.archive import unpack_archive
from vllama.admin.backup.contents import open_usage, read_usage
from vllama.admin.backup.transfer import put_into_place
from vllama.base.errors import VllamaError

USED = UsageRow(
    day="2026-11-23",
    key="alice",
    model="brief",
    requests=3,
    prompt_tokens=30,
    cached_tokens=10,
    generated_tokens=7,
    seconds=1.234567,
)


class Machine:
    """A home with a config file, and the commands of its user."""

    def __init__(self, home: Path, vllama: Vllama) -> None:
        self.home, self._vllama = home, vllama
        self.config = home / ".config" / "vllama" / "config.toml"
        self.data = home / "data"

    def run(self, *args: str | Path, ok: bool = True) -> str:
        """Return what a command prints; it has to succeed, or to fail."""
        done = self._vllama(
            *map(str, args),
            HOME=str(self.home),
            VLLAMA_CONFIG=str(self.config),
            VLLAMA_DATA_DIR=str(self.data),
        )
        assert (done.returncode == 0) is ok, done.stderr
        return done.stdout + done.stderr

    def files(self) -> dict[str, bytes]:
        """Return the contents of all files but locks."""
        return {
            str(path.relative_to(self.home)): path.read_bytes()
            for path in self.home.rglob("*")
            if path.is_file() and path.suffix != ".lock" and path.name != ".lock"
        }


@pytest.fixture
def old(tmp_path: Path, vllama: Vllama) -> Machine:
    """A machine with a config file that has a secret, and a created model."""
    machine = Machine(tmp_path / "old", vllama)
    machine.config.parent.mkdir(parents=True)
    machine.config.write_text('keep_alive = "7m"\napi_key = ["sk-secret"]\n')
    write_tiny_gguf(tmp_path / "base.gguf")
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(f"FROM {tmp_path / 'base.gguf'}\nSYSTEM be brief\n")
    machine.run("create", "brief", "-f", modelfile)
    machine.run("keys", "add", "alice", "--rate", "60/min")
    with open_usage(machine.data) as store, store.replacing([USED]):
        pass
    return machine


@pytest.fixture
def new(tmp_path: Path, vllama: Vllama) -> Machine:
    return Machine(tmp_path / "new", vllama)


def test_a_machine_becomes_like_another(old: Machine, new: Machine, tmp_path: Path) -> None:
    archive = tmp_path / "backup.tar.gz"
    shown = old.run("export", archive, "--with-weights")
    assert "the config file in it has secrets: api_key" in shown
    assert archive.stat().st_mode & 0o077 == 0
    (tmp_path / "base.gguf").unlink()  # the other machine never had it
    assert "lacks" not in new.run("import", archive)
    assert new.config.read_bytes() == old.config.read_bytes()
    assert new.config.stat().st_mode & 0o077 == 0
    assert "SYSTEM be brief" in new.run("show", "brief", "--modelfile")
    assert (new.data / "keys.json").read_bytes() == (old.data / "keys.json").read_bytes()
    assert read_usage(new.data) == [USED]
    before = new.files()
    new.run("import", archive)  # nothing differs, so nothing is replaced
    assert new.files() == before


def test_models_without_their_files_say_what_they_need(
    old: Machine, new: Machine, tmp_path: Path
) -> None:
    archive = tmp_path / "backup.tar.gz"
    old.run("export", archive)
    (tmp_path / "base.gguf").unlink()
    assert "brief:latest lacks its files" in new.run("import", archive)
    assert "brief:latest" in new.run("list")


def test_what_is_there_is_replaced_only_by_force(
    old: Machine, new: Machine, tmp_path: Path
) -> None:
    archive = tmp_path / "backup.tar.gz"
    old.run("export", archive)
    assert "exists" in old.run("export", archive, ok=False)
    old.run("export", archive, "--force")
    new.config.parent.mkdir(parents=True)
    new.config.write_text('keep_alive = "1m"\n')
    before = new.files()
    assert "exists with other contents" in new.run("import", archive, ok=False)
    assert new.files() == before
    new.run("import", archive, "--force")
    assert new.config.read_bytes() == old.config.read_bytes()
    with open_usage(new.data) as store, store.replacing([replace(USED, requests=4)]):
        pass
    assert str(new.data / "usage") in new.run("import", archive, ok=False)
    new.run("import", archive, "--force")
    assert read_usage(new.data) == [USED]


def test_force_replaces_a_config_file_that_cannot_be_read(
    old: Machine, new: Machine, tmp_path: Path
) -> None:
    archive = tmp_path / "backup.tar.gz"
    old.run("export", archive)
    new.config.parent.mkdir(parents=True)
    new.config.write_text("this is no setting\n")
    assert "cannot read the config file" in new.run("import", archive, ok=False)
    new.run("import", archive, "--force")
    assert new.config.read_bytes() == old.config.read_bytes()


def test_a_config_file_that_cannot_be_read_has_to_be_replaced(
    old: Machine, new: Machine, tmp_path: Path, vllama: Vllama
) -> None:
    """It may name the data folder, and nobody knows which."""
    archive = tmp_path / "backup.tar.gz"
    old.config.unlink()
    environ = {"HOME": str(old.home), "VLLAMA_DATA_DIR": str(old.data)}
    assert vllama("export", str(archive), **environ).returncode == 0
    new.config.parent.mkdir(parents=True)
    new.config.write_text(f'data_dir = "{tmp_path / "mine"}"\nthis is no setting\n')
    before = new.files()
    assert "cannot read the config file" in new.run("import", archive, "--force", ok=False)
    assert new.files() == before


def test_the_rest_goes_to_the_data_folder_of_the_imported_file(
    old: Machine, new: Machine, tmp_path: Path, vllama: Vllama
) -> None:
    elsewhere = tmp_path / "elsewhere"
    with old.config.open("a") as file:
        file.write(f'data_dir = "{elsewhere}"\n')
    archive = tmp_path / "backup.tar.gz"
    old.run("export", archive)
    environ = {"HOME": str(new.home), "VLLAMA_CONFIG": str(new.config)}
    assert vllama("import", str(archive), **environ).returncode == 0
    assert list(elsewhere.rglob("latest.json"))


def pack(path: Path, members: Mapping[str, bytes], **changes: object) -> None:
    """Write an archive as `vllama export` does, with `changes` to its manifest."""
    entries = {
        name: {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in members.items()
    }
    manifest = {"version": 1, "vllama": "1", "created_at": "", "files": entries} | changes
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {"manifest.json": json.dumps(manifest).encode(), **members}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def pack_link(path: Path) -> None:
    pack(path, {})
    entry = {"size_bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    manifest = {"vllama": "1", "created_at": "", "files": {"config.toml": entry}}
    content = json.dumps(manifest).encode()
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("manifest.json")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("config.toml")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)


def pack_headers(path: Path, *types: bytes, size: int = 0, content: bytes = b"") -> None:
    """Write an archive with headers of `types` before its first file; each has `size` bytes."""
    path.write_bytes(make_headers(types, size, content))


@cache
def make_headers(types: tuple[bytes, ...], size: int, content: bytes) -> bytes:
    """Return such an archive."""
    packed = io.BytesIO()
    with gzip.open(packed, "wb", compresslevel=1) as file:
        for kind in types:
            info = tarfile.TarInfo("././@header")
            info.type, info.size = kind, size or len(content)
            file.write(info.tobuf(tarfile.USTAR_FORMAT))
            for at in range(0, info.size, CHUNK):
                file.write(content or b"x" * min(CHUNK, info.size - at))
            file.write(b"\0" * (-info.size % 512))
        with tarfile.open(fileobj=file, mode="w|") as archive:
            archive.addfile(tarfile.TarInfo("manifest.json"))
    return packed.getvalue()


CHUNK = 1 << 20
LONG = 100 * CHUNK
EMPTY = {"size_bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
FORGED: dict[str, Callable[[Path], None]] = {
    "text": lambda path: path.write_text("hello") and None,
    "another tar": lambda path: pack(path, {}, files=3),
    "above the folder": lambda path: pack(path, {"models/../../x.json": b""}),
    "absolute": lambda path: pack(path, {"/etc/x.json": b""}),
    "another file of the data folder": lambda path: pack(path, {"environments/x": b""}),
    "a blob under a wrong name": lambda path: pack(path, {f"blobs/sha256-{'0' * 64}": b"x"}),
    "a wrong checksum": lambda path: pack(path, {"config.toml": b"x = 1"}, files={
        "config.toml": EMPTY | {"size_bytes": 5}}),
    "a wrong size": lambda path: pack(path, {"config.toml": b"x = 1"}, files={
        "config.toml": EMPTY}),
    "a file that is not listed": lambda path: pack(path, {"config.toml": b""}, files={}),
    "a file that is missing": lambda path: pack(path, {}, files={"config.toml": EMPTY}),
    "a link": pack_link,
    "a long pax header": lambda path: pack_headers(path, tarfile.XHDTYPE, size=LONG),
    "a long global header": lambda path: pack_headers(path, tarfile.XGLTYPE, size=LONG),
    "a long name": lambda path: pack_headers(path, tarfile.GNUTYPE_LONGNAME, size=LONG),
    "a long link": lambda path: pack_headers(path, tarfile.GNUTYPE_LONGLINK, size=LONG),
    "a global header": lambda path: pack_headers(path, tarfile.XGLTYPE, content=b"9 ab=cde\n"),
    "many headers": lambda path: pack_headers(
        path, *[tarfile.XHDTYPE] * 5000, content=b"9 ab=cde\n"),
    "a newer form": lambda path: pack(path, {}, version=2),
    "more than the disk holds": lambda path: pack(path, {}, files={
        "config.toml": EMPTY | {"size_bytes": 1 << 60}}),
    "broken keys": lambda path: pack(path, {"keys.json": b"{"}),
    "broken usage": lambda path: pack(path, {"usage.json": b"[3]"}),
    "a broken model": lambda path: pack(path, {"models/host/x/latest.json": b"{"}),
}  # fmt: skip


@pytest.mark.parametrize("how", FORGED)
def test_nothing_is_taken_from_a_forged_file(new: Machine, tmp_path: Path, how: str) -> None:
    archive = tmp_path / "forged.tar.gz"
    FORGED[how](archive)
    shown = new.run("import", archive, ok=False)
    assert shown.startswith("Error: cannot ") and "internal" not in shown
    assert new.files() == {}


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_long_header_takes_no_memory(tmp_path: Path, kind: bytes) -> None:
    archive = tmp_path / "forged.tar.gz"
    pack_headers(archive, kind, size=LONG)
    tracemalloc.start()
    try:
        with pytest.raises(VllamaError, match="damaged, or no file of 'vllama export'"):
            unpack_archive(archive, tmp_path, free_bytes=LONG)
        assert tracemalloc.get_traced_memory()[1] < 4 * CHUNK
    finally:
        tracemalloc.stop()


def test_a_move_that_fails_is_undone(tmp_path: Path) -> None:
    sources = [tmp_path / name for name in ("first", "second", "third")]
    for source in sources:
        source.write_text("new")
    there, fresh = tmp_path / "there", tmp_path / "fresh"
    there.write_text("old")
    (tmp_path / "a file").touch()
    targets = (there, fresh, tmp_path / "a file" / "below")
    with pytest.raises(OSError, match=r"exists|directory"):
        put_into_place(dict(zip(sources, targets, strict=True)))
    assert there.read_text() == "old"
    assert not fresh.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
