"""Which special tokens are read, which are noise, and which an engine is asked to keep."""

import pytest

from vllama.chat.parsers.marks import PRESERVED, compile_tokens, find_noise, has_marks


@pytest.mark.parametrize(
    ("tokens", "noise", "marks"),
    [
        (("<s>", "<|im_end|>", "<|reserved_1|>"), "<s><|im_end|><|reserved_1|>", False),
        (("<|tool_call_start|>", "<|im_end|>"), "<|im_end|>", True),
        (("<|channel>", "<channel|>", '<|"|>', "<eos>"), "<eos>", True),
        (("<|channel|>", "<|message|>", "<|constrain|>"), "", True),
        (("<mm:think>", "<|END_RESPONSE|>"), "<mm:think><|END_RESPONSE|>", True),
        (("｜DSML｜", "</arg_key>", "</parameter>"), "", False),
        ((), "", False),
    ],
)
def test_what_a_token_is(tokens, noise, marks):
    assert "".join(find_noise(tokens).findall("".join(tokens))) == noise
    assert has_marks(tokens) is marks
    assert compile_tokens(tokens).sub("", f"a{''.join(tokens)}b") == "ab"


def test_marks_of_calls_are_preserved_and_ends_of_texts_are_not():
    assert {"<|tool_call_start|>", "[TOOL_CALLS]", "<|python_tag|>", "<tool_call>"} <= {*PRESERVED}
    assert not {"<|end|>", "<|eot_id|>", "<think>", "[THINK]"} & {*PRESERVED}
