"""Things by their names: `show` of each list, and what is not found."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import Vllama
from tests.cli.stub import StubServer
from vllama.accounts.usage.entries import Amounts, Served, encode_entry, name_day
from vllama.accounts.usage.money import UNIT
from vllama.scheduler.slot_cache.store import Saved

NODE = {"name": "box", "state": "up", "trouble": "", "ram_free": 23 << 30, "gpu_free": 0}
NODE |= {"models": ["a:1b", "b:1b"], "loaded": [], "seen_at": "2026-11-01T00:00:00Z"}


@pytest.fixture
def named(env: dict[str, str], tmp_path: Path, stub: StubServer, vllama: Vllama) -> None:
    """A key that has been used, two conversations and a node."""
    data = tmp_path / "data"
    env |= {"VLLAMA_DATA_DIR": str(data)}
    stub.on("GET /api/nodes", {"nodes": [NODE]})
    for folder in ("usage", "conversations"):
        (data / folder).mkdir(parents=True)
    used = Amounts(requests=2, prompt_tokens=7, priced_requests=1, spend=UNIT // 8)
    served = [Served(day, "ann", "m", used) for day in ("2026-01-02", name_day(time.time()))]
    (data / "usage" / "1.journal").write_bytes(b"".join(map(encode_entry, served)))
    for number, name in enumerate(("one", "two")):
        saved = Saved(name=name, key="", model="m:latest", owner="", key_name=f"k{number}",
                      blocks=(), tokens=5, size_bytes=2_000_000, used_at=number)  # fmt: skip
        (data / "conversations" / f"{name}.json").write_bytes(msgspec.json.encode(saved))
        (data / "conversations" / f"{name}.slot").touch()
    assert vllama("keys", "add", "ann", "--rate", "60/min", "--expires", "30d").returncode == 0


@pytest.mark.parametrize(
    ("words", "lines", "fields"),
    [
        (
            ("keys", "show", "ann"),
            [r"models +-", "rate +60/min", r"expires +\S+ \(4 weeks from now\)", "spend +0.25"],
            {"rate": "60/min", "requests": 4, "prompt_tokens": 14, "spend": 0.25},
        ),
        (
            ("engines", "show", "llama.cpp"),
            ["name +llama-server", "formats +gguf", "installed +no", r"download +\d+ MB"],
            {"name": "llama-server", "installed": False, "version": None},
        ),
        (
            ("nodes", "show", "box"),
            ["state +up", "ram free +23.0 GiB", "models +a:1b, b:1b", r"seen +2026\S+ \(.* ago\)"],
            NODE,
        ),
        (
            ("cache", "show", "m"),
            ["conversations +2", "tokens +10", "size +4 MB"],
            {"model": "m:latest", "conversations": 2, "size_bytes": 4_000_000},
        ),
        (("cache", "show", "m", "--key", "k1"), ["conversations +1"], {"tokens": 5}),
    ],
)
@pytest.mark.usefixtures("named")
def test_show(
    words: tuple[str, ...], lines: list[str], fields: dict[str, Any], vllama: Vllama
) -> None:
    shown = vllama(*words)
    assert shown.returncode == 0, shown.stderr
    for line in lines:
        assert re.search(f"(?m)^{line}$", shown.stdout), (line, shown.stdout)
    told = json.loads(vllama(*words, "--json").stdout)
    assert {name: told[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("words", "code", "error", "hint"),
    [
        # nothing has this name
        (("keys", "show", "an"), 1, "key 'an' not found", "did you mean ann?"),
        (("keys", "revoke", "bob"), 1, "key 'bob' not found", "list the keys: vllama keys"),
        (("keys", "rm", "bob"), 1, "key 'bob' not found", "list the keys: vllama keys"),
        (("keys", "rotate", "bob"), 1, "key 'bob' not found", "list the keys: vllama keys"),
        (("keys", "change", "bob", "--rate", "1/s"), 1, "key 'bob' not found", "vllama keys"),
        (("nodes", "show", "bax"), 1, "node 'bax' not found", "list the nodes: vllama nodes"),
        (("cache", "show", "x"), 1, "no conversations of 'x' are stored", "vllama cache"),
        (("show", "x"), 1, "model 'x:latest' not found", "pull it"),
        (("requests", "1-1"), 1, "capture '1-1' not found", "vllama requests"),
        (("engines", "remove", "vllm"), 1, "cannot remove vLLM: it is not installed", ""),
        # no such file
        (("requests", "no.json"), 1, "cannot read the capture 'no.json': No such file", ""),
        (("batch", "no.jsonl"), 1, "cannot read 'no.jsonl': No such file", ""),
        (("create", "x", "-f", "no"), 1, "cannot read the Modelfile 'no': No such file", "-f"),
        (("show", "./no.gguf"), 1, "cannot find a model at", "no such file"),
        # a word that is none of a fixed list
        (("engines", "show", "vlm"), 2, "cannot use engine 'vlm'", "did you mean vllm?"),
        (("launch", "zzz"), 2, "cannot launch 'zzz': unknown tool", "choose one of"),
        (("keys", "shw", "ann"), 2, "No such command 'shw'", "did you mean show?"),
    ],
)
@pytest.mark.usefixtures("named")
def test_not_found(
    words: tuple[str, ...], code: int, error: str, hint: str, vllama: Vllama
) -> None:
    done = vllama(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert error in done.stderr and hint in done.stderr, done.stderr
