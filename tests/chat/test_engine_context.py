from __future__ import annotations

import pytest

from vllama.chat.engine.context import bound_traits, compute_answer_limit, cut_middle
from vllama.chat.engine.traits import Traits

PLAIN = Traits(context_length=4096)
SHIFTS = Traits(context_length=4096, shifts_context=True)


@pytest.mark.parametrize(
    ("asked", "window"),
    [(128, 128), (4095, 4095), (4096, 4096), (10**9, 4096), (4, 4), (3, 4), (0, 4), (-5, 4)],
)
def test_what_a_request_may_use(asked: int, window: int) -> None:
    traits = bound_traits(PLAIN, asked)
    assert (traits.window, traits.context_length) == (window, 4096)
    assert (traits is PLAIN) == (window == 4096)
    assert bound_traits(PLAIN, asked) is traits  # what is worked out for traits is kept by identity
    assert bound_traits(traits, asked) is traits


def test_images_need_a_larger_context() -> None:
    sees = Traits(context_length=4096, takes_images=True)
    assert [bound_traits(sees, asked).window for asked in (4, 2048, 3000)] == [2048, 2048, 3000]
    assert bound_traits(Traits(context_length=512, takes_images=True), 4).window == 512


def test_many_different_contexts_are_not_all_kept() -> None:
    assert [bound_traits(PLAIN, size).window for size in range(100, 400)] == list(range(100, 400))


@pytest.mark.parametrize(
    ("traits", "num_ctx", "asked", "prompt", "shift", "limit"),
    [
        # the engine's own context ends the answer
        (PLAIN, None, None, None, True, None),
        (PLAIN, None, 100, None, True, 100),
        (PLAIN, None, 9000, None, True, None),
        (PLAIN, None, None, 96, True, 4000),
        (PLAIN, None, 9000, 96, True, 4000),
        (PLAIN, None, None, 96, False, 4000),
        (PLAIN, None, 0, 96, True, 0),
        # ten contexts of a request that asked for less
        (PLAIN, 128, None, None, True, 1280),
        (PLAIN, 128, None, 40, True, 1280),
        (PLAIN, 128, 2000, 40, True, 1280),
        (PLAIN, 128, 200, 40, True, 200),
        (PLAIN, 512, 3000, None, True, 3000),
        (PLAIN, 512, None, None, True, None),
        (PLAIN, 512, None, 100, True, 3996),
        # or what the prompt leaves
        (PLAIN, 128, None, 40, False, 88),
        (PLAIN, 128, 20, 40, False, 20),
        (PLAIN, 128, None, 127, False, 1),
        # an engine that shifts goes on for ever
        (SHIFTS, None, None, None, True, 40960),
        (SHIFTS, None, 50000, 96, True, 40960),
        (SHIFTS, None, 9000, 96, True, 9000),
        (SHIFTS, 128, None, None, True, 1280),
        (SHIFTS, 128, 2000, 40, True, 1280),
        (SHIFTS, None, None, 96, False, 4000),
        (SHIFTS, 128, None, 40, False, 88),
    ],
)
def test_how_long_an_answer_may_be(
    traits: Traits,
    num_ctx: int | None,
    asked: int | None,
    prompt: int | None,
    shift: bool,
    limit: int | None,
) -> None:
    traits = traits if num_ctx is None else bound_traits(traits, num_ctx)
    assert compute_answer_limit(asked, traits, prompt, shift=shift) == limit


@pytest.mark.parametrize(
    ("num_ctx", "keep", "head", "tail"),
    [
        (128, 4, 4, 62),  # 66 in all, as measured with Ollama
        (128, 5, 5, 62),
        (128, 0, 0, 64),
        (128, 20, 20, 54),
        (128, 127, 127, 0),
        (128, 500, 127, 0),
        (128, -1, 127, 0),
        (4, 4, 3, 0),
        (5, 0, 0, 3),
    ],
)
def test_a_prompt_is_cut_in_its_middle(num_ctx: int, keep: int, head: int, tail: int) -> None:
    tokens = list(range(600))
    assert cut_middle(tokens, num_ctx, keep) == tokens[:head] + tokens[600 - tail :]
