"""Listening early: only where it is plain, and never anywhere else than the settings say."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.ports import free_port
from vllama import config, early
from vllama.http.server import bind


@pytest.mark.parametrize(
    ("argv", "variables", "place"),
    [
        (["serve"], {}, ("127.0.0.1", 11434)),
        (["serve", "--model", "x"], {}, ("127.0.0.1", 11434)),
        (["serve", "--port", "8080"], {}, ("127.0.0.1", 8080)),
        (["serve", "--port=8080", "--host=0.0.0.0"], {}, ("0.0.0.0", 8080)),
        (["serve"], {"OLLAMA_HOST": "127.0.0.2:99"}, ("127.0.0.2", 99)),
        (["serve"], {"OLLAMA_HOST": "0.0.0.0"}, ("0.0.0.0", 11434)),
        (["serve", "--port", "1"], {"OLLAMA_HOST": "127.0.0.2:99"}, ("127.0.0.2", 1)),
        (["serve", "--", "--port", "7"], {}, ("127.0.0.1", 11434)),
        (["serve", "--port", "0"], {}, None),
        (["serve", "--port", "x"], {}, None),
        (["serve", "--port"], {}, ("127.0.0.1", 11434)),
        (["serve", "--port", "70000"], {}, None),
        (["serve", "--host", "localhost"], {}, None),
        (["serve", "--host", "::1"], {}, None),
        (["serve", "--help"], {}, None),
        (["serve", "--config", "f"], {}, None),
        (["serve"], {"OLLAMA_HOST": "http://127.0.0.1:80"}, None),
        (["serve"], {"OLLAMA_HOST": ":8080"}, None),
        (["serve"], {"VLLAMA_PORT": "1"}, None),
        (["run", "--port", "8080"], {}, None),
        ([], {}, None),
    ],
)
def test_where(tmp_path: Path, argv: list[str], variables: dict[str, str], place: object) -> None:
    assert early.where(argv, {"HOME": str(tmp_path), **variables}) == place


@pytest.mark.parametrize("flags", [{}, {"port": "8080"}, {"host": "0.0.0.0", "port": "8080"}])
@pytest.mark.parametrize("ollama_host", ["", "127.0.0.2:99", "0.0.0.0", "127.0.0.2:"])
def test_is_what_the_settings_say(tmp_path: Path, flags: dict[str, str], ollama_host: str) -> None:
    variables = {"HOME": str(tmp_path), "OLLAMA_HOST": ollama_host}
    argv = ["serve", *(word for name, value in flags.items() for word in (f"--{name}", value))]
    place = early.where(argv, variables)
    loaded = config.load(flags, variables)
    assert place in (None, (loaded.host, loaded.port))


def test_a_file_of_settings_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / ".config/vllama/config.toml"
    file.parent.mkdir(parents=True)
    file.touch()
    assert early.where(["serve"], {"HOME": str(tmp_path)}) is None


def test_the_listener_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(os, "environ", {"HOME": str(tmp_path)})
    early.listen(["serve", "--port", str(port)])
    with socket.create_connection(("127.0.0.1", port)) as client:
        listener = bind("127.0.0.1", port)
        with listener:
            server, where = listener.accept()
            server.close()
        assert where == client.getsockname()


def test_another_address_closes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(os, "environ", {"HOME": str(tmp_path)})
    early.listen(["serve", "--port", str(port)])
    bind("127.0.0.1", 0).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
