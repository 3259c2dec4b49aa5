"""What vLLM is given: memory, layout over GPUs, parsers. Tables of pure decisions."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import CPU, GIB, H100, INFO, MIB, VLLM_HERE, bundle, facts
from vllama.base.errors import NotEnoughMemory
from vllama.engines.argv import flag_number, flag_value, has_flag
from vllama.engines.base import Installation, Mode, Settings, TuningRequest
from vllama.engines.vllm.adapter import ENGINE
from vllama.engines.vllm.memory import count_token_bytes, parse_size
from vllama.engines.vllm.parallel import (
    Layout,
    can_divide,
    choose_layout,
    iterate_shapes,
)
from vllama.engines.vllm.parsers import choose_reasoning_parser, choose_tool_parser, read_registries
from vllama.machine.types import Platform, Vendor
from vllama.models.types import Format
from vllama.plan.choose import make_plan
from vllama.plan.types import Need

LLAMA_8B = replace(
    INFO,
    parameter_count=8_030_261_248,
    weights_bytes=16_060_522_496,
    context_length=131_072,
    block_count=32,
    head_count=32,
    head_count_kv=(8,),
    key_length=128,
    value_length=128,
    embedding_length=4096,
    vocab_size=128_256,
)
LLAMA_70B = replace(
    LLAMA_8B, weights_bytes=141_107_412_992, block_count=80, head_count=64, embedding_length=8192
)


def gpus(count: int, *, total: int = 80, free: int | tuple[int, ...] = 79) -> Platform:
    """Return a machine with so many GPUs; sizes in GiB."""
    frees = free if isinstance(free, tuple) else (free,) * count
    one = H100.accelerators[0]
    return replace(
        H100,
        accelerators=tuple(
            replace(
                one,
                index=number,
                uuid=f"GPU-{number}",
                total_bytes=total * GIB,
                free_bytes=frees[number] * GIB,
            )
            for number in range(count)
        ),
    )


OF_THE_LAUNCH = {field.name for field in fields(Settings)}


def wish(platform=H100, info=LLAMA_8B, **changes) -> TuningRequest:
    settings = Settings(mode=Mode.CHAT, alias="m:latest", context_length=8192)
    launch = {name: changes.pop(name) for name in OF_THE_LAUNCH & changes.keys()}
    values = {
        "settings": replace(settings, **launch),
        "platform": platform,
        "info": info,
        "installation": VLLM_HERE,
        "context_asked": False,
        "on_gpu": bool(platform.accelerators),
        "reserve_bytes": 512 * MIB,
    }
    return TuningRequest(**(values | changes))


# -- flags of the user -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "value"),
    [
        ((), None),
        (("--a", "1"), "1"),
        (("--a=2",), "2"),
        (("--a", "1", "--a", "3"), "3"),
        (("--a",), ""),
        (("--a", "--b"), ""),
        (("--a_b", "4"), None),
        (("x", "--b", "1"), None),
        (("-t", "-1"), "-1"),
    ],
)
def test_a_users_flag(args, value):
    assert flag_value(args, "--a", "-t") == value
    assert has_flag(args, "--a", "-t") is (value is not None)


def test_underscores_are_dashes_and_words_are_no_numbers():
    assert flag_value(("--max_num_seqs", "4"), "--max-num-seqs") == "4"
    assert flag_number(("--n", "auto"), "--n", default=7) == 7


# -- memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "size"),
    [
        (INFO, 30 * 3 * (64 + 64) * 2),
        (LLAMA_8B, 32 * 8 * 256 * 2),
        (replace(INFO, head_count_kv=None), 30 * 9 * 128 * 2),
        (replace(INFO, block_count=None), 0),
        (
            replace(
                INFO,
                architecture="deepseek_v3",
                block_count=61,
                metadata={
                    "deepseek_v3.attention.kv_lora_rank": 512,
                    "deepseek_v3.rope.dimension_count": 64,
                },
            ),
            61 * 576 * 2,
        ),
    ],
)
def test_what_a_token_takes_in_the_cache(info, size):
    assert count_token_bytes(info) == size
    assert count_token_bytes(info, fp8=True) == size // 2


def arguments(tuning) -> dict[str, str | None]:
    names = [word for word in tuning.settings.tuned_args if word.startswith("--")]
    return {name: flag_value(tuning.settings.tuned_args, name) for name in names}


def test_on_a_cpu_the_cache_is_given_in_bytes_and_prompts_are_read_whole():
    tuning = ENGINE.tune(wish(CPU, INFO, context_length=4096))
    got = arguments(tuning)
    assert got == {
        "--max-model-len": "4096",
        "--max-num-seqs": "128",
        "--kv-cache-memory-bytes": str(tuning.memory.kv_bytes),
        "--enforce-eager": "",
        "--no-enable-chunked-prefill": "",
        "--max-num-batched-tokens": str(4096 + 128),
        "--structured-outputs-config": '{"backend": "xgrammar", "disable_any_whitespace": true}',
    }
    assert tuning.memory.kv_bytes // count_token_bytes(INFO) >= 8 * 4096
    assert tuning.memory.weights_bytes == INFO.weights_bytes
    assert any("22.5 KiB each" in reason for reason in tuning.reasons)


def test_parallel_requests_have_room_for_a_whole_context_each_if_there_is_any():
    tuning = ENGINE.tune(wish(CPU, INFO, context_length=4096, parallel=32))
    assert arguments(tuning)["--max-num-seqs"] == "32"
    assert tuning.memory.kv_bytes // count_token_bytes(INFO) >= 32 * 4096


def test_the_cache_takes_half_of_what_is_free_at_most():
    small = replace(CPU, ram_available_bytes=4 * GIB)
    tuning = ENGINE.tune(wish(small, INFO, context_length=4096, parallel=64))
    assert tuning.memory.kv_bytes < GIB


def test_small_models_leave_room_for_one_another():
    """Text and vectors of three small models stand side by side on a machine of 24 GiB."""
    free = 22 * GIB
    for mode in (Mode.CHAT, Mode.EMBED) * 3:
        machine = replace(CPU, ram_total_bytes=24 * GIB, ram_available_bytes=free)
        tuning = ENGINE.tune(wish(machine, INFO, mode=mode, context_length=4096))
        assert tuning.memory.kv_bytes // count_token_bytes(INFO) >= 8 * 4096
        free -= (
            tuning.memory.weights_bytes
            + tuning.memory.kv_bytes
            + tuning.memory.compute_bytes
            + tuning.memory.fixed_bytes
        )
    assert free > 4 * GIB


def test_a_context_that_nobody_asked_for_shrinks_to_what_is_free():
    small = replace(CPU, ram_available_bytes=int(2.5 * GIB), ram_total_bytes=int(2.5 * GIB))
    tuning = ENGINE.tune(wish(small, INFO, context_length=8192))
    assert tuning.settings.context_length == 4096
    assert "reduced from 8192 to 4096" in tuning.reasons[0]
    asked = ENGINE.tune(wish(small, INFO, context_length=8192, context_asked=True))
    assert asked.settings.context_length == 8192


def test_what_other_models_of_ours_hold_counts_as_free_if_there_is_no_other_way():
    full = replace(CPU, ram_available_bytes=1 * GIB)
    tuning = ENGINE.tune(wish(full, INFO, context_length=8192))
    assert tuning.settings.context_length == 8192


@pytest.mark.parametrize(
    ("extra", "absent"),
    [
        (("--kv-cache-memory-bytes", "1G"), "--kv-cache-memory-bytes"),
        (("--gpu-memory-utilization=0.3",), "--kv-cache-memory-bytes"),
        (("-O3",), "--enforce-eager"),
        (("--enable-chunked-prefill",), "--no-enable-chunked-prefill"),
        (("--max-num-batched-tokens", "512"), "--no-enable-chunked-prefill"),
    ],
)
def test_nothing_is_decided_against_the_user(extra, absent):
    assert absent not in ENGINE.tune(wish(CPU, INFO, extra_args=extra)).settings.tuned_args


def test_a_context_too_long_to_be_read_whole_costs_the_seed():
    from vllama.engines.base import Settings

    for context, seeds in ((32_768, True), (65_536, False)):
        tuning = ENGINE.tune(wish(CPU, INFO, context_length=context, context_asked=True))
        settings = Settings(
            mode=Mode.CHAT, alias="m", context_length=context, tuned_args=tuning.settings.tuned_args
        )
        assert ("--no-enable-chunked-prefill" in tuning.settings.tuned_args) is seeds
        assert ("seed" in ENGINE.traits(bundle(), settings).parameters) is seeds


def test_vectors_know_no_seed_so_that_their_prompts_may_be_read_in_parts():
    tuning = ENGINE.tune(wish(CPU, INFO, mode=Mode.EMBED))
    assert not has_flag(
        tuning.settings.tuned_args, "--no-enable-chunked-prefill", "--max-num-batched-tokens"
    )


def test_a_gpu_is_shared_by_what_is_needed_of_it():
    tiny = ENGINE.tune(wish(info=INFO, context_length=8192))
    large = ENGINE.tune(wish(info=LLAMA_8B, context_length=131_072))
    assert 0.1 < float(arguments(tiny)["--gpu-memory-utilization"]) < 0.3
    assert 0.9 < float(arguments(large)["--gpu-memory-utilization"]) <= 0.92
    assert "--enforce-eager" not in large.settings.tuned_args


@given(
    free=st.integers(8, 80),
    weights=st.integers(1, 60),
    context=st.sampled_from([2048, 8192, 32_768, 131_072]),
)
def test_the_share_is_free_when_it_starts_if_the_model_fits(free, weights, context):
    info = replace(LLAMA_8B, weights_bytes=weights * GIB)
    platform = gpus(1, free=free)
    tuning = ENGINE.tune(wish(platform, info, context_length=context))
    share = float(arguments(tuning)["--gpu-memory-utilization"])
    assert 0 < share <= 0.92
    taken = (
        tuning.memory.weights_bytes
        + tuning.memory.kv_bytes
        + tuning.memory.compute_bytes
        + tuning.memory.fixed_bytes
    )
    if taken <= (free * GIB) - 512 * MIB:
        assert share * 80 <= free
        assert tuning.memory.kv_bytes >= tuning.settings.context_length * count_token_bytes(info)


def test_an_fp8_cache_holds_twice_as_much():
    half = ENGINE.tune(wish(kv_cache_type="q8_0", context_length=131_072))
    whole = ENGINE.tune(wish(context_length=131_072))
    assert arguments(half)["--kv-cache-dtype"] == "fp8"
    tokens = [int(next(r for r in t.reasons if "tokens of" in r).split(" tokens of")[0].split()[-1])
              for t in (whole, half)]  # fmt: skip
    assert tokens[1] == pytest.approx(2 * tokens[0], rel=0.01)


def test_an_fp8_cache_is_for_gpus_that_compute_in_it():
    old = replace(H100.accelerators[0], name="RTX 3090", compute_capability=(8, 6))
    tuning = ENGINE.tune(wish(replace(H100, accelerators=(old,)), kv_cache_type="q8_0"))
    assert "--kv-cache-dtype" not in tuning.settings.tuned_args
    assert any("no fp8 cache: it does not use the RTX 3090" in r for r in tuning.reasons)


def sharing(total: int, free: int) -> Platform:
    """Return a machine whose GPU's memory is the RAM; sizes in GiB."""
    one = replace(H100.accelerators[0], name="NVIDIA GB10", shares_ram=True)
    gpu = replace(one, total_bytes=total * GIB, free_bytes=free * GIB)
    ram = {"ram_total_bytes": total * GIB, "ram_available_bytes": free * GIB}
    return replace(H100, accelerators=(gpu,), **ram)


