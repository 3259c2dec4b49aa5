"""What is refused, or warned of, before a server serves."""

from __future__ import annotations

import socket

import pytest

from tests.hub import StandInHub
from tests.hub.large import make_model
from vllama import config
from vllama.base.errors import ConfigError
from vllama.config.address import leads_to
from vllama.models.library import open_library
from vllama.plan.preview import preview_plan
from vllama.server.preflight import (
    check_upstreams,
    gather_facts,
    list_unknown_links,
    suppose_machine,
)

LAN = "203.0.113.7"  # RFC 5737: nobody's


@pytest.mark.parametrize(
    ("host", "listening", "expected"),
    [
        ("localhost", "127.0.0.1", True),
        ("127.0.0.1", "localhost", True),
        ("::1", "::1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("::1", "::", True),
        (socket.gethostname().lower(), "0.0.0.0", True),
        ("127.0.0.1", LAN, False),
        (LAN, LAN, True),
        (LAN, "127.0.0.1", False),
        (LAN, "0.0.0.0", False),
        ("gpu.example", "0.0.0.0", False),
    ],
)
def test_where_a_server_is_reached(host: str, listening: str, expected: bool) -> None:
    assert leads_to(host, listening) is expected


OWN = "http://127.0.0.1:11434"
GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "is_loop"),
    [
        (f'upstreams = ["{OWN}/v1"]', True),
        (f'[upstreams.me]\nurl = "{OWN}"', True),
        (f'[models.a]\nfallback = ["b", "{OWN}#b"]', True),
        ('[models.a]\nfallback = ["http://localhost:11434/v1#a"]', True),
        ('port = 80\n[upstreams.me]\nurl = "http://localhost/v1"', True),
        ('[upstreams.it]\nurl = "http://127.0.0.1:11435"', False),
        ('[upstreams.it]\nurl = "https://127.0.0.1"', False),
        ('[models.a]\nfallback = ["b"]\n[models.b]\nfallback = ["a"]', False),
    ],
)
def test_a_server_is_no_upstream_of_its_own(tmp_path, text: str, is_loop: bool) -> None:
    settings = read(tmp_path, text)
    if is_loop:
        with pytest.raises(ConfigError, match="it is this server, and requests would loop"):
            check_upstreams(settings)
    else:
        check_upstreams(settings)


def test_links_that_nothing_is_called_by_are_warned_of(tmp_path) -> None:
    text = """
[models.a]
fallback = ["openai:big", "be:big", "bee:big", "http://127.0.0.1:1#x", "missing"]
[upstreams.bee]
url = "http://127.0.0.1:1"
models = ["big"]
"""
    settings = read(tmp_path, text)
    library = open_library(config.models_settings(settings))
    told = list(list_unknown_links(settings, library))
    assert [line.split("'")[1] for line in told] == ["openai:big", "be:big", "missing"]
    assert told[0].endswith("upstreams: bee") and told[1].endswith("did you mean bee?")


@pytest.mark.parametrize("count", [0, 1])
def test_the_engine_is_what_would_be_installed_on_a_machine_that_is_not_here(
    tmp_path, count: int
) -> None:
    with StandInHub() as hub:
        hub.add_repo("org/large", make_model(16.0))
        settings = read(tmp_path, f'hf_endpoint = "{hub.url}"')
        library = open_library(config.models_settings(settings))
        facts = suppose_machine(gather_facts(settings), [f"{count}x 24GB"] * count, "64GB")
        told = preview_plan(library, facts, {}, "org/large")
    if count:
        assert (told["engine"], told["format"]) == ("vllm", "safetensors")
        assert "NVIDIA GPU (24 GiB)" in told["platform"]
        assert [row["pool"] for row in told["devices"]] == ["gpu0"]
    else:
        assert told["platform"].endswith("no GPU")


def read(tmp_path, text: str) -> config.Config:
    file = tmp_path / "config.toml"
    file.write_text(text)
    home = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path), "VLLAMA_DATA_DIR": str(tmp_path)}
    return config.load({}, {**home, "VLLAMA_MODELS_DIR": str(tmp_path / "m")}, file)
