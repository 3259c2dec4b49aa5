"""Answers of registries and hubs: too long, packed, nested, and leading elsewhere."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.hostile.rogue import Reply, Rogue, endless, rogue
from tests.hostile.test_model_files import MB, memory
from vllama.base.errors import VllamaError
from vllama.models.library import Library

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MOST_SENT = 64 * MB
"""What a server may have handed to the kernel before it notices that its client has left."""


@cache
def packed(compress: Callable[[bytes], bytes]) -> bytes:
    return compress(b" " * 64 * MB)


GZIP, ZSTD = {"Content-Encoding": "gzip"}, {"Content-Encoding": "zstd"}
BODIES: dict[str, Callable[[], Reply]] = {
    "endless": lambda: Reply(body=endless()),
    "64 MB of blanks in zstd": lambda: Reply(body=[packed(zstd.compress)], headers=ZSTD),
    "64 MB of blanks in gzip": lambda: Reply(body=[packed(gzip.compress)], headers=GZIP),
    "gzip in gzip": lambda: Reply(body=[gzip.compress(packed(gzip.compress))], headers=GZIP),
    "two encodings": lambda: Reply(
        body=[gzip.compress(b"{}")], headers={"Content-Encoding": "gzip, gzip"}
    ),
    "brotli": lambda: Reply(body=[b"\x8b\x03"], headers={"Content-Encoding": "br"}),
    "no gzip at all": lambda: Reply(body=[b"{}"], headers=GZIP),
    "empty gzip blocks without end": lambda: Reply(
        body=prefixed(gzip.compress(b"")[:10], b"\x00\x00\x00\xff\xff" * 10_000), headers=GZIP
    ),
    "gzip that is cut": lambda: Reply(body=[gzip.compress(b'{"a": 1}')[:-9]], headers=GZIP),
    "200,000 brackets": lambda: Reply(body=[b"[" * 200_000]),
    "brackets in an object": lambda: Reply(
        body=[b'{"id": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"]
    ),
    "two million empty lists": lambda: Reply(body=[b"[" + b"[]," * 2_000_000 + b"[]]"]),
    "a number of 5,000 digits": lambda: Reply(body=[b'{"a": ' + b"9" * 5000 + b"}"]),
    "no JSON": lambda: Reply(body=[b"\xff\xfe{"]),
    "an endless error": lambda: Reply(body=endless(), status=400),
    "a packed error": lambda: Reply(body=[packed(zstd.compress)], status=404, headers=ZSTD),
    "an endless server error": lambda: Reply(body=endless(), status=503),
}


def prefixed(first: bytes, rest: bytes) -> Iterator[bytes]:
    yield first
    yield from endless(rest)


def refused(ask: Callable[[], object], server: Rogue) -> VllamaError:
    """Return the error of a pull that took neither memory nor the server's bytes without end."""
    with memory(48 * MB), pytest.raises(VllamaError) as caught:
        ask()
    assert server.sent_bytes <= MOST_SENT
    return caught.value


@pytest.fixture(params=BODIES.values(), ids=BODIES)
def reply(request: pytest.FixtureRequest) -> Reply:
    return request.param()


def test_a_hub(server: Rogue, library: Library, reply: Reply) -> None:
    server.answer = lambda path: reply
    refused(lambda: library.remote.pull("org/model"), server)


def test_a_manifest(server: Rogue, library: Library, reply: Reply) -> None:
    server.answer = lambda path: reply
    refused(lambda: library.remote.pull(f"{server.host}/library/model"), server)


def test_a_token(server: Rogue, library: Library, reply: Reply) -> None:
    challenge = {"WWW-Authenticate": f'Bearer realm="{server.url}/token"'}
    wanted = Reply(status=401, headers=challenge, body=[b"{}"])
    server.answer = lambda path: reply if path == "/token" else wanted
    refused(lambda: library.remote.pull(f"{server.host}/library/model"), server)


