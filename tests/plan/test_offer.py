"""A model whose safetensors nothing here serves: the error offers a conversion."""

from dataclasses import replace

import pytest

from tests.facts import CPU, INFO, LLAMA_CPP_HERE, bundle, facts
from vllama.base.errors import NoPlan
from vllama.models.types import Format
from vllama.plan.choose import list_loadable_formats, make_plan
from vllama.plan.types import Need

LLAMA_CPP_ONLY = facts(CPU, (LLAMA_CPP_HERE,))


def test_conversion_is_offered_where_its_result_could_be_served():
    wanted = replace(bundle(), format=Format.SAFETENSORS, hub_id="Org/Model")
    with pytest.raises(NoPlan) as caught:
        make_plan(LLAMA_CPP_ONLY, wanted, INFO, Need())
    assert caught.value.hint.endswith("; or make a GGUF of it: vllama convert Org/Model")
    with pytest.raises(NoPlan) as caught:
        make_plan(facts(CPU, ()), wanted, INFO, Need())
    assert "convert" not in (caught.value.hint or "")


def test_what_is_fetched_to_be_loaded_can_be_loaded():
    assert list_loadable_formats(LLAMA_CPP_ONLY) == (Format.GGUF,)
    assert list_loadable_formats(facts(CPU, ())) == (Format.GGUF,)
