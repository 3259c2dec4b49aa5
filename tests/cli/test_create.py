"""create and cp on this disk, without a server; /save through one."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import Vllama
from tests.cli.stub import StubServer, answer
from tests.cli.terminal import Terminal
from tests.registry import OllamaModel, store
from tests.tiny import write_tiny_gguf, write_tiny_lora

# real processes, one after another: not for every save
pytestmark = pytest.mark.slow

NOBODY = "127.0.0.1:9"
OTHER_DISK = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path, env: dict[str, str]) -> Path:
    """A folder of the user's own with one model in it, and no server."""
    models = tmp_path / "models"
    models.mkdir()
    write_tiny_gguf(models / "mine.gguf")
    env["VLLAMA_FOLDERS"] = str(models)
    env["OLLAMA_HOST"] = NOBODY
    return models


def modelfile(tmp_path: Path, text: str) -> str:
    (tmp_path / "work").mkdir(exist_ok=True)
    path = tmp_path / "work" / "Modelfile"
    path.write_text(text)
    return str(path)


def test_create_show_cp_rm(folder: Path, tmp_path: Path, vllama: Vllama) -> None:
    file = modelfile(
        tmp_path,
        'FROM MINE\nPARAMETER temperature 0.5\nSYSTEM """Say\nlittle."""\nMESSAGE user hi\n'
        "REQUIRES 0.14.0\nRENDERER qwen3\nPARSER qwen3\nPARAMETER numa true\n",
    )
    done = vllama("create", "Terse", "-f", file)
    assert (done.returncode, done.stdout) == (0, "")
    said = done.stderr.splitlines()
    assert said[0].startswith("using existing layer sha256:")
    assert "ignoring PARAMETER numa: not supported" in said
    assert any("renderer and parser are stored but not used" in line for line in said)
    assert said[-2:] == ["writing manifest", "success"]
    assert vllama("show", "terse", "--system").stdout == "Say\nlittle.\n"
    shown = vllama("show", "terse").stdout
    for name, value in (("renderer", "qwen3"), ("parser", "qwen3"), ("requires", "0.14.0")):
        assert re.search(rf"(?m)^ +{name} +{value}$", shown), shown
    text = vllama("show", "terse", "--modelfile").stdout
    assert "FROM mine:latest" in text
    for line in ("RENDERER qwen3", "PARSER qwen3", "REQUIRES 0.14.0"):
        assert line in text.splitlines()
    assert vllama("create", "again", "-f", "-", stdin=text).returncode == 0
    again = vllama("show", "again", "--modelfile").stdout
    assert again.splitlines()[3:] == text.splitlines()[3:]
    assert "cannot copy 'TERSE' to itself" in vllama("cp", "TERSE", "TERSE").stderr
    done = vllama("cp", "TERSE", "team/other:v1")
    assert (done.returncode, done.stdout) == (0, "copied 'TERSE' to 'team/other:v1'\n")
    models = json.loads(vllama("list", "--json").stdout)["models"]
    assert {"Terse:latest", "again:latest", "team/other:v1"} < {row["name"] for row in models}
    assert vllama("rm", "terse", "again", "team/other:v1").returncode == 0
    assert vllama("list", "terse").stdout == ""
    assert (folder / "mine.gguf").exists()


def test_a_draft_model(folder: Path, tmp_path: Path, vllama: Vllama) -> None:
    write_tiny_gguf(folder / "small.gguf", n_embd=32)
    file = modelfile(tmp_path, "FROM mine\nDRAFT small\nPARAMETER draft_num_predict 5\n")
    done = vllama("create", "drafting", "-f", file)
    assert done.returncode == 0, done.stderr
    text = vllama("show", "drafting", "--modelfile").stdout
    assert f"DRAFT {folder / 'small.gguf'}" in text
    assert vllama("create", "again", "-f", "-", stdin=text).returncode == 0
    alone = modelfile(tmp_path, "FROM mine\nDRAFT mine\n")
    done = vllama("create", "odd", "-f", alone)
    assert done.returncode != 0 and "it is the same model" in done.stderr
    shutil.copy(folder / "mine.gguf", tmp_path / "work" / "copy.gguf")
    copied = modelfile(tmp_path, "FROM mine\nDRAFT ./copy.gguf\n")
    done = vllama("create", "odd", "-f", copied)
    assert done.returncode != 0 and "it is the same model" in done.stderr