@pytest.mark.parametrize(
    ("total", "free", "weights", "most"),
    [
        (119, 112, 1, 0.28),
        (119, 112, 16, 0.38),
        (119, 60, 1, 0.2),
        (119, 112, 64, 0.8),
        (61, 55, 1, 0.4),
        (61, 55, 16, 0.65),
        (15, 13, 1, 0.5),
        (15, 13, 16, 2),  # it does not fit, and says so by its numbers
    ],
)
def test_on_shared_memory_the_cache_is_for_a_need_and_the_system_has_room(
    total, free, weights, most
):
    info = replace(LLAMA_8B, weights_bytes=weights * GIB)
    reserve = min(max(2 * GIB, total * GIB // 10), total * GIB // 4)
    request = wish(sharing(total, free), info, context_length=131_072, reserve_bytes=reserve)
    tuning = ENGINE.tune(request)
    got, memory = arguments(tuning), tuning.memory
    assert memory.total_bytes <= most * total * GIB
    cache = int(got["--kv-cache-memory-bytes"])
    assert memory.kv_bytes < cache <= memory.kv_bytes + GIB // 16
    assert cache >= tuning.settings.context_length * count_token_bytes(info)
    if memory.total_bytes <= free * GIB - reserve:
        assert float(got["--gpu-memory-utilization"]) * total * GIB <= free * GIB - reserve
    assert "of the RAM" in tuning.reasons[-1]


def test_on_shared_memory_the_user_s_own_sizes_stay():
    for own in (("--gpu-memory-utilization", "0.8"), ("--kv-cache-memory-bytes", "4G")):
        tuning = ENGINE.tune(wish(sharing(119, 112), extra_args=own))
        assert "--kv-cache-memory-bytes" not in tuning.settings.tuned_args


@pytest.mark.parametrize("silent", [1, 2])
def test_a_gpu_that_does_not_tell_its_memory_is_not_divided_by(silent):
    """Nor does it take along one that does."""
    two = gpus(2).accelerators
    mute = tuple(replace(gpu, total_bytes=0, free_bytes=0) for gpu in two[:silent])
    tuning = ENGINE.tune(wish(replace(H100, accelerators=(*mute, *two[silent:]))))
    assert tuning.settings.gpus == ((1,) if silent == 1 else ())
    assert ("--gpu-memory-utilization" in tuning.settings.tuned_args) is (silent == 1)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4G", 4 * GIB), ("4g", 4 * 10**9), ("1.5M", 3 * MIB // 2), ("7", 7), ("lots", 0), (None, 0)],
)
def test_a_size_as_vllm_reads_it(text, size):
    assert parse_size(text) == size


def test_the_users_own_size_is_what_is_counted():
    own = ("--kv-cache-memory-bytes", "4G")
    assert ENGINE.tune(wish(CPU, INFO, extra_args=own)).memory.kv_bytes == 4 * GIB
    assert ENGINE.tune(wish(extra_args=own)).memory.kv_bytes == 4 * GIB
    half = ENGINE.tune(wish(extra_args=("--gpu-memory-utilization", "0.5")))
    taken = (
        half.memory.weights_bytes
        + half.memory.kv_bytes
        + half.memory.compute_bytes
        + half.memory.fixed_bytes
    )
    assert taken == pytest.approx(40 * GIB, rel=0.01)
    assert "50% of each GPU" in half.reasons[1]


# -- layout ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "info", "expected"),
    [
        (gpus(1), LLAMA_8B, (1, 1, 1)),
        (gpus(4), LLAMA_8B, (1, 1, 1)),  # it fits one: the others are for other models
        # a second GPU rather than a context of 2048 tokens, where one has room for little more
        (gpus(2, total=24, free=23), replace(LLAMA_8B, weights_bytes=19 * GIB), (2, 1, 2)),
        (gpus(1, total=24, free=23), replace(LLAMA_8B, weights_bytes=19 * GIB), (1, 1, 1)),
        (gpus(2), LLAMA_70B, (2, 1, 2)),
        (gpus(8), LLAMA_70B, (2, 1, 2)),
        (gpus(8, total=24, free=23), LLAMA_70B, (8, 1, 8)),
        (gpus(3, total=24, free=23), replace(LLAMA_8B, weights_bytes=50 * GIB), (1, 3, 3)),
        (gpus(4, total=24, free=23), replace(LLAMA_8B, head_count=9, head_count_kv=(3,),
                                             weights_bytes=50 * GIB), (3, 1, 3)),
        (gpus(6, total=24, free=23), replace(LLAMA_8B, weights_bytes=90 * GIB), (1, 5, 5)),
    ],
)  # fmt: skip
def test_the_fewest_gpus_that_hold_the_model(platform, info, expected):
    tuning = ENGINE.tune(wish(platform, info))
    tensor = flag_number(tuning.settings.tuned_args, "--tensor-parallel-size", default=1)
    pipeline = flag_number(tuning.settings.tuned_args, "--pipeline-parallel-size", default=1)
    assert (tensor, pipeline, len(tuning.settings.gpus)) == expected


