"""Commands about models on this disk: list, show, rm, pull, with real files and a stand-in hub."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Vllama
from tests.cli.terminal import Terminal
from tests.hub import Fault, StandInHub
from tests.server_process import FAKE
from tests.tiny import write_tiny_gguf
from vllama.cli.model_view import COLUMNS

HUB_NAME = "org/tiny-GGUF"
NAME = "hf.co/org/tiny-GGUF:Q4_K_M"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny-Q4_K_M.gguf")


@pytest.fixture
def hub(gguf: Path, env: dict[str, str]) -> Iterator[StandInHub]:
    with StandInHub() as server:
        server.add_repo(HUB_NAME, {gguf.name: gguf})
        env["HF_ENDPOINT"] = server.url
        yield server


@pytest.fixture
def with_engine(env: dict[str, str]) -> dict[str, str]:
    """An environment in which an engine is installed: without one, a pull begins otherwise."""
    env["PYTHONPATH"] += f"{os.pathsep}{FAKE}"
    return env


@pytest.fixture
def folder(gguf: Path, tmp_path: Path, env: dict[str, str]) -> Path:
    """A folder of the user's own with one model in it."""
    models = tmp_path / "models"
    models.mkdir()
    (models / "mine.gguf").write_bytes(gguf.read_bytes())
    os.utime(models / "mine.gguf", (0, 0))
    env["VLLAMA_FOLDERS"] = str(models)
    return models


def test_list(folder: Path, vllama: Vllama) -> None:
    done = vllama("list", "mine")
    assert done.returncode == 0
    header, row = done.stdout.splitlines()
    assert header.split() == [*COLUMNS]
    name, digest, size, *ago = row.split()
    assert name == "mine:latest"
    assert len(digest) == 12
    assert size.isdigit()
    assert ago[-5:] == ["years", "ago", "gguf", "F16", "folder"]
    assert header.index("ID") == row.index(digest)
    (model,) = json.loads(vllama("ls", "MINE", "--json").stdout)["models"]
    assert model["digest"].startswith(digest)
    assert model["path"] == str(folder / "mine.gguf")
    assert (model["format"], model["size"]) == ("gguf", (folder / "mine.gguf").stat().st_size)


def test_list_has_ollamas_columns_first_and_says_what_is_left_out(
    folder: Path, env: dict[str, str], tmp_path: Path, vllama: Vllama
) -> None:
    assert COLUMNS[:4] == ("NAME", "ID", "SIZE", "MODIFIED")
    manifests = tmp_path / "ollama/manifests/registry.ollama.ai/library/mine"
    manifests.mkdir(parents=True)
    (manifests / "broken").write_text("{}")
    env["OLLAMA_MODELS"] = str(tmp_path / "ollama")
    done = vllama("list", "mine")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["NAME", "mine:latest"]
    assert done.stderr.startswith("ignored: mine:broken (ollama, ")
    told = json.loads(vllama("list", "mine", "--json").stdout)
    assert [row["store"] for row in told["models"]] == ["folder"]
    (skipped,) = told["skipped"]
    assert (skipped["name"], skipped["store"]) == ("mine:broken", "ollama") and skipped["reason"]
    assert json.loads(vllama("list", "no-such", "--json").stdout)["skipped"] == []


def test_list_of_nothing(vllama: Vllama) -> None:
    shown = vllama("list", "no-such")
    assert (shown.stdout, "vllama recommend" in shown.stderr) == ("", True)
    assert json.loads(vllama("list", "no-such", "--json").stdout) == {
        "models": [],
        "skipped": [],
    }


def test_show(folder: Path, vllama: Vllama) -> None:
    done = vllama("show", "mine")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "  Model"
    assert "    architecture        llama" in lines
    assert "    context length      256" in lines
    assert "  Capabilities" in lines
    assert "Tensors" not in done.stdout
    verbose = vllama("show", str(folder / "mine.gguf"), "-v").stdout
    assert "  Tensors" in verbose
    assert "token_embd.weight" in verbose
    assert "assistant" in vllama("show", "mine", "--template").stdout
    assert "FROM " in vllama("show", "mine", "--modelfile").stdout
    assert vllama("show", "mine", "--system").stdout == "\n"
    shown = json.loads(vllama("show", "mine", "--json").stdout)
    assert shown["model_info"]["general.architecture"] == "llama"
    assert shown["capabilities"] == ["completion"]


def test_models_that_are_not_there(vllama: Vllama) -> None:
    # as Ollama has them: with the tag, and as it was typed
    for command, name in (("show", "nope:latest"), ("rm", "nope")):
        done = vllama(command, "nope")
        assert done.returncode == 1
        assert done.stderr.startswith(f"Error: model '{name}' not found\nHint: ")
    done = vllama("show", "b@d")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: invalid model name\nHint: ")


def test_a_damaged_model(folder: Path, vllama: Vllama) -> None:
    (folder / "broken.gguf").write_bytes((folder / "mine.gguf").read_bytes()[:1000])
    done = vllama("show", "broken")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr


