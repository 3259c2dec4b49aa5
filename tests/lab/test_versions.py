"""One version of an engine: which package it is, and the offer to install just that."""

from pathlib import Path

import pytest

from tests.engines.test_install import make_offer
from vllama.base.errors import ConfigError
from vllama.engines.registry import find_engine, load_engines
from vllama.lab.engine_versions import find_package_name, pin_version, split_version
from vllama.machine.environments.layout import list_requirements
from vllama.machine.types import Platform

CPU = Platform(os="linux", arch="x86_64", cores=2, ram_total_bytes=8, ram_available_bytes=8)


def offer(name):
    return make_offer(
        find_engine(load_engines().values(), name), CPU, Path("environments"), packages=True
    )


@pytest.mark.parametrize(
    ("text", "parts"),
    [("1.2", ("", "1.2")), ("a-b==1.2", ("a-b", "1.2")), (" a == 1 ", ("a", "1")), ("", ("", ""))],
)
def test_versions_with_and_without_a_package(text, parts):
    assert split_version(text) == parts


def test_the_package_is_the_first_or_the_one_that_is_named():
    one = offer("llama-server")
    assert find_package_name(one) == find_package_name(one, "XLlamaCpp") == "xllamacpp"
    with pytest.raises(ConfigError, match="cannot take versions of 'torch'"):
        find_package_name(one, "torch")


def test_a_version_is_pinned_and_lies_beside_others():
    one = offer("llama-server")
    pinned = pin_version(one, "xllamacpp", "2026.4.8929", Path("cache"))
    assert list_requirements(pinned.steps) == ["xllamacpp==2026.4.8929"]
    assert pinned.folder == Path("cache/2026.4.8929/llama-server")
    assert pinned.steps[0].extra_args == one.steps[0].extra_args
    assert list_requirements(one.steps) != list_requirements(pinned.steps)


@pytest.mark.parametrize("version", ["", "../x", "1/2", "-1"])
def test_what_is_no_version_names_no_folder(version):
    with pytest.raises(ConfigError, match="no version"):
        pin_version(offer("llama-server"), "xllamacpp", version, Path("cache"))