@pytest.mark.parametrize(
    "token", ["a\r\nx: y", "a b", "ä", "\x00", "x" * 100_000, 5, None, ["a"], {"a": 1}]
)
def test_a_token_that_cannot_be_sent(server: Rogue, library: Library, token: object) -> None:
    challenge = {"WWW-Authenticate": f'Bearer realm="{server.url}/token"'}
    wanted = Reply(status=401, headers=challenge)
    answer = Reply(body=[json.dumps({"token": token}).encode()])
    server.answer = lambda path: answer if path == "/token" else wanted
    refused(lambda: library.remote.pull(f"{server.host}/library/model"), server)
    assert not any("authorization" in headers for _, headers in server.asked)


@pytest.mark.slow
def test_pages_without_end(server: Rogue, library: Library) -> None:
    """A list of files whose every page names a next one."""
    about = {"id": "org/model", "sha": "a" * 40, "siblings": [{"rfilename": "m.gguf"}]}
    pages: Iterable[bytes] = [b"[]"]

    def answer(path: str) -> Reply:
        if "/tree/" not in path:
            return Reply(body=[json.dumps(about).encode()])
        return Reply(body=pages, headers={"Link": f'<{server.url}{path}?p=1>; rel="next"'})

    server.answer = answer
    refused(lambda: library.remote.pull("org/model"), server)
    assert len(server.asked) < 300


# -- what leads elsewhere ------------------------------------------------------------------------

SIZE = 1000


def hub(server: Rogue, *files: dict[str, object], **about: object) -> None:
    row = {"id": "org/model", "sha": "a" * 40, "siblings": list(files), **about}
    server.answer = lambda path: (
        Reply(body=[json.dumps(row).encode()])
        if path.startswith("/api/")
        else Reply(
            body=[bytes(SIZE)], headers={"ETag": '"' + "b" * 40 + '"', "Content-Length": str(SIZE)}
        )
    )


