"""`vllama engines` and what `serve` offers, with an engine of another package and a fake uv."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import Vllama
from tests.engines.releases import Releases, make_build
from tests.machine.environments.installer import Fake
from tests.server_process import FAKE, Server
from vllama.engines.llamacpp.llama_server import BUILDS, RECIPE, TAG
from vllama.machine.detect import detect

pytestmark = pytest.mark.slow  # processes of their own

PAINTER = Path(__file__).parent / "painter"
INSTALL = ("engines", "install", "paint", "--yes")


@pytest.fixture
def uv(tmp_path: Path) -> Fake:
    return Fake(tmp_path / "uv")


@pytest.fixture
def env(env: dict[str, str], uv: Fake, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Let the package of the engine be installed, for this process and those below it."""
    for folder in (FAKE, PAINTER):
        monkeypatch.syspath_prepend(str(folder))
    # what this process has imported from another place would be found first
    for name in ("vllama_fake", "painter_engine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    env["PYTHONPATH"] = os.pathsep.join([str(FAKE), str(PAINTER), env["PYTHONPATH"]])
    return env | uv.environ | {"HOME": env["HOME"]}


def home(env: dict[str, str]) -> Path:
    return Path(env["HOME"]) / ".local/share/vllama/environments/painter"


def engine_row(vllama: Vllama) -> dict[str, object]:
    done = vllama("engines", "--json")
    assert done.returncode == 0, done.stderr
    return next(row for row in json.loads(done.stdout)["engines"] if row["name"] == "painter")


def test_installed_listed_and_removed(vllama: Vllama, env: dict[str, str], uv: Fake) -> None:
    before = engine_row(vllama)
    assert (before["installed"], before["version"]) == (False, None)
    assert before["hint"] == "install it with: vllama engines install painter"
    assert (before["requirements"], before["download_bytes"]) == (["paint==2.5"], 7_000_000)
    assert "vllama engines install painter (7 MB)" in vllama("engines").stdout

    done = vllama(*INSTALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"Painter 2.5 is installed in {home(env)}\n"
    asked, *told = done.stderr.splitlines()
    assert (asked, told[0]) == ("querying the package index for sizes", "Painter: paint==2.5")
    assert told[1] == "  download  about 7 MB"
    assert told[2].startswith(f"  disk      about 9 MB in {home(env)} (")
    assert "fetching paint: 100% of 7.3 MB" in told
    assert "trying paint --version" in told

    after = engine_row(vllama)
    assert (after["installed"], after["version"]) == (True, "2.5")
    assert (after["where"], after["path"]) == ("its own environment", str(home(env) / "bin/paint"))
    assert f"Painter is installed in {home(env)}" in vllama(*INSTALL).stdout
    assert uv.verbs == ["venv", "pip"]

    (home(env) / "bin/paint").write_text("#!/bin/sh\necho paint is wet\nexit 1\n")
    done = vllama(*INSTALL)  # tried, found wanting, and installed anew
    assert "does not start: paint is wet" in done.stderr
    assert done.returncode == 0 and "Painter 2.5 is installed" in done.stdout
    assert uv.verbs == ["venv", "pip"] * 2

    done = vllama(*INSTALL, "--upgrade", "--", "--pre")
    assert done.returncode == 0, done.stderr
    assert uv.calls[-1]["args"][-4:] == ["--upgrade", "--pre", "--", "paint==2.5"]

    refused = vllama("engines", "remove", "painter")  # it asks, and nobody is there
    assert refused.returncode == 2 and "pass --yes" in refused.stderr
    assert home(env).exists()
    assert vllama("engines", "remove", "painter", "--yes").stdout == "removed Painter\n"
    assert not home(env).exists()
    assert vllama("engines", "remove", "painter").returncode == 3
    lines = (home(env).parents[1] / "audit.jsonl").read_text().splitlines()
    acts = [(line["act"], line["subject"]) for line in map(json.loads, lines)]
    assert acts == [("engines install", "painter 2.5")] * 3 + [("engines remove", "painter")]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["engines", "install"], 2, "Missing argument 'ENGINES'"),
        (["engines", "mend", "painter"], 2, "choose one of list, install, remove, doctor"),
        (["engines", "install", "nothing"], 2, "no such engine"),
        (["engines", "check"], 2, "Missing argument 'ADAPTERS'"),
        (["engines", "check", "painter"], 2, "use the form MODULE:OBJECT"),
        (["engines", "list", "painter"], 2, "unexpected extra argument"),
        (["engines", "install", "painter"], 2, "pass --yes"),
        (["engines", "install", "external"], 3, "no known package"),
        (["engines", "remove", "llama.cpp"], 3, "not installed"),
    ],
)
def test_refusals(vllama: Vllama, args: list[str], code: int, message: str) -> None:
    done = vllama(*args)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


