"""Models in Mistral's own format: their files, what is read of them, and who serves them."""

import json
from dataclasses import replace

import pytest

from tests.engines.others import ALL
from tests.facts import CPU, bundle
from tests.tiny import make_weights
from vllama.base.errors import BadModelFile
from vllama.engines.vllm.adapter import ENGINE as VLLM
from vllama.engines.vllm.arguments import choose_formats
from vllama.engines.vllm.parsers import choose_tool_parser
from vllama.models.convert.workspace import check_folder
from vllama.models.headers.safetensors import is_model_folder, list_weight_files, read_folder
from vllama.models.lookup import Entry
from vllama.models.names.mistral_format import translate_params
from vllama.models.names.ref import ModelRef
from vllama.models.names.variants import choose_safetensors_files, is_mistral_format
from vllama.models.stores.folder import FolderStore
from vllama.models.types import Capability, Format
from vllama.routes.prompts.templates import find_style, find_template

PARAMS = {
    "dim": 64,
    "n_layers": 3,
    "head_dim": 24,
    "hidden_dim": 256,
    "n_heads": 4,
    "n_kv_heads": 2,
    "vocab_size": 1000,
    "rope_theta": 1e6,
    "sliding_window": 512,
    "max_position_embeddings": 4096,
}
OWN = ("params.json", "tekken.json", "consolidated.safetensors")
USUAL = ("config.json", "tokenizer.json", "model-00001-of-00002.safetensors")
SECOND = "model-00002-of-00002.safetensors"


def write_mistral_folder(path):
    """Make the folder of a model in Mistral's format, and return it."""
    path.mkdir()
    (path / "params.json").write_text(json.dumps(PARAMS))
    (path / "tekken.json").write_text("{}")
    (path / "consolidated.safetensors").write_bytes(make_weights(1000))
    return path


@pytest.fixture
def folder(tmp_path):
    return write_mistral_folder(tmp_path / "Ministral-Tiny")


@pytest.mark.parametrize(
    ("paths", "is_own"),
    [
        (OWN, True),
        (("params.json", "tokenizer.model.v3", "consolidated.safetensors"), True),
        ((*OWN, "config.json"), True),  # without weights for it
        ((*OWN, *USUAL), True),  # whose weights are not complete
        ((*OWN, *USUAL, SECOND), False),
        ((*OWN, "config.json", "model.safetensors"), False),
        (("config.json", "params.json", "model.safetensors"), False),
        (("params.json", "consolidated.00.pth"), False),
        (("consolidated.safetensors", "tekken.json"), False),
        (("original/params.json", "original/consolidated.safetensors"), False),
    ],
)
def test_the_format_is_told_by_the_files(paths, is_own):
    assert is_mistral_format(paths) is is_own


def test_only_the_files_of_one_form_are_fetched():
    assert choose_safetensors_files([*OWN, "README.md"]) == tuple(sorted(OWN))
    old = ["params.json", "tokenizer.model.v3", "consolidated.safetensors"]
    assert choose_safetensors_files(old) == tuple(sorted(old))
    both = choose_safetensors_files([*OWN, *USUAL, SECOND])
    assert "consolidated.safetensors" not in both and {*USUAL, SECOND} < set(both)
    shards = [f"consolidated-{n:05d}-of-00002.safetensors" for n in (1, 2)]
    index = "consolidated.safetensors.index.json"
    chosen = choose_safetensors_files(["params.json", "tekken.json", *shards, index])
    assert set(shards) < set(chosen)
    twice = choose_safetensors_files([*OWN, *shards, index])
    assert "consolidated.safetensors" not in twice and set(shards) < set(twice)


def test_a_folder_is_read(folder):
    info = read_folder(folder)
    assert (info.architecture, info.quant) == ("mistral", "BF16")
    assert (info.parameter_count, info.weights_bytes) == (1000, 2000)
    assert (info.block_count, info.embedding_length) == (3, 64)
    assert (info.head_count, info.head_count_kv) == (4, (2, 2, 2))
    assert (info.key_length, info.context_length, info.sliding_window) == (24, 4096, 512)
    assert info.vocab_size == 1000
    assert info.mistral_weights and info.mistral_tokenizer
    assert info.capabilities == {Capability.COMPLETION, Capability.TOOLS}


