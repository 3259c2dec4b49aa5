"""`vllama verify`: what is refused before any engine is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Vllama
from tests.tiny import write_tiny_gguf
from vllama.base.errors import ConfigError
from vllama.lab.commands.verify import Peer, parse_sides


@pytest.mark.parametrize(
    ("engines", "model", "sides"),
    [
        ("a,b", "m", (Peer("a", "m"), Peer("b", "m"))),
        (" a , b=./x.gguf", "m", (Peer("a", "m"), Peer("b", "./x.gguf"))),
        ("a=x,a=org/y:Q8_0", None, (Peer("a", "x"), Peer("a", "org/y:Q8_0"))),
    ],
)
def test_engines_with_and_without_models_of_their_own(engines, model, sides):
    assert parse_sides(engines, model) == sides


@pytest.mark.parametrize(
    ("engines", "words"),
    [
        ("", "none specified"),
        ("a", "'a' names 1"),
        ("a,b,c", "names 3"),
        ("a=x,b", "verify with b: no model specified"),
    ],
)
def test_what_is_no_pair(engines, words):
    with pytest.raises(ConfigError, match=words):
        parse_sides(engines, None)


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the fake engine here, which is found by its entry point."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "fake_engine")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--engines", "fake,nothing"], 2, "no such engine"),
        (["--engines", "fake,mlx"], 3, "vllama engines install mlx-lm"),
        (["--engines", "fake,fake=./none.gguf"], 3, "/none.gguf'"),
        (["--engines", "fake,fake", "--prompts", "none.txt"], 2, "none.txt"),
        (["--engines", "fake,fake", "--min-agreement", "2"], 2, "min-agreement"),
        ([], 2, "--engines"),
    ],
)
def test_refusals(arguments, code, words, tmp_path: Path, vllama: Vllama) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    done = vllama("verify", str(model), *arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr and done.stdout == ""


def test_prompts_from_stdin_are_read_first(vllama: Vllama) -> None:
    done = vllama("verify", "m", "--engines", "fake,fake", "--prompts", "-", stdin="[1]")
    assert done.returncode == 2
    assert "number 1 has no text" in done.stderr