def unlike(*kinds: tuple[int, tuple[int, int]]) -> Platform:
    """Return a machine with a GPU for each (GiB, compute capability)."""
    platform = gpus(len(kinds))
    cards = [
        replace(gpu, total_bytes=size * GIB, free_bytes=(size - 1) * GIB, compute_capability=has)
        for gpu, (size, has) in zip(platform.accelerators, kinds, strict=True)
    ]
    return replace(platform, accelerators=tuple(cards))


@pytest.mark.parametrize(
    ("kinds", "weights", "expected"),
    [
        (((24, (8, 9)), (48, (8, 6))), 30, (1,)),
        (((24, (8, 6)), (24, (8, 9)), (24, (8, 6))), 30, (0, 2)),
        (((24, (8, 6)), (48, (8, 6)), (24, (8, 6))), 41, (1,)),
        (((12, (8, 6)), (24, (8, 9)), (12, (8, 6))), 16, (1,)),
        # the larger one alone does not hold it, and nobody is told that both do
        (((24, (8, 9)), (48, (8, 6))), 55, None),
    ],
)
def test_a_model_is_split_over_equal_gpus_only(kinds, weights, expected):
    here = facts(unlike(*kinds), (VLLM_HERE,))
    info = replace(LLAMA_8B, weights_bytes=weights * GIB)
    if expected is None:
        with pytest.raises(NotEnoughMemory):
            make_plan(here, FOLDER, info, Need())
        return
    plan = make_plan(here, FOLDER, info, Need())
    assert plan.settings.gpus == expected
    assert any("differ: a model is split only across identical GPUs" in r for r in plan.reasons)


