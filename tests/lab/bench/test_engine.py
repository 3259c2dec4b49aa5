"""The engine and the clients together, over loopback."""

import json
import subprocess
import sys

import pytest

from bench.lab import ROOT, Lab

pytestmark = pytest.mark.slow

CASES = {
    # what the engine is told: what the client must call right and count
    "plain": ("@rate=0", 0, 20),
    "burst": ("@rate=0 @burst=4 @utf8 @think=3 @tool", 0, 20),
    "cut": ("@rate=0 @abort=5", 0, 5),
    "cut in a burst": ("@rate=0 @abort=5 @burst=4", 0, 5),
    "status": ("@status=503", 0, 0),
    "silent": ("@rate=0 @stall=2", 4, 2),
}


@pytest.fixture(scope="module")
def lab():
    with Lab() as lab:
        yield lab


def run(module, *words):
    done = subprocess.run(
        [sys.executable, "-m", module, *words], capture_output=True, text=True, cwd=ROOT
    )
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(("prompt", "errors", "tokens"), CASES.values(), ids=CASES)
def test_the_client_counts_what_the_engine_sent(lab, prompt, errors, tokens):
    words = ["--streams", "4", "--tokens", "20", "--prompt", prompt, "--validate"]
    code, found = run("bench.load", lab.engine_url, *words, "--timeout", "2" if errors else "20")
    assert (code, found["errors"], found["ok"]) == (int(errors > 0), errors, 4 - errors)
    assert found["tokens"] == 4 * tokens


@pytest.mark.parametrize("prefill", [(), ("--prefill",)])
def test_leaving_ends_all_streams(lab, prefill):
    words = ["--engine", lab.engine_url, "--api", "openai-chat", "--streams", "3"]
    code, found = run("bench.abort", lab.engine_url, *words, *prefill)
    assert (code, found["errors"]) == (0, 0)
