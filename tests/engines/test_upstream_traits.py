"""What vllama knows of a server that it did not start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vllama.engines.base import Mode, Settings
from vllama.engines.external import External
from vllama.models.settings import UpstreamSettings
from vllama.models.types import Bundle, Capability, Format, ModelInfo, UpstreamModel

ONE, TWO = "http://one:8000", "https://two/prefix"
ENGINE = External(
    upstreams=(UpstreamSettings(url=ONE, key="key"), UpstreamSettings(url=f"{TWO}/v1", key="key"))
)
SETTINGS = Settings(mode=Mode.CHAT, alias="a", context_length=512)


def bundle(*capabilities: Capability, **known: object) -> Bundle:
    return Bundle(
        name="org/big:latest",
        store="upstream",
        format=Format.REMOTE,
        path=Path("upstream:org/big"),
        files=(),
        size_bytes=0,
        digest="0" * 64,
        modified_s=0.0,
        hub_id="org/big",
        info=ModelInfo(architecture="x", capabilities=frozenset(capabilities)),
        upstream=replace(UpstreamModel(), **known),
    )


def test_a_model_is_asked_for_only_where_it_is() -> None:
    def places(*servers: str) -> list[str]:
        endpoints, _ = ENGINE.attach(bundle(servers=servers))
        return [endpoint.url for endpoint in endpoints]

    everywhere = [endpoint.url for endpoint in ENGINE.attach()[0]]
    assert places(ONE) == everywhere[:1]
    assert places(TWO) == everywhere[1:]
    assert places(ONE, TWO) == everywhere


def test_what_is_not_known_is_looked_for_in_the_text_as_well() -> None:
    traits = ENGINE.traits(bundle(Capability.VISION), SETTINGS)
    assert traits.parses_tools and traits.may_leave_calls
    assert traits.splits_reasoning and traits.may_leave_thinking
    assert traits.takes_images and not traits.takes_audio
    assert (traits.model_name, traits.context_length) == ("org/big", 512)


@pytest.mark.parametrize("in_text", [True, False])
def test_what_is_known_is_not_looked_for_elsewhere(in_text: bool) -> None:
    known = bundle(tool_calls_in_text=in_text, thinking_in_text=in_text)
    traits = ENGINE.traits(known, SETTINGS)
    assert traits.parses_tools is traits.splits_reasoning is not in_text
    assert not traits.may_leave_calls and not traits.may_leave_thinking


def test_a_vllm_elsewhere_is_like_one_of_ours() -> None:
    traits = ENGINE.traits(bundle(owner="vllm"), SETTINGS)
    assert not traits.keeps_call_schema
    assert traits.takes_n and traits.takes_continue_final_message
    assert ENGINE.traits(bundle(owner="me"), SETTINGS).keeps_call_schema
