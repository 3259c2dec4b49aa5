from __future__ import annotations

import pytest

from vllama.models.names.quant import (
    find_quant,
    get_bit_width,
    get_file_type_name,
    is_same_quant,
    parse_quant_tag,
    strip_quant,
)
from vllama.models.names.variants import (
    GgufFacts,
    choose_group,
    choose_projector,
    choose_safetensors_files,
    explain_left_out,
    group_ggufs,
    is_gguf_model,
    iterate_shard_paths,
)


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "Q4_K_M"),
        ("Model-Q4_K_M.gguf", "Q4_K_M"),
        ("Model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Model.Q4_K_M.gguf", "Q4_K_M"),
        ("Model.i1-Q4_K_M.gguf", "Q4_K_M"),
        ("Model.i1-IQ3_XXS.gguf", "IQ3_XXS"),
        ("gemma-3-1b-it-qat-q4_0.gguf", "Q4_0"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("Model-Q4_0_4_8.gguf", "Q4_0_4_8"),
        ("Model-Q6_K.gguf", "Q6_K"),
        ("Model-Q8_0.gguf", "Q8_0"),
        ("Model-TQ1_0.gguf", "TQ1_0"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Model-NVFP4.gguf", "NVFP4"),
        ("Model-BF16.gguf", "BF16"),
        ("Model-F16.gguf", "F16"),
        ("model-fp16.gguf", "FP16"),
        ("model_f32.gguf", "F32"),
        ("q8_0-distill-Q4_K_S.gguf", "Q4_K_S"),
        ("Q8_0/Model-00001-of-00003.gguf", "Q8_0"),
        ("UD-IQ1_S/Model-UD-IQ1_S-00001-of-00003.gguf", "UD-IQ1_S"),
        ("tiny.gguf", None),
        ("Q4_0-models/deep/er/tiny.gguf", None),
        ("MyQ4_0x.gguf", None),
    ],
)
def test_quant_of_file_names(name: str, quant: str | None) -> None:
    assert find_quant(name) == quant


@pytest.mark.parametrize(
    ("tag", "quant"),
    [("q4_k_m", "Q4_K_M"), ("I1-Q4_K_M", "Q4_K_M"), ("7b", None), ("x-Q4_K_M", None)],
)
def test_quant_of_tag(tag: str, quant: str | None) -> None:
    assert parse_quant_tag(tag) == quant


def test_file_types_match_llama_cpp() -> None:
    gguf = pytest.importorskip("gguf")
    for member in gguf.LlamaFileType:
        if member is gguf.LlamaFileType.GUESSED:
            continue
        expected = member.name.removeprefix("ALL_").removeprefix("MOSTLY_").removesuffix("_MOE")
        assert get_file_type_name(int(member)) == expected
        assert get_file_type_name(int(member) | 1024) == expected
    assert get_file_type_name(999) is None
    assert get_file_type_name("15") is None


def test_bit_width() -> None:
    assert [get_bit_width(q) for q in ("Q4_K_M", "IQ3_S", "BF16", "F32", None)] == [
        4,
        3,
        16,
        32,
        16,
    ]


@pytest.mark.parametrize(
    ("name", "is_model"),
    [
        ("a.gguf", True),
        ("A.GGUF", True),
        ("ggml-model-Q4_0.gguf", True),
        ("Flora-7b.gguf", True),
        ("mmproj-F16.gguf", False),
        ("model-mmproj.gguf", False),
        ("a.imatrix.gguf", False),
        ("mtp-a.gguf", False),
        ("eagle3-a.gguf", False),
        ("ggml-vocab-qwen2.gguf", False),
        ("a-lora-f16.gguf", False),
        ("a.gguf.part1of2", False),
        ("a.bin", False),
    ],
)
def test_what_is_a_model(name: str, is_model: bool) -> None:
    assert is_gguf_model(name) is is_model