def test_pull_and_rm(hub: StandInHub, vllama: Vllama) -> None:
    pulled = vllama("pull", HUB_NAME)
    assert (pulled.returncode, pulled.stdout) == (0, "")
    lines = pulled.stderr.splitlines()
    assert lines[0] == "pulling manifest"
    assert any(line.startswith("pulling ") and "100% of" in line for line in lines)
    assert lines[-1] == "success"
    assert NAME in vllama("list", "hf.co").stdout
    removed = vllama("rm", "nope", NAME)
    assert removed.returncode == 1
    assert removed.stdout == f"deleted '{NAME}'\n"
    assert "freed " in removed.stderr
    assert "model 'nope' not found" in removed.stderr
    assert NAME not in vllama("list", "hf.co").stdout


def test_a_revision_and_the_name_that_was_asked_for(hub: StandInHub, vllama: Vllama) -> None:
    hub.commit(
        HUB_NAME, dict(hub.repos[HUB_NAME].snapshots[hub.repos[HUB_NAME].refs["main"]]), "v1"
    )
    assert vllama("pull", f"{HUB_NAME}@v1").returncode == 0
    name = NAME.replace(":", "@v1:")
    assert name in vllama("list", f"{HUB_NAME}@v1").stdout
    (row,) = json.loads(vllama("list", "@v1", "--json").stdout)["models"]
    assert (row["name"], row["revision"]) == (name, "v1")
    assert ["revision", "v1"] in [line.split() for line in vllama("show", name).stdout.splitlines()]


def test_list_finds_what_was_asked_for(hub: StandInHub, gguf: Path, vllama: Vllama) -> None:
    hub.add_repo("Maker/Rocket", {"config.json": b"{}", "model.safetensors": b"w"})
    tags = ("gguf", "base_model:quantized:Maker/Rocket")
    hub.add_repo("unsloth/Rocket-GGUF", {"r-Q4_K_M.gguf": gguf}, tags=tags)
    done = vllama("pull", "maker/rocket")
    assert "using unsloth/Rocket-GGUF for Maker/Rocket\n" in done.stderr
    for part in ("maker/rocket", "Maker", "unsloth", "q4_k"):
        assert "hf.co/unsloth/Rocket-GGUF:Q4_K_M" in vllama("list", part).stdout


def test_rm_without_a_server(hub: StandInHub, vllama: Vllama) -> None:
    assert vllama("pull", HUB_NAME).returncode == 0
    done = vllama("rm", NAME, OLLAMA_HOST="127.0.0.1:9")
    assert (done.returncode, done.stdout) == (0, f"deleted '{NAME}'\n")
    assert done.stderr.startswith("  freed ")


def test_rm_of_a_copy(folder: Path, vllama: Vllama) -> None:
    assert vllama("cp", "mine", "copy").stdout == "copied 'mine' to 'copy'\n"
    assert vllama("rm", "copy").stdout == "deleted 'copy'\n"
    assert "mine:latest" in vllama("list").stdout


def test_rm_of_somebody_elses_file(folder: Path, vllama: Vllama) -> None:
    done = vllama("rm", "mine")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: cannot remove 'mine:latest'")
    assert (folder / "mine.gguf").exists()


@pytest.mark.parametrize("environ", [{}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_pull_of_what_is_not_there(
    environ: dict[str, str], hub: StandInHub, vllama: Vllama
) -> None:
    done = vllama("pull", "org/nothing", **environ)
    assert done.returncode == 1
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_ctrl_c_leaves_what_is_there(
    hub: StandInHub, with_engine: dict[str, str], vllama: Vllama
) -> None:
    hub.fault = lambda method, path, headers, server: (
        Fault(stall_after=1000) if server == "cdn" and method == "GET" else None
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "vllama", "pull", HUB_NAME],
        stderr=subprocess.PIPE,
        env=with_engine,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr:
        shown = ""
        try:
            while " of " not in shown:
                line = process.stderr.readline()
                assert line, shown
                shown += line
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
            process.wait()
        shown = process.stderr.read()
    assert shown.endswith(
        f"Interrupted. The partial download is saved; run 'vllama pull {HUB_NAME}' to resume.\n"
    )
    assert "Traceback" not in shown
    assert "Error" not in shown
    hub.fault = None
    assert vllama("pull", HUB_NAME).returncode == 0


@pytest.mark.slow
def test_too_little_memory(
    hub: StandInHub,
    with_engine: dict[str, str],
    vllama: Vllama,
    terminal: Callable[..., Terminal],
) -> None:
    little = {"OLLAMA_GPU_OVERHEAD": str(2**60)}
    refused = subprocess.run(
        [sys.executable, "-m", "vllama", "pull", HUB_NAME],
        env=with_engine | little,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 3
    assert "Q4_K_M needs " in refused.stderr and f"vllama pull {NAME}" in refused.stderr
    screen = terminal("pull", NAME, **little)  # what is named is fetched, and the warning stays
    screen.expect("warning: model requires more memory")
    screen.expect("success")
    assert screen.finish() == 0
    assert NAME in vllama("list").stdout


@pytest.mark.slow
def test_bars(hub: StandInHub, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("pull", HUB_NAME)
    screen.expect("pulling ")
    screen.expect("100%")
    screen.expect("success")
    assert screen.finish() == 0


@pytest.mark.parametrize("args", [("rm", "nope"), ("cp", "nope", "other")])
def test_what_is_to_be_removed_or_copied_is_not_pulled(vllama: Vllama, args: list[str]) -> None:
    done = vllama(*args)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "Hint: list installed models: vllama list"
