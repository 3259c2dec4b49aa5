"""Rows of a measurement in; ratios, a table, remarks and a picture out."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from vllama.lab.bench.findings import (
    NEITHER,
    draw_chart,
    make_findings,
    make_remarks,
    make_table,
    serialize,
)
from vllama.lab.bench.load import ClientView, make_messages, summarize
from vllama.lab.bench.rounds import describe_left

SIDES = ("vllama", "Ollama")


def asked(side, number, *, speed=50.0, first_s=0.1, prompt="short", clients=1, **more):
    row = {"round": number, "side": side, "step": "answers", "prompt": prompt, "clients": clients}
    values = {"tokens_per_s": speed, "first_token_s": first_s, "memory_bytes": 2**29}
    counts = {"prompt_tokens": 76.0, "tokens": 64.0, "pieces": 64.0}
    return {**row, **values, **counts, **more}


def loaded(side, number, seconds, memory_bytes=2**20):
    row = {"round": number, "side": side, "step": "load"}
    return {**row, "seconds": seconds, "memory_bytes": memory_bytes, "gpu_bytes": 0}


def test_ratios_are_of_one_round():
    rows = [
        asked("vllama", 0, speed=40), asked("Ollama", 0, speed=20),
        asked("Ollama", 1, speed=100), asked("vllama", 1, speed=110),
        asked("vllama", 2, speed=300), asked("Ollama", 2, speed=200),
        asked("vllama", 3, speed=9000),  # nobody to hold it against
    ]  # fmt: skip
    speed = make_findings(rows)[0]
    ratio = speed.compute_ratio("vllama", "Ollama")
    assert (ratio.min, ratio.median, ratio.max) == (1.1, 1.5, 2.0)
    assert speed.title == "tokens/s, short prompts, 1 client"


@pytest.mark.parametrize(
    ("speeds", "times", "faster", "sooner"),
    [
        ([(60, 50), (70, 50)], [(0.2, 0.1), (0.3, 0.1)], "vllama", "Ollama"),
        ([(40, 50), (45, 50)], [(0.1, 0.2), (0.1, 0.3)], "Ollama", "vllama"),
        ([(40, 50), (60, 50)], [(0.1, 0.2), (0.3, 0.2)], NEITHER, NEITHER),
        ([(50, 50), (60, 50)], [(0.2, 0.2), (0.3, 0.2)], NEITHER, NEITHER),
    ],
)
def test_who_is_ahead(speeds, times, faster, sooner):
    rows = [
        asked(side, number, speed=speeds[number][place], first_s=times[number][place])
        for number in range(2)
        for place, side in enumerate(SIDES)
    ]
    by_metric = {each.metric: each.find_winner(*SIDES) for each in make_findings(rows)}
    assert (by_metric["tokens/s"], by_metric["first token"]) == (faster, sooner)


def test_a_table_tells_what_is_missing():
    rows = [
        asked("vllama", 0, speed=51.234, first_s=0.0414, clients=16),
        asked("Ollama", 0, speed=25.617, first_s=1.2345, clients=16, memory_bytes=None),
        loaded("vllama", 0, 0.81),
        loaded("Ollama", 0, 0.9, memory_bytes=None),
    ]
    header, lines = make_table(make_findings(rows), SIDES)
    assert header == ("", "VLLAMA", "OLLAMA", "RATIO", "AHEAD")
    two = "2.00 × [2.00 … 2.00]"
    assert lines[0] == ("tokens/s, short prompts, 16 clients", "51.2", "25.6", two, "vllama")
    assert lines[1][1:3] == ("41 ms", "1.23 s")
    assert lines[2][:4] == ("cold load", "810 ms", "900 ms", "0.90 × [0.90 … 0.90]")
    assert lines[3] == ("memory, loaded", "1 MiB", "-", "-", "-")
    assert lines[4] == ("peak memory", "512 MiB", "-", "-", "-")


def test_one_server_alone():
    found = make_findings([asked("vllama", 0)])
    assert make_table(found, ["vllama"])[0] == ("", "VLLAMA")
    assert serialize(found, ["vllama"])[0]["ratios"] == {}
    assert make_remarks([asked("vllama", 0)], ["vllama"]) == []


def test_remarks_on_unequal_work():
    rows = [
        asked("vllama", 0, prompt_tokens=60.0),
        asked("Ollama", 0, prompt_tokens=39.0, tokens=40.0, pieces=20.0),
        asked("vllama", 0, prompt="long"),
        asked("Ollama", 0, prompt="long", prompt_tokens=76.5),  # within what is no matter
        {"round": 0, "side": "Ollama", "step": "swap", "seconds": None},
    ]
    assert make_remarks(rows, SIDES) == [
        "different workload: short prompts have 60.0 tokens at vllama, 39.0 tokens at Ollama",
        "different workload: short responses have 64.0 tokens at vllama, 40.0 tokens at Ollama",
        "Ollama reports 40.0 tokens but sent 20.0 pieces (short prompts)",
        "no swap at Ollama: it keeps both models loaded; OLLAMA_MAX_LOADED_MODELS=1 makes it swap",
    ]


def test_a_summary_of_answers():
    answers = [
        ClientView(first_token_s=first_s, pieces=3, tokens=4, prompt_tokens=10)
        for first_s in (0.1, 0.5, 0.2)
    ]
    told = summarize(answers, wall_s=2.0)
    assert told["tokens_per_s"] == 6.0
    assert told["first_token_s"] == 0.2
    assert (told["pieces"], told["tokens"], told["prompt_tokens"]) == (3, 4, 10)


def test_prompts_differ_from_their_first_words_on():
    one, same, other = (make_messages("short", key) for key in ("a", "a", "b"))
    assert one == same
    assert one[0]["content"][:8] != other[0]["content"][:8]
    assert len(make_messages("long", "a")[1]["content"].split()) > 800


def test_a_picture_has_a_bar_for_each_value():
    rows = [
        asked("vllama", 0, speed=100.0), asked("vllama", 1, speed=50.0),
        asked("A&B", 0, speed=25.0), asked("A&B", 1, speed=25.0),
        loaded("vllama", 0, 0.5),
    ]  # fmt: skip
    root = ElementTree.fromstring(draw_chart(make_findings(rows), ("vllama", "A&B"), "<title>"))
    space = "{http://www.w3.org/2000/svg}"
    texts = [each.text for each in root.iter(f"{space}text")]
    assert "<title>" in texts and "A&B" in texts and "not measured" in texts
    bars = list(root.iter(f"{space}rect"))[2:]  # behind those of the legend
    widths = [float(bar.get("width")) for bar in bars]
    assert widths[0] == pytest.approx(3 * widths[1])  # medians: 75 and 25
    assert "prefers-color-scheme: dark" in root.find(f"{space}style").text


@pytest.mark.parametrize(
    ("passed_s", "done", "left"),
    [(0.0, 0, ""), (30.0, 2, ", 2 minutes left"), (9.0, 9, ", 10 seconds left")],
)
def test_the_time_that_is_left(passed_s, done, left):
    assert describe_left(passed_s, done, 10) == left
