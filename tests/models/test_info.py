from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from tests.tiny import write_tiny_gguf
from vllama.base.errors import BadModelFile
from vllama.base.units import format_parameter_count
from vllama.models.headers.gguf.header import GgufHeader
from vllama.models.headers.gguf.parser import LongArray, Tensor
from vllama.models.headers.info import (
    build_details,
    build_model_info,
    combine_headers,
    find_draft_kind,
    read_info,
)
from vllama.models.limits import MOST_TEMPLATE_CHARS
from vllama.models.names.ref import ModelRef
from vllama.models.stores.folder import FolderStore
from vllama.models.types import Bundle, Capability, Format, ModelInfo


def head(metadata: dict[str, object], *tensors: Tensor, **tokens: str) -> GgufHeader:
    return GgufHeader(
        version=3,
        metadata={"general.architecture": "a", **metadata},
        tensors=tensors or (tensor("t", 10),),
        data_offset=0,
        special_tokens=tokens,
    )


def tensor(name: str, *shape: int, type_name: str = "F16") -> Tensor:
    size = 2
    for length in shape:
        size *= length
    return Tensor(name=name, type_name=type_name, shape=shape, offset=0, size_bytes=size)


def at(path: Path) -> Bundle:
    bundle = FolderStore().find(ModelRef.of_path(path))
    assert bundle is not None
    return bundle


def test_tiny(tiny: Path) -> None:
    info = read_info(at(tiny))
    assert replace(info, metadata={}, tensors=(), chat_template=None) == ModelInfo(
        architecture="llama",
        parameter_count=119_488,
        quant="F16",
        context_length=256,
        embedding_length=64,
        block_count=2,
        head_count=2,
        head_count_kv=(1, 1),
        key_length=32,
        value_length=32,
        vocab_size=355,
        weights_bytes=239_616,
        bos_token="<s>",
        eos_token="</s>",
        adds_bos=True,
    )
    assert info.chat_template and info.chat_template.startswith("{% for m in messages %}")
    assert info.tensors[0] == ("token_embd.weight", "F16", (64, 355))


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, {"head_count_kv": None, "key_length": None, "quant": "F16", "vocab_size": None}),
        ({"general.file_type": 15}, {"quant": "Q4_K_M"}),
        ({"general.file_type": 15 | 1024}, {"quant": "Q4_K_M"}),
        ({"general.file_type": 777}, {"quant": "F16"}),
        (
            {"a.block_count": 3, "a.attention.head_count": 8, "a.embedding_length": 512},
            {"head_count_kv": (8, 8, 8), "key_length": 64, "value_length": 64},
        ),
        (
            {
                "a.block_count": 3,
                "a.attention.head_count": [8, 4, 8],
                "a.attention.head_count_kv": [2, 0, 2],
                "a.attention.key_length": 128,
                "a.attention.value_length": 96,
                "a.attention.sliding_window": 512,
            },
            {
                "head_count": 8,
                "head_count_kv": (2, 0, 2),
                "key_length": 128,
                "value_length": 96,
                "sliding_window": 512,
            },
        ),
        ({"a.vocab_size": 7, "tokenizer.ggml.tokens": ["x"] * 9}, {"vocab_size": 7}),
        (
            {"tokenizer.ggml.tokens": LongArray(element_type=8, count=49152, offset=0)},
            {"vocab_size": 49152},
        ),
        ({"tokenizer.ggml.model": "llama"}, {"adds_bos": True}),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe"}, {"adds_bos": True}),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}, {"adds_bos": False}),
        (
            {"tokenizer.ggml.model": "llama", "tokenizer.ggml.add_bos_token": False},
            {"adds_bos": False},
        ),
        (
            {"tokenizer.chat_templates": ["rag"], "tokenizer.chat_template.rag": "R"},
            {"chat_template": "R"},
        ),
        ({"general.license": "apache-2.0"}, {"license": "apache-2.0"}),
    ],
)
def test_metadata(metadata: dict[str, object], expected: dict[str, Any]) -> None:
    info = combine_headers([head(metadata)])
    assert {key: getattr(info, key) for key in expected} == expected


