"""vllm-lens: when it is switched on, what it is asked, and how its answers are read."""

import base64
import json
import struct
from dataclasses import replace

import pytest

from tests.engines.test_vllm import PROGRAM, launch, traits
from tests.facts import H100, INFO, VLLM_HERE, bundle, facts, make_need
from vllama.base.errors import EngineMissing, UpstreamError
from vllama.chat.inspect import Steering, WholeReader
from vllama.engines.vllm.adapter import ENGINE
from vllama.engines.vllm.lens import PLUGIN, Lens
from vllama.models.types import Format
from vllama.plan.choose import make_plan

WITH_PLUGIN = replace(PROGRAM, plugins=(PLUGIN,))
# 1 x 2 x 2 numbers, as vllm-lens 1.3.0 packs them
PACKED = "KLUv/SAQgQAAAACAPwAAAEAAAEBAAACAQA=="


def answer(**changes):
    tensor = {
        "data": PACKED, "dtype": "float32", "original_dtype": "torch.float32",
        "shape": [1, 2, 2], "compression": "zstd",
    }  # fmt: skip
    return json.dumps(
        {
            "choices": [{"index": 0, "text": "b", "token_ids": [8, 9], "prompt_token_ids": [7]}],
            "activations": {"residual_stream": tensor | changes},
        }
    ).encode()


def test_the_plug_in_is_only_awake_where_it_is_asked_for():
    assert "VLLM_LENS_DISABLE" not in launch().env
    assert launch(WITH_PLUGIN).env["VLLM_LENS_DISABLE"] == "1"
    theirs = {"VLLM_LENS_DISABLE": "1"}
    assert launch(WITH_PLUGIN, environ=theirs, inspect=True).env["VLLM_LENS_DISABLE"] == "0"
    assert launch(WITH_PLUGIN).argv == launch().argv
    assert traits().inspector is None and traits().request_id_header == "x-request-id"
    # a request's vectors are found by the beginning of its id
    assert traits(inspect=True).inspector == Lens() and not traits(inspect=True).request_id_header


def test_the_plan_says_what_it_costs_and_what_is_missing():
    assert ENGINE.inspects
    model = bundle(format=Format.SAFETENSORS)
    here = replace(VLLM_HERE, plugins=(PLUGIN,))
    plan = make_plan(facts(H100, (here,), inspect=True), model, INFO, make_need())
    assert "eager mode, which is slower, because of --inspect" in plan.reasons
    assert "--enforce-eager" in plan.settings.tuned_args and plan.settings.inspect
    plan = make_plan(facts(H100, (here,)), model, INFO, make_need())
    assert "--enforce-eager" not in plan.settings.tuned_args and not plan.settings.inspect
    with pytest.raises(EngineMissing, match="vLLM needs vllm-lens; to install it: vllama engines"):
        make_plan(facts(H100, (VLLM_HERE,), inspect=True), model, INFO, make_need())


def test_what_it_is_asked():
    vector = Steering(vector=struct.pack("<2f", 1, 2), layers=(3, 4), strength=0.5)
    asked = Lens().ask((), [vector])
    assert set(asked) == {"vllm_xargs"}
    (told,) = json.loads(asked["vllm_xargs"]["apply_steering_vectors"])
    assert (told["layer_indices"], told["scale"]) == ([3, 4], 0.5)
    assert told["activations"]["shape"] == [2, 2]
    numbers = struct.unpack("<4f", base64.b64decode(told["activations"]["data"]))
    assert numbers == (1, 2, 1, 2)
    assert Lens().ask((1,), ()) == {
        "vllm_xargs": {"output_residual_stream": [1]},
        "stream": False,
        "return_token_ids": True,
    }


def test_what_it_has_collected():
    collected = Lens().read(answer(), (5,))
    assert (collected.dtype, collected.shape) == ("float32", (1, 2, 2))
    assert struct.unpack("<4f", base64.b64decode(collected.data)) == (1, 2, 3, 4)
    assert collected.layers == (5,)
    assert collected.token_ids == [7, 8]  # the last token has been in no layer
    assert Lens().read(answer(original_dtype="torch.bfloat16"), (5,)).dtype == "bfloat16"


@pytest.mark.parametrize(
    "changes",
    [
        {"data": "%"}, {"data": PACKED[:-8]}, {"original_dtype": "torch.int8"}, {"shape": [1]},
        {"compression": "lz4"}, {"data": None},
    ],
)  # fmt: skip
def test_an_answer_in_another_form_is_an_error(changes):
    with pytest.raises(UpstreamError, match="unexpected data from vllm-lens"):
        Lens().read(answer(**changes), (5,))


def test_a_whole_answer_becomes_an_event():
    reader = WholeReader(1000)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "audio": None, "tool_calls": [call]}
    whole = {
        "id": "x", "object": "chat.completion", "activations": {"a": 1},
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 1},
    }  # fmt: skip
    data = json.dumps(whole).encode()
    half = data.index(b"}") + 1  # the end of an inner object is none
    assert reader.feed(data[:half]) == [] and not reader.pending
    event, done = reader.feed(data[half:])
    assert done == b"[DONE]" and reader.close() == []
    # what engines make of deltas is made of it, too: `chat.engine.deltas`
    assert json.loads(event) == {name: whole[name] for name in ("id", "choices", "usage")}


def test_an_answer_that_is_too_long_is_an_error():
    with pytest.raises(UpstreamError):
        WholeReader(1000).feed(b"x" * 2000)