def test_the_roomiest_gpu_is_taken_and_named():
    tuning = ENGINE.tune(wish(gpus(3, free=(10, 79, 40))))
    assert tuning.settings.gpus == (1,)
    amd = replace(
        H100, accelerators=tuple(replace(g, vendor=Vendor.AMD) for g in gpus(2).accelerators)
    )
    assert ENGINE.tune(wish(amd)).settings.gpus == (0,)


@pytest.mark.parametrize(
    ("info", "count", "shape"),
    [(LLAMA_8B, 4, (4, 1)), (LLAMA_8B, 3, (1, 3)), (LLAMA_8B, 1, (1, 1))],
)
def test_all_gpus_are_used_if_asked_for(info, count, shape):
    tuning = ENGINE.tune(wish(gpus(count), info, all_gpus=True))
    tensor = flag_number(tuning.settings.tuned_args, "--tensor-parallel-size", default=1)
    pipeline = flag_number(tuning.settings.tuned_args, "--pipeline-parallel-size", default=1)
    assert (tensor, pipeline) == shape and len(tuning.settings.gpus) == count


def test_copies_for_more_requests_than_one_takes():
    tuning = ENGINE.tune(wish(gpus(4), parallel=700))
    assert flag_number(tuning.settings.tuned_args, "--data-parallel-size", default=1) == 3
    assert "3 copies" in tuning.reasons[0]
    args = ENGINE.tune(wish(gpus(2), parallel=700)).settings.tuned_args
    assert flag_number(args, "--data-parallel-size", default=1) == 2


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (("--tensor-parallel-size", "4"), "tensor parallel 4"),
        (("-tp", "2", "-pp=2"), "tensor parallel 2, pipeline parallel 2"),
        (
            ("--distributed-executor-backend", "ray", "-tp", "8", "-pp", "2"),
            "tensor parallel 8, pipeline parallel 2",
        ),
    ],
)
def test_the_users_layout_is_counted_and_not_repeated(extra, words):
    tuning = ENGINE.tune(wish(gpus(8), LLAMA_70B, extra_args=extra))
    assert words in tuning.reasons[0]
    assert not {"--tensor-parallel-size", "--pipeline-parallel-size"} & set(
        tuning.settings.tuned_args
    )
    assert any("across machines" in reason for reason in tuning.reasons) is ("ray" in str(extra))


