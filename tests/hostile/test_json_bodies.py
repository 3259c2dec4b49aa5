"""Bodies that are no JSON, or no UTF-8, at every route that reads one: a client's fault, no bug."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_process import Server
from vllama.accounts.keys.store import read_keys
from vllama.base.errors import ConfigError
from vllama.observe.captures.folder import open_capture
from vllama.routes.route_table import ROUTES
from vllama.scheduler.slot_cache.store import read_records
from vllama.supervise.leftovers import read_record

SOURCES = Path(__file__).parents[2] / "vllama"
BODIES = {
    "a name that is no UTF-8": b'{"na\xffme": 1}',
    "a text that is no UTF-8": b'{"model": "\xff", "name": "\xff", "input": "\xff"}',
    "a cut character": b'{"model": "\xe2\x82',
    "an overlong character": b'{"model": "\xc0\xaf"}',
    "a lone surrogate": b'{"model": "\\ud800", "name": "\\udfff"}',
    "a name twice": b'{"model": "a", "model": 1}',
    "nested": b'{"model": ' + b"[" * 2000 + b"]" * 2000 + b"}",
    "a list": b"[]",
    "null": b"null",
    "a number": b"1e999",
    "a byte-order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"model": "a"}'.encode("utf-16"),
    "nothing": b"",
}
READERS = sorted(
    (method, path.replace("{digest}", "sha256:0").replace("{name}", "x").replace("{id}", "x"))
    for route in ROUTES
    for path in route.paths
    for method in route.methods
    if method not in ("GET", "HEAD")
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    captured = ("--api-key", "root", "--capture", "9")
    with Server(tmp_path_factory.mktemp("bodies"), *captured) as running:
        yield running
    assert "Traceback" not in running.output and "unexpected error" not in running.output


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_cannot_be_read_is_the_clients_fault(name: str, server: Server) -> None:
    headers = {"authorization": "Bearer root", "content-type": "application/json"}
    for method, path in READERS:
        status, _, body = server.request(method, path, BODIES[name], headers)
        assert status < 500 or b"internal error" not in body, (method, path, status, body)


@pytest.mark.parametrize("content", [b'{"x": ' + b"[" * 9999, b"\xff", b"", b"1"])
def test_a_file_of_ours_that_cannot_be_read_stops_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    for read in (read_keys, open_capture):
        with pytest.raises(ConfigError):
            read(path)
    assert read_record(path) is None
    assert read_records(tmp_path) == []


def test_no_reader_forgets_what_is_no_utf8() -> None:
    """msgspec raises UnicodeDecodeError for some bytes, which is no DecodeError of its own."""
    found = [
        path
        for path in SOURCES.rglob("*.py")
        if re.search(r"msgspec\.DecodeError", path.read_text())
    ]
    assert not found, "write: except ValueError"
