"""The commands of the page about backups: one machine's own things on another one."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.cli.conftest import Vllama
from tests.tiny import write_tiny_gguf

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "backup.md").read_text()
SAVE_AND_RESTORE, UNPACK_OLD = re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
SAVE, RESTORE = re.findall(r"^tar .*$", SAVE_AND_RESTORE, re.MULTILINE)
RECORD = "models/registry.ollama.ai/library/brief/latest.json"


def run(commands: str, home: Path, folder: Path) -> None:
    """Run lines of the page as the user of `home`, in the folder with the archive."""
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-euc", commands], env=environ, cwd=folder, check=True)


@pytest.fixture
def old(tmp_path: Path, vllama: Vllama) -> Path:
    """The home of a user with a setting, a created model and a key."""
    home = tmp_path / "old"
    environ = own_folders(home)
    (home / ".ollama" / "models").mkdir(parents=True)
    config = Path(environ["VLLAMA_CONFIG"])
    config.parent.mkdir(parents=True)
    config.write_text('keep_alive = "7m"\n')
    write_tiny_gguf(tmp_path / "base.gguf")
    modelfile = f"FROM {tmp_path / 'base.gguf'}\nSYSTEM be brief\n"
    for words in (("create", "brief", "-f", "-"), ("keys", "add", "alice")):
        done = vllama(*words, stdin=modelfile, **environ)
        assert done.returncode == 0, done.stderr
    return home


def own_folders(home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "VLLAMA_CONFIG": str(home / ".config" / "vllama" / "config.toml"),
        "VLLAMA_DATA_DIR": str(home / ".local" / "share" / "vllama"),
    }


def check_same(old: Path, new: Path, vllama: Vllama) -> None:
    environ = own_folders(new)
    assert "SYSTEM be brief" in vllama("show", "brief", "--modelfile", **environ).stdout
    assert "alice" in vllama("keys", **environ).stdout
    for name in (".config/vllama/config.toml", ".local/share/vllama/keys.json"):
        assert (new / name).read_bytes() == (old / name).read_bytes()
        assert (new / name).stat().st_mode & 0o077 == 0 or "config" in name


def test_a_machine_becomes_like_another(old: Path, tmp_path: Path, vllama: Vllama) -> None:
    engine = old / ".local/share/vllama/environments/engine"
    engine.mkdir(parents=True)
    new = tmp_path / "new"
    new.mkdir()
    run(SAVE, old, tmp_path)
    run(RESTORE, new, tmp_path)
    check_same(old, new, vllama)
    assert not (new / engine.relative_to(old)).exists()


def test_an_archive_of_vllama_export(old: Path, tmp_path: Path, vllama: Vllama) -> None:
    """As version 0.1 wrote it; what exists on the other machine is replaced."""
    config, data = old / ".config/vllama", old / ".local/share/vllama"
    record = (data / RECORD).read_bytes()  # which named its base by its path
    record = re.sub(rb"blobs/sha256-\w+", bytes(tmp_path / "base.gguf"), record)
    entries = {
        "manifest.json": b"{}",
        "config.toml": (config / "config.toml").read_bytes(),
        "keys.json": (data / "keys.json").read_bytes(),
        "usage.json": b"[]",
        RECORD: re.sub(
            rb"blobs/sha256-\w+", bytes(tmp_path / "base.gguf"), (data / RECORD).read_bytes()
        ),
    }
    with tarfile.open(tmp_path / "old.tar.gz", "w:gz") as archive:
        for name, content in entries.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o600
            archive.addfile(info, io.BytesIO(content))
    new = tmp_path / "new"
    (new / ".local/share/vllama").mkdir(parents=True)
    (new / ".local/share/vllama/keys.json").write_text("{}")
    run(UNPACK_OLD, new, tmp_path)
    check_same(old, new, vllama)
    left = {path.name for path in (new / ".local/share/vllama").iterdir()}
    assert {"keys.json", "models"} == left - {"keys.lock"}
