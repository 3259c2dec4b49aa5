"""`vllama bisect` as a process, with fake engines in which a regression is planted."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.machine.environments.installer import Fake
from tests.observe.captures.samples import make_capture
from tests.server_process import LIMIT_S, Server
from vllama.lab.commands.bisect import split_arguments
from vllama.observe.captures.format import encode_capture

pytestmark = pytest.mark.slow

BODY = {"model": "m", "prompt": "@tokens=2 hi", "stream": False}


@pytest.fixture
def home(tmp_path) -> Server:
    """Return a home with a capture `bug.json`; no server runs in it."""
    home = Server(tmp_path)
    answer = json.dumps({"response": "tok0 tok1 ", "done": True}).encode()
    capture = make_capture(path="/api/generate", body=json.dumps(BODY).encode(), answer=answer)
    (tmp_path / "bug.json").write_bytes(encode_capture(capture))
    fake = Fake(tmp_path / "installer")
    home.env |= {name: fake.environ[name] for name in ("PATH", "UV_TEST_LOG")}
    return home


def bisect(home: Server, *arguments: str):
    return subprocess.run(
        [sys.executable, "-m", "vllama", "bisect", str(home.home / "bug.json"), *arguments],
        env=home.env, text=True, capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def plant(home: Server, **wrong) -> None:
    """Have the model answer otherwise with all of these settings, from this version on."""
    home.model("m", "--wrong-with", json.dumps(wrong))


VERSIONS = ("--engine", "fake", "--good", "1.0", "--bad", "1.4")


@pytest.mark.slow
def test_the_first_bad_version_is_found_and_nothing_stays(home):
    plant(home, version="1.3")
    done = bisect(home, *VERSIONS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(
        "The answer changed with fake-server 1.3: 1.2 is the last good version.\n"
    )
    assert "fake-server 1.0: good: it answers like the capture" in done.stdout
    assert "fake-server 1.2: good" in done.stdout and "fake-server 1.3: bad" in done.stdout
    assert "fake-server 1.1" not in done.stdout  # four trials, not five
    assert "at temperature 0" in done.stderr
    assert not (home.home / "data" / "bisect").exists()


@pytest.mark.slow
def test_versions_that_do_not_install_are_skipped(home):
    plant(home, version="1.2")
    done = bisect(home, "--engine", "fake", "--versions", "1.0,nowhere,1.1,1.2", "--json", "--keep")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["last_good"], found["first_bad"], found["not_tried"]) == ("1.1", "1.2", [])
    assert (home.home / "data" / "bisect" / "1.1" / "fake").is_dir()


@pytest.mark.slow
def test_ends_that_answer_alike(home):
    plant(home, version="9")
    done = bisect(home, *VERSIONS)
    assert done.returncode == 3 and "fake-server 1.4 is to be the bad end" in done.stderr


@pytest.mark.slow
def test_a_command_decides(home):
    plant(home, version="1.2")
    script = 'grep -q tok1 "$VLLAMA_BISECT_CAPTURE" && test -n "$OLLAMA_HOST"'
    done = bisect(home, *VERSIONS, "--json", "--command", script)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["first_bad"] == "1.2"


@pytest.mark.slow
def test_the_guilty_settings_are_found(home):
    plant(home, kv_cache_type="q8_0", flash_attention=False)
    changes = ("kv_cache_type=q8_0", "flash_attention=false", "ctx=2048", "gpu_layers=0")
    done = bisect(home, "--engine", "fake", "--json", *(f"--bad-set={one}" for one in changes))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["settings"] == {"kv_cache_type": "q8_0", "flash_attention": "false"}
    assert "these 2 settings together" in found["result"]


@pytest.mark.slow
def test_the_guilty_arguments_of_the_engine_are_found(home):
    plant(home, **{"--tepid": True})
    arguments = "--bad-set=engine_args=--warm 1 --tepid --cold 2"
    done = bisect(home, "--engine", "fake", "--json", arguments, "--bad-set=ctx=2048")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["settings"] == {"engine_args": "--tepid"}


@pytest.mark.slow
def test_builds_are_named_by_their_paths(home):
    plant(home, version="1.2")
    assert bisect(home, *VERSIONS, "--keep").returncode == 0
    folder = home.home / "data" / "bisect"
    builds = ",".join(str(folder / f"1.{number}" / "fake") for number in (0, 2, 4))
    done = bisect(home, "--engine", "fake", "--json", "--versions", builds)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["first_bad"] == str(folder / "1.2" / "fake")
    assert (folder / "1.2" / "fake").is_dir()  # it was here already, and stays


@pytest.mark.slow
def test_what_differs_by_chance_is_blamed_on_nothing(home):
    plant(home)
    count = home.home / "count"
    script = f"echo >> {count}; test $(( $(wc -l < {count}) % 2 )) = 1"
    done = bisect(home, "--engine", "fake", "--bad-set", "ctx=2048", "--command", script)
    assert done.returncode == 3
    assert "is good 2 times of 3: the answers differ by chance" in done.stderr


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("", []),
        ("--a 1 --b -c x y", ["--a 1", "--b", "-c x y"]),
        ("--temp -1 --say 'two words' --a=b", ["--temp -1", "--say 'two words'", "--a=b"]),
    ],
)
def test_arguments_are_divided_as_a_shell_would(text, groups):
    assert split_arguments(text) == groups


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--engine", "fake", "--versions", "./nope,./none"], "there is no './nope'"),
        (["--versions", "./nope,./none"], "no engine is named"),
        ([], "no ends are named"),
        (["--good", "1"], "name both"),
        (["--good", "1", "--bad", "2", "--bad-set", "ctx=5"], "at once"),
        (["--good-set", "ctx=5", "--bad-set", "ctx=5"], "both ends are the same"),
        (["--good", "1", "--bad", "2"], "no engine is named"),
        (["--good", "1", "--bad", "2", "--engine", "llama-cpp-python"], "--compile"),
    ],
)
def test_mistakes(home, arguments, text):
    done = bisect(home, *arguments)
    assert done.returncode == 2 and text in done.stderr and not done.stdout
