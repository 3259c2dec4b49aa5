"""Root's commands in the data folder of a service run as the service's user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lacking import lacking
from tests.machine.environments.installer import Fake
from tests.ports import free_port
from tests.tiny import write_tiny_gguf

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

TESTS = Path(__file__).parents[1]
SERVICE = 64_000
SHOW = """
mount --bind "$2" "$3" && mount -t tmpfs -o mode=755 none "$1" && mkdir -p "$2" &&
mount --bind "$3" "$2" && shift 3 && exec "$@"
"""
"""Shows a part of a folder to everybody: root's home, where its Python may be."""


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


def with_python_for_all(words: list[str], place: Path) -> list[str]:
    """Return a command that runs where every user can read this Python."""
    library = Path(os.__file__)
    for folder in reversed(library.parents):
        if not folder.stat().st_mode & 0o001:
            if shutil.which("unshare") is None:
                lacking("this Python is in a private folder, and there is no unshare")
            place.mkdir(exist_ok=True)
            inner = folder / library.relative_to(folder).parts[0]
            show = ["sh", "-c", SHOW, "show", str(folder), str(inner), str(place)]
            return ["unshare", "--mount", *show, *words]
    return words


class Root:
    """Root, who runs commands in the folder of the service."""

    def __init__(self, state: Path, **more: str) -> None:
        self.state, self.top = state, state.parent
        self.home = self.top / "home"
        self.home.mkdir(mode=0o700)
        self.environ = os.environ | {
            "HOME": str(self.home),
            "VLLAMA_DATA_DIR": str(state),
            "OLLAMA_HOST": f"127.0.0.1:{free_port()}",
            "PYTHONPATH": str(TESTS / "fake_engine"),
        } | more  # fmt: skip
        for name in ("XDG_CONFIG_HOME", "VLLAMA_CONFIG"):
            self.environ.pop(name, None)

    def run(self, *words: str, status: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vllama", *words]
        done = subprocess.run(
            with_python_for_all(command, self.top / "place"),
            env=self.environ | more,
            umask=0o077,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == status, done.stderr
        return done


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
    for path in (tmp_path / "uv", *(tmp_path / "uv").rglob("*")):
        path.chmod(0o777)
    painter = os.pathsep.join(str(TESTS / name) for name in ("fake_engine", "cli/painter"))
    root = Root(state, **fake.environ | {"PYTHONPATH": painter})
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    model.chmod(0o644)
    tmp_path.chmod(0o755)
    root.run("engines", "install", "painter", "--yes")
    root.run("keys", "add", "ann", "--scope", "admin")
    root.run("cp", str(model), "mine")
    root.run("keys", "rotate", "nobody", status=1)  # one that fails leaves nothing behind, either
    unusable = f"find . ! -user {SERVICE} -o ! -readable ! -type l -o -type d ! -writable"
    assert ask_as_service(unusable, state) == ""
    assert "keys.json" in ask_as_service("cat keys.json >/dev/null; ls", state)
    programs = ask_as_service("find environments/*/bin -type f -perm -100", state).split()
    assert programs and all(ask_as_service(program, state) for program in programs)


WRITES = [
    (["keys", "add", "bob"], ("keys.json", "keys.new", "keys.lock")),
    (["usage"], ("usage",)),
    (["usage"], ("usage/usage.db", "usage/usage.db-wal", "usage/unreadable-lines")),
    (["cp", "{model}", "mine"], ("models", "blobs", "created", "store.lock")),
    (["create", "mine", "-f", "{file}"], ("models", "blobs", "created", "store.lock")),
    (["logs", "--vllama"], ("logs/vllama.log",)),
    (["serve", "--model", "nothing"], ("run", "logs", "usage", "batches", "captures", "blobs")),
    (["serve", "--capture", "5"], ("logs/vllama.log", "usage/usage.db", "batches/lock",
                                   "run/server.lock", "keys.json")),
    (["engines", "remove", "llama-server", "--yes"], ("environments",)),
    (["engines", "install", "llama-server", "--yes"], ("environments",)),
    (["config", "edit"], (".config",)),
    (["config", "edit"], (".config/vllama/config.toml",)),
    (["launch", "opencode", "--config", "--yes", "--model", "m"], ("integrations", "launch",
                                                                   ".config")),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("words", "planted"), WRITES)
def test_a_planted_link_gives_nothing_of_root_s_away(
    words: list[str], planted: tuple[str, ...], state: Path
) -> None:
    """Whatever is planted in the folder, nothing outside of it changes."""
    root = Root(state, EDITOR="touch")
    outside = root.home / "outside"
    outside.mkdir(mode=0o755)
    (outside / "secret").write_text("root's")
    (outside / "secret").chmod(0o600)
    model = write_tiny_gguf(root.home / "tiny.gguf")
    (root.home / "Modelfile").write_text(f"FROM {model}\n")
    for each in planted:
        place = state / each
        place.parent.mkdir(parents=True, exist_ok=True)
        is_file = place.name == "unreadable-lines" or "." in place.name[1:]
        place.symlink_to(outside / "secret" if is_file else outside)
    ask = f"chown -hR {SERVICE}:{SERVICE} ."
    subprocess.run(ask, shell=True, cwd=state, check=True)
    known = {path: path.lstat() for path in (outside, *outside.iterdir(), root.home)}
    values = {"model": str(model), "file": str(root.home / "Modelfile")}
    command = with_python_for_all(
        [sys.executable, "-m", "vllama", *(word.format(**values) for word in words)],
        root.top / "place",
    )
    try:
        subprocess.run(command, env=root.environ, capture_output=True, timeout=15, check=False)
    except subprocess.TimeoutExpired:
        assert words[0] == "serve"  # which has begun to serve
    now = {path: path.lstat() for path in (outside, *outside.iterdir(), root.home)}
    for path, before in known.items():
        after = now.pop(path)
        same = ("st_uid", "st_gid", "st_mode", "st_mtime_ns", "st_size")
        assert [getattr(after, each) for each in same] == [getattr(before, each) for each in same]
    assert not now and (outside / "secret").read_text() == "root's"


def test_the_files_that_root_names_are_read(state: Path) -> None:
    """Although the service's user cannot read them. The config file is that of this user."""
    root = Root(state)
    for home, length in ((root.home, 1234), (state, 4321)):
        config = home / ".config" / "vllama" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(f"context_length = {length}\n")
    subprocess.run(f"chown -R {SERVICE}:{SERVICE} .", shell=True, cwd=state, check=True)
    shown = json.loads(root.run("config", "--json").stdout)["settings"]
    rows = {row["key"]: row["text"] for row in shown}
    assert (rows["context_length"], rows["data_dir"]) == ("4321", str(state))
    (root.home / "Modelfile").write_text("FROM scratch-of-nobody\n")
    (root.home / "rows.jsonl").write_text("{\n")
    told = root.run("create", "mine", "-f", str(root.home / "Modelfile"), status=1).stderr
    assert "scratch-of-nobody" in told
    told = root.run("batch", str(root.home / "rows.jsonl"), status=2).stderr
    assert "line 1" in told
    told = root.run("config", f"--config={root.home}/rows.jsonl", status=2).stderr
    assert "cannot read the config file" in told


def test_a_folder_of_root_s_own_is_used_as_root(tmp_path: Path) -> None:
    root = Root(tmp_path / "state")
    root.run("keys", "add", "ann")
    assert (tmp_path / "state" / "keys.json").stat().st_uid == 0


def test_a_vllama_that_the_user_cannot_read_is_an_error(state: Path, tmp_path: Path) -> None:
    root, hidden = Root(state), tmp_path / "hidden"
    shutil.copytree(TESTS.parent / "vllama", hidden / "vllama")
    hidden.chmod(0o700)
    code = "import sys; sys.path.insert(0, sys.argv[1]); from vllama.cli.app import run; "
    code += "sys.exit(run(['keys', 'add', 'ann']))"
    command = [sys.executable, "-c", code, str(hidden)]
    done = subprocess.run(
        with_python_for_all(command, tmp_path / "place"),
        env=root.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"cannot act as {SERVICE}, the owner of '{state}'" in done.stderr
    assert done.returncode == 1 and not list((tmp_path / "private").iterdir())
