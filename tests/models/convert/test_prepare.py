"""What a conversion would do, and what is refused before anything moves."""

from __future__ import annotations

import pytest

from tests.models.convert.conftest import local, repository
from tests.models.test_mistral_format import write_mistral_folder
from vllama.base.errors import BadModelFile, BadRequest, ModelNotFound, NoPlan
from vllama.models.convert.job import ConversionOptions
from vllama.models.convert.prepare import prepare


def test_the_quantization_may_stand_in_the_name(hub, library, tmp_path):
    hub.add_repo("Org/Model", repository(tmp_path / "r"))
    job = prepare(library, "hf.co/org/model:q5_k_m", ConversionOptions())
    assert (job.quant, job.result) == ("Q5_K_M", "hf.co/Org/Model:Q5_K_M")


@pytest.mark.parametrize(
    ("wishes", "quant", "via"),
    [
        ({}, "Q4_K_M", "F16"),
        ({"outtype": "auto"}, "F16", "F16"),
        ({"outtype": "bf16"}, "BF16", "BF16"),
        ({"outtype": "q8_0"}, "Q8_0", "Q8_0"),
        ({"quantize": "Q6_K", "outtype": "f32"}, "Q6_K", "F32"),
        ({"quantize": "Q6_K", "outtype": "auto"}, "Q6_K", "F16"),
        ({"quantize": "f16"}, "F16", "F16"),
    ],
)
def test_types(library, tmp_path, wishes, quant, via):
    job = prepare(library, str(local(tmp_path / "mine")), ConversionOptions(**wishes))
    assert (job.quant, job.via, job.needs_quantizer) == (quant, via, quant != via)


def test_a_model_for_vectors_is_not_quantized_unasked(library, tmp_path):
    folder = local(tmp_path / "mine", architectures=["BertModel"])
    assert prepare(library, str(folder), ConversionOptions()).quant == "F16"


@pytest.mark.parametrize(
    ("name", "wishes", "error", "says"),
    [
        ("mine", {"quantize": "q4"}, BadRequest, "unsupported quantization"),
        ("mine", {"outtype": "q4_k_m"}, BadRequest, "unsupported type"),
        ("mine", {"quantize": "Q4_0", "outtype": "q8_0"}, BadRequest, "it is already Q8_0"),
        ("mine", {"output": "a b"}, BadRequest, "invalid model name"),
        ("mine", {"output": "hf.co/a/b"}, BadRequest, "invalid model name"),
        ("gguf", {}, BadRequest, "it is already a GGUF file"),
        ("gguf", {"quantize": "f16"}, BadRequest, "it is already F16"),
        ("nowhere", {}, ModelNotFound, "cannot find a model at"),
        ("awq", {}, BadModelFile, "quantized with AWQ"),
        ("own", {}, BadModelFile, "Mistral's own format"),
    ],
)
def test_what_is_refused_before_anything_moves(
    library, tmp_path, tiny, name, wishes, error, says
):  # fmt: skip
    local(tmp_path / "mine")
    local(tmp_path / "awq", quantization_config={"quant_method": "awq"})
    write_mistral_folder(tmp_path / "own")
    (tmp_path / "gguf").symlink_to(tiny.parent)
    with pytest.raises(error, match=says):
        prepare(library, str(tmp_path / name), ConversionOptions(**wishes))


def test_a_repository_of_ggufs(hub, library, tiny):
    hub.add_repo("Org/Model-GGUF", {"m-Q8_0.gguf": tiny})
    with pytest.raises(NoPlan, match="no safetensors found") as caught:
        prepare(library, "org/model-gguf", ConversionOptions())
    assert "vllama pull org/model-gguf" in caught.value.hint