def test_adapters_are_checked(vllama: Vllama) -> None:
    done = vllama("engines", "check", "vllama.engines.vllm.adapter:ENGINE")
    assert (done.returncode, done.stdout.splitlines()[0].partition(": ")[2]) == (
        0,
        "no problems",
    )
    done = vllama("engines", "check", "vllama.engines.vllm.adapter:Vllm", "tests.ports:free_port")
    assert done.returncode == 1
    assert "vllama.engines.vllm.adapter:Vllm: 1 problems" in done.stdout
    assert "the entry point is the class Vllm" in done.stdout


def test_what_fails_is_told_in_a_sentence(vllama: Vllama, env: dict[str, str], uv: Fake) -> None:
    done = vllama("engines", "install", "painter", "--yes", "--", "nowhere")
    assert done.returncode == 1
    assert "Because nowhere was not found in the package registry" in done.stderr
    row = engine_row(vllama)
    assert row["installed"] is False
    broken_off = vllama("engines", "doctor")
    assert "the installation of painter was interrupted" in broken_off.stdout


def test_an_engine_elsewhere_is_named_in_the_settings(
    vllama: Vllama, env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "paint").write_text("#!/bin/sh\n")
    (tmp_path / "paint").chmod(0o755)
    config = tmp_path / "config.toml"
    config.write_text(f'[engine_paths]\npaint = "{tmp_path}"\n')
    env["VLLAMA_CONFIG"] = str(config)
    row = engine_row(vllama)
    assert (row["where"], row["path"]) == ("a path in the settings", str(tmp_path / "paint"))
    env["VLLAMA_ENGINE_PATHS"] = "painter=/nowhere"
    row = engine_row(vllama)
    assert row["installed"] is False and "at '/nowhere'" in str(row["missing"])
    env["VLLAMA_ENGINE_PATHS"] = "nothing=/nowhere"
    assert "cannot use engine 'nothing'" in vllama("engines").stderr


def test_it_asks_on_a_terminal(terminal, env: dict[str, str]) -> None:
    asked = terminal("engines", "install", "painter", **env)
    asked.expect("Install it? [Y/n]")
    assert "about 7 MB" in asked.screen
    asked.type("n\n")
    assert asked.finish() == 1 and "nothing was changed" in asked.screen
    assert not home(env).exists()
    asked = terminal("engines", "install", "painter", **env)
    asked.expect("Install it? [Y/n]")
    asked.type("\n")
    assert asked.finish() == 0
    assert "Painter 2.5 is installed" in asked.screen


def test_ctrl_c_ends_the_installer(env: dict[str, str], uv: Fake) -> None:
    command = [sys.executable, "-m", "vllama", *INSTALL, "--", "hang==1"]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert any("fetching hang" in line for line in process.stderr)
        installer = psutil.Process(uv.calls[-1]["pid"])
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=240) == 130
    assert not installer.is_running()


def served(tmp_path: Path, env: dict[str, str], *arguments: str) -> Server:
    return Server(tmp_path / "server", "--engine", "painter", *arguments, env=env | {
        "HOME": str(tmp_path / "server"), "PYTHONWARNINGS": "default",
    })  # fmt: skip


@pytest.mark.slow
def test_serve_installs_the_engine_that_was_asked_for(
    tmp_path: Path, env: dict[str, str], uv: Fake
) -> None:
    server = served(tmp_path, env, "--yes")
    model = server.model("plain")
    with server:
        assert "cannot use Painter: it is not installed" in server.output
        assert "Painter 2.5" in server.output
        told = (Path(server.env["VLLAMA_DATA_DIR"]) / "audit.jsonl").read_text()
        assert '"act": "engines install", "subject": "painter 2.5"' in told
        assert (
            server.post("/api/generate", {"model": model, "prompt": "x", "stream": False})[0] == 200
        )
    assert uv.verbs == ["venv", "pip"]


