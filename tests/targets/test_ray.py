"""What vllama asks of Ray, and what it makes of Ray's words; `make test-ray` runs it for real."""

from __future__ import annotations

import importlib.util
import socket
import sys

import pytest

from vllama.base.errors import ConfigError, VllamaError
from vllama.cli.commands import join as command
from vllama.targets.ray.cluster import (
    ENVIRON,
    TOKEN,
    check_ray,
    explain_end,
    make_environ,
    make_start,
    make_token,
)

# as Ray 2.60 printed it
WRONG_TOKEN = """\
  File "python/ray/includes/common.pxi", line 119, in ray._raylet.check_status
ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken: Authentication token is missing or incorrect. Ensure…
"""  # noqa: E501
OTHER_VERSION = """\
    raise RuntimeError(error_message)
RuntimeError: Version mismatch: The cluster was started with:
    Ray: 2.60.0
    Python: 3.11.7
This process on node 192.0.2.2 was started with:
    Ray: 2.59.0
    Python: 3.11.8
"""
TOO_SLOW = """\
  File "…/ray/_private/node.py", line 440, in __init__
Exception: The current node timed out during startup.
"""


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (WRONG_TOKEN, "the token is not that of this cluster"),
        (
            OTHER_VERSION,
            "the head has Ray 2.60.0 and Python 3.11.7, this machine has Ray 2.59.0 and Python "
            "3.11.8",
        ),
        (TOO_SLOW, "Ray has ended: Exception: The current node timed out during startup."),
        ("2026-11-27 INFO scripts.py:1 -- It stops.\n", "Ray has ended: It stops."),
        ("", "Ray has ended: it has printed nothing"),
    ],
)
def test_why_ray_has_not_joined(output, reason) -> None:
    assert explain_end(output)[0] == reason


def test_ray_is_started_with_a_token_and_without_a_dashboard(tmp_path) -> None:
    make_token(tmp_path)
    token = (tmp_path / TOKEN).read_text().strip()
    assert len(token) == 64
    assert (tmp_path / TOKEN).stat().st_mode & 0o777 == 0o600
    make_token(tmp_path)
    assert (tmp_path / TOKEN).read_text().strip() == token
    environ = make_environ({"HOME": "/h"}, tmp_path / TOKEN)
    assert environ["RAY_AUTH_MODE"] == "token"
    assert environ["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / TOKEN)
    head, member = make_start("10.0.0.4"), make_start("10.0.0.5", "10.0.0.4:6379")
    assert head[0] == member[0] == sys.executable  # actors run in the Python of Ray's node
    assert "--include-dashboard=false" in head
    assert "--address=10.0.0.4:6379" in member
    assert token not in " ".join([*head, *member, *ENVIRON.values()])


def test_without_ray_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="Ray is not installed") as raised:
        check_ray("join a cluster")
    assert raised.value.hint == "pip install 'ray>=2.52'"


@pytest.mark.parametrize(
    ("address", "reason"),
    [("box", "no HOST:PORT"), ("127.0.0.1:0", "refused|assign requested"), (":6379", "no HOST")],
)
def test_a_head_that_cannot_be_reached(monkeypatch, address, reason) -> None:
    monkeypatch.setattr(command, "CONNECT_LIMIT_S", 0.1)
    with pytest.raises(VllamaError, match=reason):
        command.find_own_address(address)


def test_the_address_towards_the_head() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        assert command.find_own_address(f"127.0.0.1:{head.getsockname()[1]}") == "127.0.0.1"
