"""The section about Ollama, made of recorded numbers; and what `make bench-ollama` refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import ollama, versus
from bench.report import insert


def result(*, theirs=1.0, gpu_bytes=0, rounds=2, swap=None):
    """Make what `vllama bench --json` prints; `theirs` slows Ollama down by that factor."""
    rows = []
    for number in range(rounds):
        for side, factor in (("vllama", 1.0), ("Ollama", theirs)):
            for clients in (1, 16):
                row = {"round": number, "side": side, "step": "answers", "prompt": "short"}
                row |= {"clients": clients, "tokens_per_s": 60.0 / factor, "tokens": 64}
                row |= {"first_token_s": 0.1 * factor, "pieces": 64, "prompt_tokens": 76}
                rows.append(row | {"memory_bytes": 500e6 * factor})
            row = {"round": number, "side": side, "step": "load", "seconds": 0.8 * factor}
            rows.append(row | {"memory_bytes": 400e6 * factor, "gpu_bytes": gpu_bytes})
    servers = [
        {"name": name, "version": "1.0", "engine": engine}
        for name, engine in (("vllama", "llama-server"), ("Ollama", None))
    ]
    return {
        "rows": rows,
        "servers": servers,
        "rounds": rounds,
        "tokens": 64,
        "swap": swap,
        "remarks": [],
    }


@pytest.mark.parametrize(
    ("theirs", "verdicts"),
    [
        (1.0, ["no", "no", "no", "no"]),
        (1.6, ["no", "yes", "no", "yes"]),  # memory: 1/1.6 is 0.62
        (5.0, ["yes", "yes", "yes", "yes"]),
    ],
)
def test_each_claim_has_a_line(theirs, verdicts):
    lines = versus.claims(result(theirs=theirs)).splitlines()[2:]
    assert [line.split("|")[3].rpartition(":")[2].strip() for line in lines] == verdicts
    assert all(versus.NO_GPU in line for line in lines)
    assert f"{theirs:.2f} × [{theirs:.2f} … {theirs:.2f}] at 16 clients" in lines[0]
    assert "at 1 client;" in lines[1] and "at 1 client" not in lines[0]


def test_claims_on_a_gpu_and_without_a_measurement():
    assert versus.NO_GPU not in versus.claims(result(gpu_bytes=2**30))
    half = result(gpu_bytes=2**30)
    next(row for row in half["rows"] if row["step"] == "load")["gpu_bytes"] = 0
    assert versus.claims(half).count(versus.NO_GPU) == 4
    nothing = result() | {"rows": []}
    assert versus.claims(nothing).count("| not measured |") == 4


def test_where_ollama_is_ahead_is_said():
    text = versus.behind({"": result(theirs=0.5), ", busy": result(theirs=2.0)})
    assert "tokens/s, short prompts, 16 clients" in text and "cold load" in text
    assert "busy" not in text
    assert "nothing." in versus.behind({"": result(theirs=2.0)})


def test_the_section_is_put_between_its_markers():
    page = ollama.TARGET.read_text()
    body = versus.whole(result(), result(theirs=0.5), ["2 CPUs"], 12.3, ["a.gguf"])
    written = insert(page, body, versus.MARKERS)
    assert "in 12 minutes, 2 rounds, responses of 64 tokens" in written
    assert "| cold load, busy | 800 ms | 400 ms | 2.00 × [2.00 … 2.00] | **Ollama** |" in written
    assert "vllama: version 1.0 with llama-server; Ollama: version 1.0" in written
    assert "swap of models not measured: no second model" in written
    assert written.count("make bench-ollama: begin") == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [("SmolLM2-135M-Instruct.Q4_1", "smollm2-135m-instruct.q4_1"), ("a (b) c-", "a-b-c")],
)
def test_names_that_every_server_takes(name, expected):
    assert ollama.model_name(Path(f"/x/{name}.gguf")) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ollama", "/nowhere/ollama"], "cannot run '/nowhere/ollama': no such program"),
        (["--ollama", "sh", "--model-file", "/nowhere.gguf"], "cannot read '/nowhere.gguf'"),
        (["--ollama", "sh", "--model-file", __file__, "--swap-file", "no"], "SWAP_FILE=path"),
    ],
)
def test_what_is_missing_is_said(arguments, words):
    with pytest.raises(SystemExit, match="cannot") as error:
        ollama.check(ollama.parser().parse_args(arguments))
    assert words in str(error.value)