def everything(folder: Path) -> dict[str, str]:
    """Return all files and links below a folder, with what is in them."""
    return {
        str(path.relative_to(folder)): (
            str(path.readlink()) if path.is_symlink() else path.read_bytes().hex()
        )
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def names(victim: Path) -> list[str]:
    return [
        str(victim),
        f"../../../../{victim.name}",
        f"../../../victim/{victim.name}",
        "..",
        ".",
        "a/b",
        "a\0b",
        "/",
        "x" * 5000,
    ]


@pytest.mark.parametrize("field", ["blobId", "lfs", "rfilename", "sha", "id"])
@pytest.mark.parametrize("number", range(9))
def test_names_of_a_hub_stay_in_the_cache(
    tmp_path: Path, server: Rogue, library: Library, field: str, number: int
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "model-Q8_0.gguf").write_bytes(bytes(SIZE))
    before = everything(victim)
    name = names(victim / "model-Q8_0.gguf")[number]
    file: dict[str, object] = {"rfilename": "m-Q4_0.gguf", "size": SIZE, "blobId": "b" * 40}
    about: dict[str, object] = {}
    if field == "lfs":
        file["lfs"] = {"sha256": name, "size": SIZE}
    elif field in ("sha", "id"):
        about[field] = name
    elif field == "rfilename":
        file[field] = f"{name}/m-Q4_0.gguf"
    else:
        file[field] = name
    hub(server, file, **about)
    if (field, name) != ("rfilename", "a/b") and (field, name) != ("id", "a/b"):
        refused(lambda: library.remote.pull("org/model"), server)
    cache = tmp_path / "hub"
    for path in cache.rglob("*"):
        assert path.resolve().is_relative_to(cache.resolve())
    assert everything(victim) == before


def test_a_folder_of_the_cache_that_leads_out(
    tmp_path: Path, server: Rogue, library: Library
) -> None:
    """A link that another program left in a snapshot takes no file out of it."""
    snapshot = tmp_path / "hub/models--org--model/snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    (snapshot / "sub").symlink_to(tmp_path / "victim")
    content = bytes(SIZE)
    etag = hashlib.sha1(b"blob %d\0" % SIZE + content, usedforsecurity=False).hexdigest()
    hub(server, {"rfilename": "sub/m-Q4_0.gguf", "size": SIZE, "blobId": etag})
    blob = tmp_path / "hub/models--org--model/blobs" / etag
    blob.parent.mkdir()
    blob.write_bytes(content)
    refused(lambda: library.remote.pull("org/model"), server)
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_folder_is_no_blob(tmp_path: Path, server: Rogue, library: Library) -> None:
    blob = tmp_path / "hub/models--org--model/blobs" / ("b" * 40)
    blob.mkdir(parents=True)
    size = blob.stat().st_size
    hub(server, {"rfilename": "m-Q4_0.gguf", "size": size, "blobId": "b" * 40})
    refused(lambda: library.remote.pull("org/model"), server)
    assert not list(tmp_path.glob("hub/models--*/snapshots/*/*"))


@pytest.mark.parametrize("size", [2**44, 2**63, 10**30, -1, 1e999])
def test_sizes_that_no_file_has(server: Rogue, library: Library, size: float) -> None:
    hub(server, {"rfilename": "m-Q4_0.gguf", "size": size, "blobId": "b" * 40})
    refused(lambda: library.remote.pull("org/model"), server)


@pytest.mark.parametrize("size", [str(2**62), str(10**30), "9" * 5000, "-5", "x"])
def test_a_file_that_grows_on_its_way(
    tmp_path: Path, server: Rogue, library: Library, size: str
) -> None:
    hub(server, {"rfilename": "m-Q4_0.gguf", "size": SIZE, "blobId": "b" * 40})
    plain = server.answer

    def answer(path: str) -> Reply:
        if path.startswith("/api/"):
            return plain(path)
        return Reply(headers={"ETag": '"' + "b" * 40 + '"', "X-Linked-Size": size})

    server.answer = answer
    refused(lambda: library.remote.pull("org/model"), server)
    assert all(path.stat().st_size <= SIZE for path in tmp_path.glob("hub/models--*/blobs/*"))


@pytest.mark.slow
def test_a_hundred_thousand_shards(server: Rogue, library: Library) -> None:
    files = [
        {"rfilename": f"{n}-00001-of-99999.gguf", "size": 1, "blobId": "b" * 40}
        for n in range(3_000)
    ]
    hub(server, *files)
    refused(lambda: library.remote.pull("org/model"), server)


@pytest.mark.parametrize(
    "value", ["9" * 5000, "t=" + "9" * 5000, "-1", "1e999", "soon"], ids=range(5)
)
@pytest.mark.parametrize("name", ["Retry-After", "RateLimit"])
def test_a_wait_that_is_no_number(server: Rogue, library: Library, name: str, value: str) -> None:
    server.answer = lambda path: Reply(status=429, headers={name: value})
    refused(lambda: library.remote.pull("org/model"), server)


# -- tokens --------------------------------------------------------------------------------------


@pytest.fixture
def other() -> Iterator[Rogue]:
    with rogue() as running:
        yield running


def test_the_hubs_token_goes_to_no_other_host(
    server: Rogue, other: Rogue, library: Library
) -> None:
    server.answer = lambda path: Reply(status=302, headers={"Location": f"{other.url}{path}"})
    refused(lambda: library.remote.pull("org/model"), server)
    assert server.asked[0][1]["authorization"] == "Bearer hf_secret"
    assert other.asked
    assert not any("authorization" in headers for _, headers in other.asked)


def test_a_registrys_token_goes_to_no_other_host(
    server: Rogue, other: Rogue, library: Library
) -> None:
    challenge = {"WWW-Authenticate": f'Bearer realm="{server.url}/token"'}

    def answer(path: str) -> Reply:
        if path == "/token":
            return Reply(body=[b'{"token": "secret"}'])
        if not any("authorization" in headers for _, headers in server.asked):
            return Reply(status=401, headers=challenge)
        return Reply(status=302, headers={"Location": f"{other.url}{path}"})

    server.answer = answer
    refused(lambda: library.remote.pull(f"{server.host}/library/model"), server)
    assert any(headers.get("authorization") == "Bearer secret" for _, headers in server.asked)
    assert other.asked
    assert not any("authorization" in headers for _, headers in other.asked)


def test_a_registry_sends_nobody_elsewhere_for_a_token(
    server: Rogue, other: Rogue, library: Library
) -> None:
    challenge = {"WWW-Authenticate": f'Bearer realm="{other.url}/token"'}
    server.answer = lambda path: Reply(status=401, headers=challenge)
    refused(lambda: library.remote.pull(f"{server.host}/library/model"), server)
    assert not other.asked
