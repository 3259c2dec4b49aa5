"""What llama.cpp's timings say of tokens: lines that llama-cpp-python 0.3.36 printed.

The comment of each case tells what was asked for; the counts are those of its own `usage`, and one
more where the answer ended by itself.
"""

import pytest

from vllama.chat.engine.events import EngineUsage
from vllama.engines.llamacpp.llama_cpp_python import read_logged_usage

NAME = "llama_perf_context_print:"
POST = 'INFO:     127.0.0.1:51496 - "POST /v1/completions HTTP/1.1" 200 OK'


def timings(prompt_ms, prompt, ms, runs):
    """Return the lines at the end of a generation."""
    return [
        f"{NAME}        load time =     115.87 ms",
        f"{NAME} prompt eval time = {prompt_ms:10.2f} ms / {prompt:5d} tokens "
        "(   23.16 ms per token,    43.18 tokens per second)",
        f"{NAME}        eval time = {ms:10.2f} ms / {runs:5d} runs   "
        "(    8.04 ms per token,   124.31 tokens per second)",
        f"{NAME}       total time =     180.00 ms / {prompt + runs:5d} tokens",
        f"{NAME}    graphs reused =          6",
    ]


def hit(cached, rest):
    """Return the line of a prompt of which a part is in the KV cache."""
    return f"Llama.generate: {cached} prefix-match hit, remaining {rest} prompt tokens to eval"


ALL = "Llama.generate: full prompt already cached, skipping reset"

CASES = {
    "8 tokens, nothing cached": ([POST, *timings(115.8, 5, 56.31, 7)], 5, 8),
    "8 tokens, all but the last of the prompt cached": (
        [POST, hit(4, 1), *timings(0, 1, 55.46, 8)],
        5,
        8,
    ),
    "8 tokens, a part of the prompt cached": ([hit(24, 9), *timings(46.88, 9, 56.3, 7)], 33, 8),
    "1 token": ([*timings(13.74, 5, 0, 1)], 5, 1),
    "2 tokens": ([*timings(13.74, 2, 7.27, 1)], 2, 2),
    "1 token, all but the last of the prompt cached": ([hit(4, 1), *timings(0, 1, 6.93, 1)], 5, 1),
    "2 tokens, all but the last of the prompt cached": ([hit(1, 1), *timings(0, 1, 13.8, 2)], 2, 2),
    "1 token, after 1 token of the same prompt": ([ALL, *timings(0, 1, 0, 1)], None, 1),
    "2 tokens, after 1 token of the same prompt": ([ALL, *timings(0, 1, 6.97, 1)], None, 2),
    "1 token of a prompt of 1": ([POST, *timings(0, 1, 6.83, 1)], 1, 1),
    "3 tokens of a prompt of 1": ([POST, *timings(0, 1, 32.74, 3)], 1, 3),
    "the end after 15 tokens": ([*timings(149.11, 32, 109.43, 15)], 32, 16),
    "the end after 15 tokens, all but the last of the prompt cached": (
        [hit(31, 1), *timings(0, 1, 114.95, 16)],
        32,
        16,
    ),
    "a prompt of two batches and one token": ([*timings(5567.05, 1025, 24.34, 2)], 1025, 3),
    "after another answer": (
        [hit(9, 3), *timings(9, 3, 10, 7), POST, *timings(20, 4, 10, 9)],
        4,
        10,
    ),
    "after an answer whose client left": (
        [POST, hit(9, 3), "disconnected", POST, hit(8, 6), *timings(20, 6, 10, 9)],
        14,
        10,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_what_was_generated_and_the_prompt_is_counted_whole(case):
    lines, prompt, completion = CASES[case]
    usage = read_logged_usage(lines)
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt, completion)


@pytest.mark.parametrize(
    ("case", "cached"),
    [
        ("8 tokens, nothing cached", 0),
        ("8 tokens, a part of the prompt cached", 24),
        ("1 token, all but the last of the prompt cached", 4),
        ("after another answer", 0),
        ("after an answer whose client left", 8),
    ],
)
def test_the_cached_part_of_a_prompt_is_told(case, cached):
    details = read_logged_usage(CASES[case][0]).prompt_tokens_details
    assert details == {"cached_tokens": cached}


def test_a_prompt_of_unknown_length_has_an_unknown_cached_part():
    lines = CASES["1 token, after 1 token of the same prompt"][0]
    assert read_logged_usage(lines) == EngineUsage(completion_tokens=1)


def test_lines_of_older_versions_are_read_too():
    lines = [
        "llama_print_timings: prompt eval time =     115.80 ms /     5 tokens",
        "llama_print_timings:        eval time =      56.31 ms /     7 runs",
    ]
    usage = read_logged_usage(lines)
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 8)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [POST, hit(9, 3)],
        timings(20, 4, 10, 9)[2:],
        # two of them are of different generations, or tokens were drafted
        [hit(9, 3), *timings(20, 4, 10, 9)],
    ],
    ids=["nothing", "no timings", "the beginning is lost", "numbers that do not agree"],
)
def test_what_does_not_tell_is_no_count(lines):
    assert read_logged_usage(lines) is None
