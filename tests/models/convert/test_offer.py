"""Where a conversion is offered: at the hub, and for what lies here."""

from dataclasses import replace

import pytest

from tests.models.convert.conftest import local, repository
from vllama.base.errors import NoPlan
from vllama.models.resolve.candidates import suggest_conversion_of
from vllama.models.types import Format


def test_a_model_without_a_gguf(hub, library, tmp_path):
    hub.add_repo("Org/Model", repository(tmp_path / "r"))
    with pytest.raises(NoPlan, match="it has only safetensors; gguf is required") as caught:
        library.remote.pull("org/model", formats=(Format.GGUF,))
    assert caught.value.hint.startswith("convert it to GGUF: vllama convert Org/Model; or ")


def test_a_model_on_this_disk(library, tmp_path):
    folder = local(tmp_path / "mine")
    bundle = library.find(str(folder)).bundle
    assert suggest_conversion_of(bundle) == f"convert it to GGUF: vllama convert {folder}"
    assert (
        suggest_conversion_of(replace(bundle, hub_id="a/b"))
        == "convert it to GGUF: vllama convert a/b"
    )
    assert suggest_conversion_of(replace(bundle, format=Format.GGUF)) is None