@pytest.mark.parametrize("source", ["./there.gguf", "there.gguf", "dir", "{}/there.gguf"])
def test_files_are_relative_to_the_modelfile(
    source: str, folder: Path, tmp_path: Path, vllama: Vllama
) -> None:
    file = modelfile(tmp_path, f"FROM {source.format(tmp_path / 'work')}\n")
    there = tmp_path / "work" / ("dir/there.gguf" if source == "dir" else "there.gguf")
    there.parent.mkdir(exist_ok=True)
    os.link(folder / "mine.gguf", there)
    done = vllama("create", "made", "-f", file)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(vllama("list", "made", "--json").stdout)["models"]
    assert row["path"] == str(find_blob(tmp_path, there))
    assert f"FROM {row['path']}" in vllama("show", "made", "--modelfile").stdout


def find_blob(tmp_path: Path, file: Path) -> Path:
    """Return the place of a file's content in the store."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return tmp_path / "home/.local/share/vllama/blobs" / f"sha256-{digest}"


def list_blobs(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "home/.local/share/vllama/blobs").glob("*"))


def test_files_of_paths_are_kept(folder: Path, tmp_path: Path, vllama: Vllama) -> None:
    work = tmp_path / "work"
    work.mkdir()
    base, adapter = write_tiny_gguf(work / "b.gguf", seed=3), write_tiny_lora(work / "a.gguf")
    draft, eyes = write_tiny_gguf(work / "d.gguf", n_embd=32), work / "mmproj.gguf"
    write_tiny_gguf(eyes, seed=9, extra=lambda one: one.add_type("mmproj"))
    text = "FROM ./b.gguf\nFROM ./mmproj.gguf\nADAPTER a.gguf\nDRAFT d.gguf\n"
    files = [base, adapter, draft, eyes]
    kept = sorted(find_blob(tmp_path, file) for file in files)
    done = vllama("create", "made", "-f", modelfile(tmp_path, text))
    assert done.returncode == 0, done.stderr
    digest = hashlib.sha256(base.read_bytes()).hexdigest()
    assert f"using existing layer sha256:{digest}" in done.stderr
    assert list_blobs(tmp_path) == kept
    for file in files[:2]:
        file.unlink()
    for file in files[2:]:
        file.write_bytes(b"changed")
    shown = vllama("show", "made", "--modelfile")
    assert shown.returncode == 0, shown.stderr
    paths = [line.split()[1] for line in shown.stdout.splitlines() if "blobs/sha256-" in line]
    assert sorted(paths) == [str(path) for path in kept]
    # of the files that the store has, none is stored again
    assert vllama("create", "again", "-f", "-", stdin=shown.stdout).returncode == 0
    assert list_blobs(tmp_path) == kept
    assert vllama("rm", "made").returncode == 0 and list_blobs(tmp_path) == kept
    assert vllama("rm", "again").returncode == 0 and list_blobs(tmp_path) == []


def test_link(folder: Path, tmp_path: Path, vllama: Vllama) -> None:
    file = modelfile(tmp_path, "FROM ./b.gguf\n")
    base = write_tiny_gguf(tmp_path / "work" / "b.gguf", seed=3)
    done = vllama("create", "made", "--link", "-f", file)
    assert done.returncode == 0, done.stderr
    assert f"using '{base}' via a hard link: do not change it" in done.stderr.replace("\n", " ")
    blob = find_blob(tmp_path, base)
    assert list_blobs(tmp_path) == [blob] and blob.samefile(base)
    assert vllama("rm", "made").returncode == 0
    assert base.exists() and list_blobs(tmp_path) == []


@pytest.mark.skipif(not OTHER_DISK.is_dir(), reason="needs a second file system")
def test_what_cannot_be_linked_keeps_its_path(folder: Path, tmp_path: Path, vllama: Vllama) -> None:
    with tempfile.TemporaryDirectory(dir=OTHER_DISK) as other:
        base = write_tiny_gguf(Path(other) / "b.gguf", seed=3)
        if base.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("it is the same file system")
        file = modelfile(tmp_path, f"FROM {base}\n")
        done = vllama("create", "made", "--link", "-f", file)
        assert "as it cannot be linked: do not change it" in done.stderr.replace("\n", " ")
        (row,) = json.loads(vllama("list", "made", "--json").stdout)["models"]
        assert row["path"] == str(base) and list_blobs(tmp_path) == []
        # without it, there is a copy
        assert vllama("create", "copied", "-f", file).returncode == 0
        assert list_blobs(tmp_path) == [find_blob(tmp_path, base)]


def test_a_model_in_a_store_is_not_copied(
    folder: Path, tmp_path: Path, env: dict[str, str], vllama: Vllama
) -> None:
    made = OllamaModel([("model", (folder / "mine.gguf").read_bytes())])
    store(tmp_path / "ollama", "registry.ollama.ai/library/theirs:latest", made)
    env["OLLAMA_MODELS"] = str(tmp_path / "ollama")
    text = vllama("show", "theirs", "--modelfile").stdout
    assert f"FROM {tmp_path / 'ollama' / 'blobs'}" in text
    assert vllama("create", "made", "-f", "-", stdin=text).returncode == 0
    assert list_blobs(tmp_path) == []
    assert "FROM theirs:latest" in vllama("show", "made", "--modelfile").stdout


def add_numbers(numbers: dict[str, int], writer: object) -> None:
    for name, value in numbers.items():
        writer.add_uint16(name, value)  # type: ignore[attr-defined]


def test_parts_and_folders_stay_where_they_are(
    folder: Path, tmp_path: Path, vllama: Vllama
) -> None:
    file = modelfile(tmp_path, "FROM ./m-00001-of-00002.gguf\n")
    for number in (1, 2):
        part = tmp_path / "work" / f"m-0000{number}-of-00002.gguf"
        counts = {"split.count": 2, "split.no": number - 1}
        write_tiny_gguf(part, extra=partial(add_numbers, counts))
    done = vllama("create", "made", "-f", file)
    assert done.returncode == 0, done.stderr
    assert "in place: do not move or change it" in done.stderr.replace("\n", " ")
    assert list_blobs(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SYSTEM x", "it has no FROM line"),
        ("FROM mine\nTEMPERATURE 1", "line 2: unknown instruction 'temperature'"),
        ("FROM ./nope.gguf", "cannot find a model at"),
        ("FROM org/nope", "Error: "),
        ("FROM mine\nFROM mine", "cannot use 'mine'"),
        ("FROM mine\nADAPTER ./a.gguf", "cannot use the adapter '"),
        ("FROM mine\nTEMPLATE {{ .Prompt", "cannot use the template: line 1: unclosed action"),
    ],
)
def test_what_cannot_be_created(
    text: str, says: str, folder: Path, tmp_path: Path, vllama: Vllama
) -> None:
    done = vllama("create", "made", "-f", modelfile(tmp_path, text))
    assert done.returncode == 1
    assert "Error: " in done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "made" not in vllama("list").stdout


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_modelfiles_as_windows_writes_them(
    encoding: str, folder: Path, tmp_path: Path, vllama: Vllama
) -> None:
    text = "\ufeffFROM mine\r\nSYSTEM größer\r\n"
    file = tmp_path / "Modelfile"
    file.write_bytes((text if encoding == "utf-16-be" else text[1:]).encode(encoding))
    assert vllama("create", "made", "-f", str(file)).returncode == 0
    assert vllama("show", "made", "--system").stdout == "größer\n"


def test_wrong_use(folder: Path, tmp_path: Path, vllama: Vllama) -> None:
    done = vllama("create", "made", "-f", str(tmp_path / "none"))
    assert done.stderr.startswith("Error: cannot read the Modelfile")
    file = modelfile(tmp_path, "FROM mine")
    assert "invalid model name" in vllama("create", "a b", "-f", file).stderr
    done = vllama("create", "made", "-f", file, "-q", "q4_0")
    assert 'unsupported quantization "q4_0"' in done.stderr
    done = vllama("cp", "nope", "x")
    assert done.returncode == 1
    assert done.stderr.startswith('Error: model "nope" not found\nHint: ')


def test_save(stub: StubServer, terminal: Callable[..., Terminal]) -> None:
    stub.on("POST /api/generate", {"done": True, "done_reason": "load"})
    stub.on("POST /api/chat", *answer("Aye.", chat=True))
    stub.on("POST /api/create", {"status": "success"})
    screen = terminal("run", "m")
    screen.expect(">>> ")
    for text, expected in (
        ("/set system Arr", "Set system message."),
        ("/set parameter seed 4", "Set parameter 'seed'"),
        ("hello", "Aye."),
        ("/save", "/save <model>"),
        ("/save pirate", "Created new model 'pirate'"),
    ):
        screen.type(text + "\r")
        screen.expect(expected)
        screen.expect(">>> ")
    stub.fail("POST /api/create", 400, "invalid model name")
    screen.type("/save x\r")
    screen.expect("invalid model name")
    screen.expect(">>> ")
    screen.type("/bye\r")
    assert screen.finish() == 0
    assert stub.bodies("POST /api/create")[0] == {
        "model": "pirate",
        "from": "m",
        "parameters": {"seed": 4},
        "system": "Arr",
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "Aye."},
        ],
        "stream": False,
    }
