"""What root's commands leave in the folder of a service belongs to the service's user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine.environments.installer import Fake
from tests.tiny import write_tiny_gguf
from vllama.base import private

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

TESTS = Path(__file__).parents[1]
SERVICE = 64_000
OTHER = 64_001


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Make a folder as systemd makes that of a dynamic user: private, behind a link."""
    for folder in (*tmp_path.parents, tmp_path):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o001)
    real = tmp_path / "private"
    real.mkdir(mode=0o700)
    os.chown(real, SERVICE, SERVICE)
    (tmp_path / "state").symlink_to(real)
    return tmp_path / "state"


def ask_as_service(command: str, state: Path) -> str:
    return subprocess.run(
        ["/bin/sh", "-c", command],
        user=SERVICE,
        group=SERVICE,
        extra_groups=[],
        cwd=state,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.slow
def test_the_order_of_the_hint(state: Path, tmp_path: Path) -> None:
    """First the service, which makes its folder; then an engine, keys, models."""
    fake = Fake(tmp_path / "uv")
    env = fake.environ | {
        "VLLAMA_DATA_DIR": str(state),
        "OLLAMA_HOST": "127.0.0.1:9",
        "PYTHONPATH": os.pathsep.join(str(TESTS / name) for name in ("fake_engine", "cli/painter")),
    }
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "Modelfile").write_text(f"FROM {model}\n")

    def run(*words: str, status: int = 0) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "vllama", *words],
            env=env,
            umask=0o077,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stderr

    run("engines", "install", "painter", "--yes")
    (installed,) = (call for call in fake.calls if call["args"][:2] == ["pip", "install"])
    assert installed["env"]["UV_LINK_MODE"] == "copy"
    run("keys", "add", "ann", "--scope", "admin")
    run("cp", str(model), "mine")
    run("keys", "rotate", "nobody", status=2)  # one that fails leaves nothing behind, either
    assert (
        ask_as_service(
            f"find . ! -user {SERVICE} -o ! -readable ! -type l -o -type d ! -writable", state
        )
        == ""
    )
    assert "keys.json" in ask_as_service("cat keys.json >/dev/null; ls", state)
    programs = ask_as_service("find environments/*/bin -type f -perm -100", state).split()
    assert programs and all(ask_as_service(program, state) for program in programs)


def test_nothing_outside_is_given_away(state: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").touch()
    (state / "link").symlink_to(outside)
    (state / "file").symlink_to(outside / "secret")
    (state / "hard").hardlink_to(outside / "secret")
    (state / "others").touch()
    os.chown(state / "others", OTHER, OTHER)
    (state / "deep" / "folder").mkdir(parents=True)
    (state / "deep" / "folder" / "file").touch()
    private.give_to_owner(state)
    assert {outside.stat().st_uid, (outside / "secret").stat().st_uid} == {0}
    assert (state / "others").stat().st_uid == OTHER
    given = ("link", "file", "deep", "deep/folder", "deep/folder/file")
    assert {(state / name).lstat().st_uid for name in given} == {SERVICE}


def test_a_file_that_a_server_reads_is_its_own_before_it_is_there(state: Path) -> None:
    private.replace(state / "keys.json", "{}")
    assert (state / "keys.json").stat().st_uid == SERVICE