@given(heads=st.sampled_from([8, 9, 16, 28, 32, 40, 64]), kv=st.sampled_from([1, 2, 3, 4, 8]),
       count=st.integers(1, 16))  # fmt: skip
def test_every_shape_can_be_run(heads, kv, count):
    info = replace(LLAMA_8B, head_count=heads, head_count_kv=(kv,))
    found = list(iterate_shapes(info, count))
    assert found[0] == (1, 1) and len(set(found)) == len(found)
    alone = [shape for shape in found if shape[1] == 1]
    assert found[: len(alone)] == sorted(alone)
    for tensor, pipeline in found:
        assert tensor * pipeline <= count and heads % tensor == 0 and can_divide(info, tensor)


def test_without_gpus_there_is_nothing_to_choose():
    assert choose_layout(wish(CPU, INFO), lambda *_: False) == Layout()


# -- the whole plan ---------------------------------------------------------------------------

FOLDER = bundle(format=Format.SAFETENSORS)
ON_CPU = Installation(engine="vllm", version="0.32.0+cpu", python=VLLM_HERE.executable)


def test_a_plan_has_the_numbers_and_the_arguments():
    plan = make_plan(facts(installed=(ON_CPU,)), FOLDER, INFO, Need())
    assert plan.engine == "vllm" and "--kv-cache-memory-bytes" in plan.settings.tuned_args
    assert any("cache of" in reason for reason in plan.reasons)
    assert plan.memory.kv_bytes == flag_number(
        plan.settings.tuned_args, "--kv-cache-memory-bytes", default=0
    )