REPO = [
    "README.md",
    "BF16/m-BF16-00001-of-00002.gguf",
    "BF16/m-BF16-00002-of-00002.gguf",
    "m-IQ4_XS.gguf",
    "m-Q4_K_M.gguf",
    "m-Q8_0.gguf",
    "m-UD-Q4_K_XL.gguf",
    "m-Q5_K_M-00001-of-00002.gguf",  # its second part is missing
    "mmproj-BF16.gguf",
    "mmproj-Q8_0.gguf",
]


def test_groups() -> None:
    groups = {group.label: group for group in group_ggufs(REPO)}
    assert list(groups) == ["BF16", "IQ4_XS", "Q4_K_M", "Q8_0", "UD-Q4_K_XL"]
    assert len(groups["BF16"].paths) == 2
    assert groups["BF16"].projector == "mmproj-BF16.gguf"
    assert groups["Q8_0"].projector == "mmproj-BF16.gguf"


def test_single_file_before_split_at_one_quant() -> None:
    names = [*iterate_shard_paths("a-Q8_0-00001-of-00002.gguf"), "b-Q8_0.gguf"]
    groups = group_ggufs(names)
    assert {g.label: g.paths[0] for g in groups} == {
        "a-Q8_0": "a-Q8_0-00001-of-00002.gguf",
        "Q8_0": "b-Q8_0.gguf",
    }


@pytest.mark.parametrize(
    ("tag", "label"),
    [
        (None, "Q4_K_M"),
        ("q8_0", "Q8_0"),
        ("Q8_0", "Q8_0"),
        ("m-iq4_xs.gguf", "IQ4_XS"),
        ("m-IQ4_XS", "IQ4_XS"),
        ("UD-Q4_K_XL", "UD-Q4_K_XL"),
        ("i1-q4_k_m", "Q4_K_M"),
        ("F16", None),  # not BF16
        ("bf16", "BF16"),
        ("Q5_K_M", None),
        ("7b", None),
    ],
)
def test_choice_by_tag(tag: str | None, label: str | None) -> None:
    chosen = choose_group(group_ggufs(REPO), tag)
    assert (chosen.label if chosen else None) == label


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["a-Q2_K.gguf", "a-Q8_0.gguf"], "a-Q8_0.gguf"),
        (["a-Q3_K_M.gguf", "a-Q6_K.gguf"], "a-Q3_K_M.gguf"),
        (["a-Q8_0.gguf", "a-UD-Q4_K_M.gguf"], "a-UD-Q4_K_M.gguf"),
        (["tiny.gguf"], "tiny.gguf"),
        ([], None),
    ],
)
def test_choice_without_a_tag(names: list[str], first: str | None) -> None:
    chosen = choose_group(group_ggufs(names), None)
    assert (chosen.paths[0] if chosen else None) == first


def test_projector_nearest_folder_then_bits() -> None:
    names = ["mmproj-F16.gguf", "q/mmproj-F16.gguf", "q/mmproj-Q8_0.gguf"]
    assert choose_projector("q/m-Q4_K_M.gguf", names) == "q/mmproj-F16.gguf"
    assert choose_projector("m-F16.gguf", names) == "mmproj-F16.gguf"
    assert choose_projector("m.gguf", []) is None


def test_what_is_left_out_and_why() -> None:
    assert explain_left_out(REPO) == {
        "m-Q5_K_M.gguf": "1 of 2 parts are missing, such as m-Q5_K_M-00002-of-00002.gguf"
    }
    pieces = ["x.Q8_0.gguf.part1of2", "x.Q8_0.gguf.part2of2", "y.Q6_K.gguf-split-a", "z.gguf"]
    assert list(explain_left_out(pieces)) == ["x.Q8_0.gguf", "y.Q6_K.gguf"]
    assert explain_left_out(["d/a-00002-of-00003.gguf", "mmproj-00001-of-00002.gguf"]) == {
        "d/a.gguf": "2 of 3 parts are missing, such as a-00001-of-00003.gguf"
    }


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("FP16", "F16", True),
        ("fp32", "F32", True),
        ("Q4_K_M", "q4_k_m", True),
        ("BF16", "F16", False),
        (None, None, False),
    ],
)
def test_two_spellings_of_one_quantization(one: str | None, other: str | None, same: bool) -> None:
    assert is_same_quant(one, other) is same


