"""`vllama convert` and `create -q` as a person meets them; the tools are stand-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Vllama
from tests.models.convert.conftest import local
from tests.models.convert.test_adapter import write
from tests.models.convert.tools import Tools, write_quantizer
from tests.tiny import write_tiny_gguf
from vllama.models.headers.gguf.header import read_header

pytestmark = pytest.mark.slow


@pytest.fixture
def data(tmp_path: Path, env: dict[str, str]) -> Path:
    env["VLLAMA_DATA_DIR"] = str(tmp_path / "data")
    env["OLLAMA_HOST"] = "127.0.0.1:9"
    folder = write_quantizer(tmp_path / "bin").parent
    env["PATH"] = os.pathsep.join([str(folder), env["PATH"]])
    return tmp_path / "data"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "large-F16.gguf")


def test_a_smaller_gguf(large: Path, data: Path, vllama: Vllama, tmp_path: Path) -> None:
    done = vllama("convert", str(large), "-q", "q8_0", "--output", "small")
    assert (done.returncode, done.stdout) == (0, f"converted '{large}' to 'small:latest'\n")
    assert "quantizing F16 model to Q8_0" in done.stderr
    (row,) = json.loads(vllama("list", "small", "--json").stdout)["models"]
    assert (row["quantization_level"], row["store"]) == ("Q8_0", "created")
    target = tmp_path / "x.gguf"
    done = vllama("convert", str(large), "-q", "Q8_0", "-o", str(target), "--json")
    assert json.loads(done.stdout) == {
        "name": str(target),
        "path": str(target),
        "projector": None,
        "quantization": "Q8_0",
        "size": target.stat().st_size,
    }
    assert vllama("rm", "small").returncode == 0
    assert [path.name for path in (data / "blobs").iterdir()] == []


def test_create_of_safetensors_and_an_adapter(data: Path, vllama: Vllama, tmp_path: Path) -> None:
    local(tmp_path / "weights")
    write(tmp_path / "lora")
    (tmp_path / "Modelfile").write_text("FROM weights\nADAPTER lora\n")
    done = vllama("create", "mine", "-f", str(tmp_path / "Modelfile"))
    assert done.returncode == 2 and "stdin is not a terminal" in done.stderr
    assert "llama.cpp's converter and torch" in done.stderr and "--yes" in done.stderr
    Tools(data, write_tiny_gguf(tmp_path / "tiny.gguf"))
    done = vllama("create", "mine", "-f", str(tmp_path / "Modelfile"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("converting model\n")
    text = vllama("show", "mine", "--modelfile").stdout
    assert all(f"{word} {data / 'blobs'}/sha256-" in text for word in ("FROM", "ADAPTER"))
    (tmp_path / "Modelfile").write_text(f"FROM {tmp_path}/tiny.gguf\nADAPTER lora/nothing\n")
    done = vllama("create", "mine", "-f", str(tmp_path / "Modelfile"))
    assert done.returncode == 1 and "the ADAPTER must be a file or folder" in done.stderr


def test_create_quantizes(large: Path, data: Path, vllama: Vllama, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {large}\nSYSTEM Say little.\n")
    done = vllama("create", "terse", "-f", str(tmp_path / "Modelfile"), "-q", "Q4_K_M")
    assert done.returncode == 0, done.stderr
    assert "quantizing F16 model to Q4_K_M" in done.stderr
    assert vllama("show", "terse", "--system").stdout == "Say little.\n"
    (row,) = json.loads(vllama("list", "terse", "--json").stdout)["models"]
    assert row["quantization_level"] == "Q4_K_M"
    (tmp_path / "Modelfile").write_text("FROM terse\n")
    done = vllama("create", "again", "-f", str(tmp_path / "Modelfile"), "-q", "Q8_0")
    assert "quantization is only supported for F16, BF16 and F32 models" in done.stderr


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([], "Error: cannot convert '{}': it is already a GGUF file"),
        (["-q", "Q9"], 'Error: unsupported quantization "Q9"'),
        (["-q", "f16"], "Error: cannot convert '{}': it is already F16"),
        (["--outtype", "q4_0"], "Error: cannot use this value of '--outtype'"),
        (["-q", "Q8_0", "-o", "/dev/null/x.gguf"], "Error: cannot write '/dev"),
    ],
)
def test_wrong_use(large: Path, data: Path, vllama: Vllama, more: list[str], says: str) -> None:
    done = vllama("convert", str(large), *more)
    assert done.returncode in (1, 2)
    assert says.format(large) in done.stderr
    assert "Hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_fetched_without_being_asked(
    data: Path, vllama: Vllama, tmp_path: Path
) -> None:  # fmt: skip
    folder = local(tmp_path / "mine")
    done = vllama("convert", str(folder))
    assert done.returncode == 2
    assert "llama.cpp's converter and torch, in a separate environment: about" in done.stderr
    assert "Error: cannot confirm the download" in done.stderr
    assert "Hint: pass --yes" in done.stderr
    assert not data.exists()


def test_the_names_hint(data: Path, vllama: Vllama, tmp_path: Path) -> None:
    Tools(data, write_tiny_gguf(tmp_path / "tiny.gguf"))
    done = vllama("convert", str(local(tmp_path / "mine")), "--json")
    assert json.loads(done.stdout)["name"] == "mine:latest", done.stderr
    assert "to serve it" not in done.stderr


def test_ctrl_c(data: Path, env: dict[str, str], tmp_path: Path) -> None:
    Tools(data, write_tiny_gguf(tmp_path / "tiny.gguf"))
    command = [sys.executable, "-m", "vllama", "convert"]
    command.append(str(local(tmp_path / "mine", model_type="hangs")))
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "100%" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert rest.splitlines() == ["interrupted; partial output was removed, and downloads are saved"]
    assert [*(data / "blobs").iterdir()] == []


@pytest.mark.parametrize("safetensors", [False, True])
def test_a_draft_model_is_quantized(
    large: Path, data: Path, vllama: Vllama, tmp_path: Path, safetensors: bool
) -> None:
    draft = tmp_path / "draft.gguf"
    write_tiny_gguf(draft, n_embd=32)
    if safetensors:
        Tools(data, draft)
        local(tmp_path / "weights")
    named = "weights" if safetensors else draft.name
    (tmp_path / "Modelfile").write_text(f"FROM {large}\nDRAFT {named}\n")
    file = str(tmp_path / "Modelfile")
    done = vllama("create", "drafts", "-f", file, "--draft-quantize", "q4_K_M")
    assert done.returncode == 0, done.stderr
    shown = vllama("show", "drafts", "--modelfile").stdout
    (path,) = [line.removeprefix("DRAFT ") for line in shown.split("\n") if "DRAFT " in line]
    assert Path(path).parent == data / "blobs"
    assert b"quantiz" not in large.read_bytes()
    (row,) = json.loads(vllama("list", "drafts", "--json").stdout)["models"]
    assert row["quantization_level"] == "F16"  # the model itself is as it was
    kept = sorted(file.name for file in (data / "blobs").iterdir())
    assert len(kept) == 2 and Path(path).name in kept
    header = read_header(Path(path))
    assert header.metadata["general.file_type"] == 15  # Q4_K_M
    assert vllama("rm", "drafts").returncode == 0 and not [*(data / "blobs").iterdir()]


@pytest.mark.parametrize(
    ("lines", "quant", "said"),
    [
        ("", "Q4_K_M", "the Modelfile has no DRAFT line"),
        ("DRAFT draft.gguf\n", "Q99", 'unsupported quantization "Q99"'),
    ],
)
def test_a_draft_model_that_cannot_be_quantized(
    large: Path, data: Path, vllama: Vllama, tmp_path: Path, lines: str, quant: str, said: str
) -> None:
    write_tiny_gguf(tmp_path / "draft.gguf", n_embd=32)
    (tmp_path / "Modelfile").write_text(f"FROM {large}\n{lines}")
    asked = ("-f", str(tmp_path / "Modelfile"), "--draft-quantize", quant)
    done = vllama("create", "drafts", *asked)
    assert done.returncode != 0 and said in done.stderr