@pytest.mark.slow
def test_serve_says_how_to_install_it_where_nobody_can_be_asked(
    tmp_path: Path, env: dict[str, str], uv: Fake
) -> None:
    server = served(tmp_path, env)
    done = subprocess.run(
        server.command, env=server.env, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 3
    assert "cannot use Painter: it is not installed" in done.stderr
    assert "install it with: vllama engines install painter" in done.stderr
    assert uv.calls == []


def test_versions_beside_each_other(vllama: Vllama, env: dict[str, str]) -> None:
    def install(*more: str) -> str:
        done = vllama(*INSTALL, *more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    install()
    beside = home(env).with_name("painter@3.0")
    told = install("--version", "3.0")
    assert f"Painter 3.0 is installed in {beside}" in told and "stays in use" in told
    assert "--engines painter,painter@3.0" in told
    assert engine_row(vllama)["version"] == "2.5"
    assert "now using " in install("--version", "3.0")
    assert engine_row(vllama)["version"] == "3.0"
    assert "now using " in install()
    assert engine_row(vllama)["version"] == "2.5"
    install("--version", "3.0")
    removed = vllama("engines", "remove", "painter", "--yes", "--version", "3.0")
    assert removed.returncode == 0 and not beside.exists()
    assert engine_row(vllama)["version"] == "2.5"
    assert vllama(*INSTALL, "--version", "3; rm").returncode == 3
    lines = (home(env).parents[1] / "audit.jsonl").read_text().splitlines()
    acts = [(line["act"], line["subject"], line["after"]) for line in map(json.loads, lines)]
    assert acts == [
        ("engines install", "painter 2.5", {}),
        ("engines install", "painter 3.0", {}),
        *(("engines use", "painter", {"in use": f"painter{at}"}) for at in ("@3.0", "", "@3.0")),
        ("engines remove", "painter 3.0", {}),
    ]


@pytest.mark.slow
def test_serve_offers_it_on_a_terminal(terminal, env: dict[str, str], uv: Fake) -> None:
    asked = terminal("serve", "--engine", "painter", "--port", "0", **env)
    asked.expect("Install it now (other engines: vllama engines)? [Y/n]")
    asked.type("n\n")
    assert asked.finish() == 3
    asked = terminal("serve", "--engine", "painter", "--port", "0", **env)
    asked.expect("Install it now (other engines: vllama engines)? [Y/n]")
    asked.type("y\n")
    asked.expect("listening on")
    asked.type("\x03")
    assert asked.finish() == 0
    assert uv.verbs == ["venv", "pip"]


def test_the_project_s_own_build_from_a_mirror(vllama: Vllama, env: dict[str, str]) -> None:
    if not any(way.archive for way in RECIPE.wheels_for(detect())):
        pytest.skip("the project has no build for this machine")
    archives = {
        tag: {way.archive.name.format(tag=tag): make_build(tag) for way in BUILDS if way.archive}
        for tag in (TAG, "b99999")
    }
    with Releases(archives) as releases:
        env["VLLAMA_RELEASES_URL"] = releases.url
        installed = vllama("engines", "install", "llama-server", "--yes")
        assert installed.returncode == 0, installed.stderr
        assert f"llama.cpp {TAG}" in installed.stderr and "no setting" not in installed.stderr
        newest = vllama("engines", "install", "llama-server", "--yes", "--version", "latest")
        assert newest.returncode == 0, newest.stderr
        assert any("b99999" in path for path in releases.asked)
    again = vllama("engines", "install", "llama-server", "--yes", "--version", TAG)
    assert again.returncode == 0, again.stderr
    rows = json.loads(vllama("engines", "--json").stdout)["engines"]
    (row,) = (row for row in rows if row["name"] == "llama-server")
    assert row["where"] == "its own environment" and f"llama-{TAG}" in row["path"]
    assert vllama("engines", "remove", "llama-server", "--yes").returncode == 0