CHAT, EMBED = Capability.COMPLETION, Capability.EMBEDDING


@pytest.mark.parametrize(
    ("metadata", "projector", "capabilities"),
    [
        ({}, None, {CHAT}),
        ({"a.pooling_type": 1}, None, {EMBED}),
        ({"tokenizer.chat_template": "{% if tools %}…"}, None, {CHAT, Capability.TOOLS}),
        ({"tokenizer.chat_template": "use toolset"}, None, {CHAT}),
        ({"tokenizer.chat_template": "<think>"}, None, {CHAT, Capability.THINKING}),
        ({"tokenizer.chat_template": "enable_thinking"}, None, {CHAT, Capability.THINKING}),
        ({"general.architecture": "gpt-oss"}, None, {CHAT, Capability.THINKING}),
        ({}, {}, {CHAT, Capability.VISION}),
        (
            {},
            {"clip.has_vision_encoder": False, "clip.has_audio_encoder": True},
            {CHAT, Capability.AUDIO},
        ),
    ],
)
def test_capabilities(
    metadata: dict[str, object],
    projector: dict[str, object] | None,
    capabilities: set[Capability],
) -> None:
    eyes = head(projector) if projector is not None else None
    assert combine_headers([head(metadata)], projector=eyes).capabilities == capabilities


def test_shards_are_summed() -> None:
    info = combine_headers([head({"a.block_count": 1}), head({}, tensor("u", 4, 5))])
    assert info.parameter_count == 30
    assert info.weights_bytes == 60
    assert [name for name, _, _ in info.tensors] == ["t", "u"]


def test_vocabulary_only_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    key, value = b"general.architecture", b"llama"
    text = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text)
    with pytest.raises(BadModelFile, match="no weights"):
        read_info(at(path))


def test_a_file_without_an_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    with pytest.raises(BadModelFile, match="does not specify an architecture"):
        read_info(at(path))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, ""),
        (0, "0"),
        (999, "999"),
        (1500, "2K"),
        (134_515_008, "134.52M"),
        (268_000_000, "268M"),
        (3_212_749_888, "3.2B"),
        (7_000_000_000, "7B"),
        (70_553_706_496, "70.6B"),
    ],
)
def test_parameter_size(count: int | None, text: str) -> None:
    assert format_parameter_count(count) == text