def test_names_without_quantization() -> None:
    assert strip_quant("Model-Q4_K_M-GGUF") == "model--gguf"
    assert strip_quant("gpt-oss-20b-mxfp4") == "gpt-oss-20b-"


def test_safetensors_file_set() -> None:
    names = [
        *("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "README.md"),
        *("original/consolidated.safetensors", "consolidated.safetensors", "pytorch_model.bin"),
        *("onnx/config.json", "modeling_x.py", "1_Pooling/config.json", "x.gguf"),
    ]
    assert choose_safetensors_files(names) == (
        *("1_Pooling/config.json", "chat_template.jinja", "config.json", "model.safetensors"),
        *("modeling_x.py", "tokenizer.json"),
    )
    assert choose_safetensors_files(["model.safetensors"]) == ()
    assert choose_safetensors_files(["config.json", "unet/model.safetensors"]) == ()


TEXT, EYES = GgufFacts(width=2560), GgufFacts(is_model=False, widths=frozenset({2560, 1152}))
WIDE, PART = GgufFacts(width=4096), GgufFacts(is_part=True)


@pytest.mark.parametrize(
    ("model", "projectors", "facts", "chosen"),
    [
        # the usual repository: one projector without a name, in several quantizations
        ("gemma-3-4b-it-Q4_K_M.gguf", ["mmproj-F16.gguf", "mmproj-Q8_0.gguf"], {}, 0),
        ("Q4/gemma-3-4b-it-Q4_K_M-00001-of-00002.gguf", ["mmproj-model-f16.gguf"], {}, 0),
        ("m-Q8_0.gguf", ["mmproj-F16.gguf"], {"m-Q8_0.gguf": TEXT, "mmproj-F16.gguf": EYES}, 0),
        ("m-Q8_0.gguf", ["mmproj-F16.gguf"], {"m-Q8_0.gguf": WIDE, "mmproj-F16.gguf": EYES}, None),
        ("m-Q8_0.gguf", ["mmproj-F16.gguf"], {"m-Q8_0.gguf": WIDE}, 0),  # the file does not tell
        ("m-Q8_0.gguf", ["mmproj-m-F16.gguf"], {"m-Q8_0.gguf": TEXT, "mmproj-m-F16.gguf": EYES}, 0),
        # of another size, though called the same
        ("m-Q8_0.gguf", ["mmproj-m.gguf"], {"m-Q8_0.gguf": WIDE, "mmproj-m.gguf": EYES}, None),
        # by the name, as publishers write it
        ("Qwen2.5-VL-7B-Instruct-Q4_K_M.gguf", ["mmproj-Qwen2.5-VL-7B-Instruct-Q8_0.gguf"], {}, 0),
        ("google_gemma-3-4b-it-Q8_0.gguf", ["mmproj-google_gemma-3-4b-it-f16.gguf"], {}, 0),
        ("X.i1-Q4_K_M.gguf", ["X.mmproj-f16.gguf"], {}, 0),
        ("X-UD-Q4_K_XL-00001-of-00002.gguf", ["X.BF16-mmproj.gguf"], {}, 0),
        ("llava-v1.5-7b-Q4_K.gguf", ["llava-v1.5-7b-mmproj-f16.gguf"], {}, 0),
        ("moondream2-text-model-f16.gguf", ["moondream2-mmproj-f16.gguf"], {}, 0),
        ("gemma-3-4b-it-q4_0.gguf", ["mmproj-model-f16-4B.gguf"], {}, 0),
        ("gemma-3-12b-it-q4_0.gguf", ["mmproj-model-f16-4B.gguf"], {}, None),
        ("gemma-3-4b-it-abliterated-Q8_0.gguf", ["mmproj-gemma-3-4b-it-f16.gguf"], {}, 0),
        # of several the one of the name, whatever folder the others are in
        ("b-Q8_0.gguf", ["mmproj-F16.gguf", "mmproj-a-F16.gguf", "eyes/mmproj-b-F16.gguf"], {}, 2),
        # a neighbor's
        ("Llama-3.2-3B-Instruct-Q4_K_M.gguf", ["mmproj-gemma-3-4b-it-f16.gguf"], {}, None),
        ("Qwen2.5-7B-Instruct-Q8_0.gguf", ["mmproj-Qwen2.5-VL-7B-Instruct-f16.gguf"], {}, None),
        ("gemma-3-12b-it-Q8_0.gguf", ["mmproj-gemma-3-4b-it-f16.gguf"], {}, None),
        ("Qwen2.5-VL-7B-Instruct-Q8_0.gguf", ["mmproj-Qwen2-VL-7B-Instruct-f16.gguf"], {}, None),
        ("DeepSeek-R1-Distill-Qwen-7B-Q4_K_M.gguf", ["mmproj-MiMo-VL-7B-RL-Q8_0.gguf"], {}, None),
        ("a/text-Q8_0.gguf", ["b/mmproj-F16.gguf"], {}, None),
    ],
)  # fmt: skip
def test_whose_projector_it_is(model, projectors, facts, chosen) -> None:
    expected = None if chosen is None else projectors[chosen]
    assert choose_projector(model, projectors, facts.get) == expected
    groups = group_ggufs([*iterate_shard_paths(model), *projectors], facts.get, published=False)
    group = next(group for group in groups if group.paths[0] == model)
    assert group.projector == expected
    assert group.unfit is None or group.projector is None


def test_a_repository_with_one_model_has_its_projector_by_any_name() -> None:
    names = ["Llama-3.2-1B-Instruct-Q8_0.gguf", "mmproj-ultravox-v0_5-llama-3_2-1b-f16.gguf"]
    assert group_ggufs(names)[0].projector == names[1]
    assert group_ggufs(names, published=False)[0].projector is None
    assert group_ggufs([*names, "other-Q8_0.gguf"])[0].projector is None


@pytest.mark.parametrize(
    ("names", "facts", "models", "left_out"),
    [
        (["x-00001-of-00003.gguf"], {}, [], ["x.gguf"]),
        (["x-00001-of-00003.gguf"], {"x-00001-of-00003.gguf": PART}, [], ["x.gguf"]),
        (["x-00001-of-00003.gguf"], {"x-00001-of-00003.gguf": TEXT}, [1], []),
        (["x-00002-of-00003.gguf"], {"x-00002-of-00003.gguf": TEXT}, [1], []),
        ([*iterate_shard_paths("x-00001-of-00002.gguf")], {}, [2], []),
        (
            [*iterate_shard_paths("x-00001-of-00002.gguf")],
            dict.fromkeys(iterate_shard_paths("x-00001-of-00002.gguf"), TEXT), [1, 1], [],
        ),
        (["imatrix.gguf", "m.imatrix.gguf", "m-imatrix.gguf"], {}, [], []),
        (["m-imatrix-Q4_K_M.gguf", "m-IQ3_M-imatrix.gguf"], {}, [1, 1], []),
        (["m-imatrix.gguf"], {"m-imatrix.gguf": TEXT}, [1], []),
        (["m-Q8_0-imatrix.gguf"], {"m-Q8_0-imatrix.gguf": EYES}, [], []),
    ],
)  # fmt: skip
def test_names_that_mislead(names, facts, models, left_out) -> None:
    assert [len(group.paths) for group in group_ggufs(names, facts.get)] == models
    assert list(explain_left_out(names, facts.get)) == left_out


def test_labels_are_tags() -> None:
    labels = [group.label for group in group_ggufs(["a-Q8_0.gguf", "été 2-Q8_0.gguf"])]
    assert labels == ["Q8_0", "t-2-Q8_0"]