def test_a_folder_with_both_forms_is_one_of_the_usual_form(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    (folder / "model.safetensors").write_bytes(make_weights(7))
    info = read_folder(folder)
    assert (info.architecture, info.parameter_count) == ("llama", 7)
    assert not info.mistral_weights
    assert info.mistral_tokenizer  # there is no other
    (folder / "tokenizer.json").write_text("{}")
    assert not read_folder(folder).mistral_tokenizer


def test_the_shards_of_an_index_are_the_weights(folder):
    (folder / "consolidated.safetensors").unlink()
    shards = [f"consolidated-{n:05d}-of-00002.safetensors" for n in (1, 2)]
    for name in shards:
        (folder / name).write_bytes(make_weights(1000))
    index = {"weight_map": {"a": shards[0], "b": shards[1]}}
    (folder / "consolidated.safetensors.index.json").write_text(json.dumps(index))
    assert [path.name for path in list_weight_files(folder)] == shards
    assert read_folder(folder).parameter_count == 2000


def test_a_folder_is_found_by_its_path_and_in_a_folder_of_models(folder):
    assert is_model_folder(folder)
    store = FolderStore([folder.parent])
    assert [item.name for item in store.list()] == ["ministral-tiny:latest"]
    for path in (folder, folder / "consolidated.safetensors"):
        found = store.find(ModelRef.parse(str(path)))
        assert found is not None and found.path == folder
    (folder / "params.json").unlink()
    assert store.list() == []


@pytest.mark.parametrize(
    ("params", "key", "value"),
    [
        ({}, "model_type", "mistral"),
        ({"moe": {"num_experts": 8}}, "model_type", "mixtral"),
        ({}, "max_position_embeddings", 128_000),
        ({"max_seq_len": 32768}, "max_position_embeddings", 32768),
        ({"vision_encoder": {"hidden_size": 8}}, "vision_config", {}),
        ({"multimodal": {"whisper_model_args": {}}}, "audio_config", {}),
        ({"kv_lora_rank": 512}, "kv_lora_rank", 512),
        (
            {"quantization": {"qformat_weight": "fp8_e4m3"}},
            "quantization_config",
            {"quant_method": "fp8"},
        ),
    ],
)
def test_params_are_translated(params, key, value):
    assert translate_params(params)[key] == value


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"n_layers": 10**9})])
def test_damaged_params_are_an_error(folder, content):
    (folder / "params.json").write_text(content)
    with pytest.raises(BadModelFile):
        read_folder(folder)


def test_only_vllm_serves_it(folder):
    info = read_folder(folder)
    assert VLLM.refuses(CPU, info) is None
    for engine in ALL:
        if Format.SAFETENSORS in engine.formats:
            assert "Mistral's own format" in engine.refuses(CPU, info), engine.name
    with pytest.raises(BadModelFile, match="Mistral's own format"):
        check_folder(folder, "x")


def test_vllm_is_told_the_format(folder):
    info = read_folder(folder)
    flags = choose_formats(info, ())
    assert dict(zip(flags[::2], flags[1::2], strict=True)) == dict.fromkeys(
        ("--tokenizer-mode", "--config-format", "--load-format"), "mistral"
    )
    assert "--load-format" not in choose_formats(info, ("--load-format", "dummy"))
    assert choose_tool_parser(info) == "mistral"
    assert choose_formats(replace(info, mistral_weights=False), ()) == (
        *("--tokenizer-mode", "mistral"),
    )
    assert choose_tool_parser(replace(info, capabilities=frozenset())) is None


def test_no_bare_text_is_sent_where_the_tokenizer_makes_the_prompts(folder):
    entry = Entry(bundle(format=Format.SAFETENSORS), lambda: read_folder(folder))
    assert find_template(entry) is None
    assert find_style(entry, None) is None
    plain = Entry(entry.bundle, lambda: replace(entry.info, mistral_tokenizer=False))
    assert find_template(plain) is not None