def test_what_never_fits_is_refused_with_numbers():
    huge = replace(INFO, weights_bytes=40 * GIB)
    with pytest.raises(NotEnoughMemory, match=r"weights 40\.0"):
        make_plan(facts(installed=(ON_CPU,)), FOLDER, huge, Need())
    with pytest.raises(NotEnoughMemory):
        make_plan(facts(gpus(2, total=24, free=23), (VLLM_HERE,)), FOLDER, LLAMA_70B, Need())


# -- parsers ----------------------------------------------------------------------------------

HERMES = '{% if tools %}<tool_call>\n{\\"name\\": 1, \\"arguments\\": 2}{% endif %}'
CODER = "{% if tools %}<tool_call><function=f><parameter=p>{% endif %}"
THINKS = "{% if enable_thinking is false %}<think>\n\n</think>{% endif %}"


@pytest.mark.parametrize(
    ("tokens", "parser"),
    [
        ((), "llama3_json"),  # they are not known
        (("<|eot_id|>", "<|python_tag|>"), "llama3_json"),
        (("<|eot_id|>",), None),  # a fine-tune without it: vLLM would end at its start
    ],
)
def test_a_parser_only_where_the_model_has_its_token(tokens, parser):
    template = '{% if tools %}<|start_header_id|>ipython{"name": 1, "parameters": 2}'
    info = replace(INFO, architecture="llama", chat_template=template, special_tokens=tokens)
    assert choose_tool_parser(info) == parser


