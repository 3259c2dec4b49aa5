"""create and cp on this disk, without a server; /save through one."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Vllama
from tests.cli.stub import StubServer, answer
from tests.cli.terminal import Terminal
from tests.tiny import write_tiny_gguf
from vllama.cli.model_view import COLUMNS

# real processes, one after another: not for every save
pytestmark = pytest.mark.slow

NOBODY = "127.0.0.1:9"


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
    assert "leaving out PARAMETER numa: not used here" in said
    assert any("keeping renderer and parser without using them" in line for line in said)
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
    done = vllama("cp", "TERSE", "team/other:v1")
    assert (done.returncode, done.stdout) == (0, "copied 'TERSE' to 'team/other:v1'\n")
    models = json.loads(vllama("list", "--json").stdout)["models"]
    assert {"Terse:latest", "again:latest", "team/other:v1"} < {row["name"] for row in models}
    assert vllama("rm", "terse", "again", "team/other:v1").returncode == 0
    assert vllama("list", "terse").stdout.split() == [*COLUMNS]
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
    assert done.returncode != 0 and "it is the model itself" in done.stderr
    shutil.copy(folder / "mine.gguf", tmp_path / "work" / "copy.gguf")
    copied = modelfile(tmp_path, "FROM mine\nDRAFT ./copy.gguf\n")
    done = vllama("create", "odd", "-f", copied)
    assert done.returncode != 0 and "it is the model itself" in done.stderr


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
    assert row["path"] == str(there)
    assert f"FROM {there}" in vllama("show", "made", "--modelfile").stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SYSTEM x", "it has no FROM line"),
        ("FROM mine\nTEMPERATURE 1", "line 2: unknown instruction 'temperature'"),
        ("FROM ./nope.gguf", "cannot find a model at"),
        ("FROM org/nope", "Error: "),
        ("FROM mine\nFROM mine", "cannot use 'mine'"),
        ("FROM mine\nADAPTER ./a.gguf", "cannot use the adapter '"),
        ("FROM mine\nTEMPLATE {{ .Prompt", "cannot use the template: line 1: the action"),
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