def test_details_and_model_info(tmp_path: Path) -> None:
    path = write_tiny_gguf(
        tmp_path / "tiny-f16.gguf", extra=lambda w: w.add_array("llama.layers", list(range(6)))
    )
    bundle = at(path)
    info = read_info(bundle)
    assert to_builtins(build_details(bundle, info)) == {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "119K",
        "quantization_level": "F16",
        "context_length": 256,
        "embedding_length": 64,
    }
    short, long = build_model_info(info), build_model_info(info, verbose=True)
    assert "general.name" not in short and "tokenizer.chat_template" not in short
    assert short["general.parameter_count"] == 119_488
    assert short["llama.layers"] is None and long["llama.layers"] == list(range(6))
    assert short["tokenizer.ggml.tokens"] is None
    tokens = long["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list) and len(tokens) == 355
    assert set(short) == set(long)
    json.dumps(long)


def safetensors(folder: Path, config: dict[str, Any], **files: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for name, tensors in files.items():
        offset, entries = 0, {}
        for key, (dtype, shape, size) in tensors.items():
            entries[key] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
            offset += size
        raw = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
        data = struct.pack("<Q", len(raw)) + raw + bytes(offset)
        (folder / f"{name}.safetensors").write_bytes(data)
    return folder


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 2048,
    "vocab_size": 100,
}


def test_safetensors_folder(tmp_path: Path) -> None:
    weights = {"a": ("BF16", [100, 64], 12800), "b": ("F32", [64], 256)}
    folder = safetensors(tmp_path / "m", CONFIG, model=weights)
    tokenizer = {
        "chat_template": [{"name": "default", "template": "{{ tools }}"}],
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    tokens = [{"id": 1, "content": "<s>", "special": True}, {"id": 2, "content": "<tool_call>"}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    assert read_info(at(folder)).special_tokens == ("<s>",)
    tokenizer["added_tokens_decoder"] = {"3": {"content": "</s>", "special": True, "lstrip": False}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert read_info(at(folder)).special_tokens == ("</s>",)
    bundle = at(folder)
    assert (bundle.format, bundle.path) == (Format.SAFETENSORS, folder)
    info = read_info(bundle)
    assert replace(info, metadata={}) == ModelInfo(
        architecture="llama",
        parameter_count=6464,
        quant="BF16",
        context_length=2048,
        embedding_length=64,
        block_count=3,
        head_count=4,
        head_count_kv=(2, 2, 2),
        key_length=16,
        value_length=16,
        vocab_size=100,
        weights_bytes=13056,
        chat_template="{{ tools }}",
        bos_token="<s>",
        eos_token="</s>",
        special_tokens=("</s>",),
        capabilities=frozenset({CHAT, Capability.TOOLS}),
    )
    assert build_model_info(info)["llama.context_length"] == 2048
    assert build_details(bundle, info).quantization_level == "BF16"


def test_a_chat_template_has_a_limit_wherever_it_lies(tmp_path: Path) -> None:
    longest = "x" * MOST_TEMPLATE_CHARS
    key = "tokenizer.chat_template"
    assert combine_headers([head({key: longest})]).chat_template == longest
    with pytest.raises(BadModelFile, match="its chat template is longer than"):
        combine_headers([head({key: f"{longest}x"})])
    folder = safetensors(tmp_path / "m", CONFIG, model={"a": ("F16", [2], 4)})
    for name, text in (
        ("tokenizer_config.json", json.dumps({"chat_template": f"{longest}x"})),
        ("chat_template.jinja", f"{longest}x"),
    ):
        (folder / name).write_text(text)
        with pytest.raises(BadModelFile, match="its chat template is longer than"):
            read_info(at(folder))
    (folder / "chat_template.jinja").write_text(longest)
    assert read_info(at(folder)).chat_template == longest


def test_quantized_safetensors_count_packed_weights(tmp_path: Path) -> None:
    config = {**CONFIG, "quantization_config": {"quant_method": "awq", "bits": 4}}
    weights = {"a.qweight": ("I32", [8, 64], 2048)}
    info = read_info(at(safetensors(tmp_path / "m", config, model=weights)))
    assert (info.quant, info.parameter_count) == ("AWQ", 4096)


def test_multimodal_and_embedding_configs(tmp_path: Path) -> None:
    one = {"a": ("F16", [2], 4)}
    vision = {"model_type": "x", "text_config": CONFIG, "vision_config": {}}
    info = read_info(at(safetensors(tmp_path / "v", vision, model=one)))
    assert info.capabilities == {CHAT, Capability.VISION}
    assert (info.architecture, info.context_length) == ("x", 2048)
    bert = {**CONFIG, "architectures": ["BertModel"], "model_type": "bert"}
    info = read_info(at(safetensors(tmp_path / "b", bert, model=one)))
    assert info.capabilities == {EMBED}


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_what_mlx_has_packed_is_told(tmp_path: Path, key: str) -> None:
    weights = {"w.weight": ("U32", [10, 10], 400)}
    config = {**CONFIG, key: {"group_size": 64, "bits": 4}}
    assert read_info(at(safetensors(tmp_path / "m", config, model=weights))).quant == "MLX4"
    awq = {**CONFIG, key: {"group_size": 128, "bits": 4, "quant_method": "awq"}}
    assert read_info(at(safetensors(tmp_path / "a", awq, model=weights))).quant == "AWQ"


def test_damaged_safetensors(tmp_path: Path) -> None:
    folder = safetensors(tmp_path / "m", CONFIG, model={"a": ("F16", [50], 100)})
    bundle = at(folder)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for content, says in [
        (whole[:-30], "30 bytes of tensor data are missing"),
        (whole[:20], "its header is truncated"),
        (b"", "its header is truncated"),
        (struct.pack("<Q", 2) + b"[]", "header is damaged"),
        (struct.pack("<Q", 9) + b'{"a":{}} ', "header is damaged"),
    ]:
        path.write_bytes(content)
        with pytest.raises(BadModelFile, match=says):
            read_info(bundle)
    (folder / "config.json").write_text("{")
    with pytest.raises(BadModelFile, match="not valid JSON"):
        read_info(bundle)


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ({"general.architecture": "llama"}, "simple"),
        ({"general.architecture": "qwen35", "qwen35.nextn_predict_layers": 1}, "mtp"),
        ({"general.architecture": "qwen35", "qwen35.nextn_predict_layers": 0}, "simple"),
        ({"general.architecture": "dflash"}, "dflash"),
        ({"general.architecture": "eagle3"}, "eagle3"),
    ],
)
def test_kinds_of_draft_models(metadata, kind):
    assert find_draft_kind(metadata) == kind


def write_parts(folder: Path, *parts: tuple[str, int | None, int | None]) -> Path:
    """Write files with `split.no` and `split.count`; return the first."""
    for name, number, count in parts:

        def extra(writer: Any, number: Any = number, count: Any = count) -> None:
            if count is not None:
                writer.add_uint16("split.no", number)
                writer.add_uint16("split.count", count)

        write_tiny_gguf(folder / name, extra=extra)
    return folder / parts[0][0]


A, B = "x-00001-of-00002.gguf", "x-00002-of-00002.gguf"


@pytest.mark.parametrize("kind", ["mmproj", "adapter", "imatrix", ""])
def test_a_file_that_is_no_model_by_its_header(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "eyes.gguf"
    if kind:
        write_tiny_gguf(path, extra=lambda writer: writer.add_string("general.type", kind))
    else:
        write_projector(path, 64)
    with pytest.raises(BadModelFile, match=f"its type is {kind or 'mmproj'}"):
        read_info(at(path))


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([(A, 0, 2), (B, 1, 2)], None),
        ([(A, 1, 2), (B, 0, 2)], "part 2 of 2 of a model, not 1 of 2"),  # a wrong order
        ([(A, 0, 2), (B, 0, 2)], "part 1 of 2 of a model, not 2 of 2"),
        ([(A, 0, 3), (B, 1, 3)], "x-00003-of-00003.gguf is missing"),
        ([("x.gguf", 0, 2)], "x-00002-of-00002.gguf is missing"),  # renamed, or joined by cat
        ([("x.gguf", 2, 3)], "x-00001-of-00003.gguf is missing"),
        ([("x.gguf", 0, 1)], None),
        ([(A, None, None)], None),  # no shards, whatever they are called
        ([(A, None, None), (B, None, None)], None),
        ([(A, 0, 2)], "missing, such as x-00002-of-00002.gguf"),
        ([(B, 1, 2)], "missing, such as x-00001-of-00002.gguf"),
    ],
)  # fmt: skip
def test_parts_of_a_model(tmp_path: Path, parts: Any, says: str | None) -> None:
    first = write_parts(tmp_path, *parts)
    if says is None:
        assert read_info(at(first)).parameter_count
        return
    with pytest.raises(BadModelFile, match=says):
        read_info(at(first))


def test_a_projector_by_its_width(tmp_path: Path) -> None:
    for width in (64, 128):
        write_tiny_gguf(tmp_path / f"m{width}-Q8_0.gguf", n_embd=width)
    write_projector(tmp_path / "mmproj-F16.gguf", 128)
    assert at(tmp_path / "m128-Q8_0.gguf").projector == tmp_path / "mmproj-F16.gguf"
    blind = at(tmp_path / "m64-Q8_0.gguf")
    assert (blind.projector, blind.unfit_projector) == (None, tmp_path / "mmproj-F16.gguf")


def write_projector(path: Path, width: int) -> None:
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_tensor("v.patch_embd.weight", np.zeros((64, 32), np.float32))
    writer.add_tensor("mm.2.weight", np.zeros((width, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