@pytest.mark.parametrize(
    ("architecture", "template", "tools", "thinking"),
    [
        ("llama", None, None, None),
        ("llama", "<|im_start|>", None, None),
        ("qwen2", HERMES, "hermes", None),
        ("qwen3", HERMES + THINKS, "hermes", "qwen3"),
        ("qwen3", HERMES, "hermes", None),  # the Instruct models of 2507 do not think
        ("qwen3_moe", CODER, "qwen3_coder", None),
        ("qwen3", CODER, None, None),
        ("zzama", HERMES + THINKS, None, None),  # type and template must agree
        ("llama", THINKS, None, None),
        ("gemma3", "{% if tools %}" + THINKS, None, None),
        (
            "llama",
            '{% if tools %}<|start_header_id|>ipython{"name": 1, "parameters": 2}',
            "llama3_json",
            None,
        ),
        ("qwen2", "{{'<｜Assistant｜><think>\\n'}}", None, "deepseek_r1"),
        ("qwen2", "{{'<｜Assistant｜>'}}<think>", None, None),
        ("gpt_oss", "{% if tools %}<|channel|>analysis<|call|>", "openai", "openai_gptoss"),
        ("mistral", "{% if tools %}[AVAILABLE_TOOLS][TOOL_CALLS]", "mistral", None),
        ("mistral", "[INST]", None, None),
        # marks of one family are enough
        ("a", "tools <|tools_prefix|> <|inner_prefix|>", "apertus", None),
        ("a", "tools ]<]minimax[>[<tool_call> <mm:think>", "minimax_m3", "minimax_m3"),
        ("a", "tools <|open|>tools<|sep|> <|open|>think", "kimi_k3", "kimi_k3"),
        ("a", "tools <atem:invoke to=self<|message|>", "muse", "muse"),
        ("hy_v3", "tools <tool_calls:1><tool_sep:1> <think:1>", "hy_v3", "hy_v3"),
        ("hunyuan_v1_moe", "tools <tool_calls> <think> <answer>", None, "hunyuan_a13b"),
        # vllama reads these by itself
        ("gemma4", "tools <|tool_call>call: <|channel>thought", None, None),
        ("lfm2", "tools <|tool_call_start|>", None, None),
        ("kimi_k25", "tools <|tool_calls_section_begin|><think>", None, None),
    ],
)
def test_a_parser_only_where_type_and_template_agree(architecture, template, tools, thinking):
    info = replace(INFO, architecture=architecture, chat_template=template)
    assert (choose_tool_parser(info), choose_reasoning_parser(info)) == (tools, thinking)
    args = ENGINE.tune(wish(CPU, info)).settings.tuned_args
    assert flag_value(args, "--tool-call-parser") == tools
    assert ("--enable-auto-tool-choice" in args) is bool(tools)

    assert flag_value(args, "--reasoning-parser") == thinking
    assert not has_flag(
        ENGINE.tune(wish(CPU, info, mode=Mode.EMBED)).settings.tuned_args,
        "--tool-call-parser",
        "--reasoning-parser",
    )


REGISTRY = """_TO_REGISTER = {
    "muse_glimmer": (  # name
        "file",
    ),
    "granite-20b-fc": ("file", "Class"),
}
"""


def test_parsers_are_those_of_the_installed_version(tmp_path):
    for folder in ("tool_parsers", "reasoning"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(REGISTRY)
    known = read_registries(tmp_path)
    assert known == {(kind, name) for kind in ("tool_parsers", "reasoning")
                     for name in ("muse_glimmer", "granite-20b-fc")}  # fmt: skip
    info = replace(INFO, chat_template="tools <atem:invoke to=self<|message|>")
    assert choose_tool_parser(info, known) == choose_reasoning_parser(info, known) == "muse_glimmer"
    here = replace(VLLM_HERE, parsers=known)
    args = ENGINE.tune(replace(wish(CPU, info), installation=here)).settings.tuned_args
    assert flag_value(args, "--tool-call-parser") == "muse_glimmer"
    # older versions have none there, and of a program alone nothing is known
    assert read_registries(tmp_path / "none") == frozenset() and read_registries(None) is None
    assert choose_tool_parser(info, frozenset()) is None


@pytest.mark.parametrize(
    ("count", "rank", "platform", "extra", "said"),
    [
        (0, 0, H100, (), (None, None)),
        (20, 12, H100, (), ("20", "16")),
        (100, 8, H100, (), ("32", "8")),
        (3, 300, CPU, (), ("4", "320")),  # the last one stays empty
        (3, 8, H100, ("--enable-lora",), (None, None)),
    ],
)
def test_adapters_on_this_disk_have_room(count, rank, platform, extra, said):
    base = LLAMA_8B if platform is H100 else INFO
    meta = {f"{base.architecture}.feed_forward_length": 14_336}
    info = replace(base, lora_count=count, lora_rank=rank, metadata=meta)
    tuning = ENGINE.tune(wish(platform, info, extra_args=extra))
    args = tuning.settings.tuned_args
    assert (flag_value(args, "--max-loras"), flag_value(args, "--max-lora-rank")) == said
    without = ENGINE.tune(wish(platform, replace(info, lora_count=0)))
    assert (tuning.memory.weights_bytes > without.memory.weights_bytes) is (said[0] is not None)
    if count == 20:  # some 84 MB each: 41.9 million numbers in two bytes
        added = tuning.memory.weights_bytes - without.memory.weights_bytes
        assert added == 20 * 41_943_040 * 2
    settings = replace(tuning.settings, extra_args=extra)
    paths = ENGINE.traits(bundle(), settings).adapter_paths
    assert (paths is not None) is bool(extra or said[0])
