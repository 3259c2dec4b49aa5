"""The example that measures a served model's accuracy."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_process import Server

PROGRAM = Path(__file__).parents[2] / "examples" / "gsm8k" / "evaluate.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("evaluate", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 + 4 = 7\n#### 7", 7),
        ("#### 1,234.5 euros, not 9", 1234.5),
        ("The answer is -12.", -12),
        ("First 5, then 8", 8),
        ("#### none, but before it 3", 3),
        ("no idea", None),
    ],
)
def test_the_number_of_an_answer(example, text: str, number: float | None) -> None:
    assert example.find_number(text) == number


def test_the_interval_is_wilsons(example) -> None:
    assert example.compute_interval(30, 40) == pytest.approx((0.598, 0.858), abs=0.001)
    assert example.compute_interval(0, 40)[0] == pytest.approx(0)


def test_every_problem_of_our_own_has_a_number(example) -> None:
    problems = example.read_problems(PROGRAM.with_name("problems.jsonl"))
    assert len({problem.question for problem in problems}) == 40
    assert all(problem.number > 0 for problem in problems)


@pytest.mark.slow
def test_a_served_model_is_measured(tmp_path: Path) -> None:
    """The fake engine's answer ends in "tok7": two of the four problems are right by that."""
    rows = [{"question": f"q{n}", "answer": f"#### {n}"} for n in (1, 7, 8, 7, 9)]
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    with Server(tmp_path / "home") as server:
        name = server.model("solver")

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            url = ("--url", f"{server.url}/v1")
            command = [sys.executable, str(PROGRAM), *arguments, *url, "--data", str(data)]
            return subprocess.run([*command, "--shots", "1"], capture_output=True, text=True)

        done = run(name, "--json")
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert (summary["problems"], summary["right"], summary["tokens"]) == (4, 2, 32)
        assert "2 of 4 right: 50.0%" in run(name).stdout
        missing = run("nothing")
        assert missing.returncode == 1
        assert "model 'nothing' not found" in missing.stdout.replace("\n", " ")
        assert "4 of 4 problems were not answered" in missing.stdout
        assert "right:" not in missing.stdout  # an answer that never came is no wrong one
