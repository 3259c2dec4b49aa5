"""The folder of captures: its limits, its order, its modes, and what it leaves alone."""

import stat

import pytest

from tests.observe.captures.samples import make_capture
from vllama.base.errors import ConfigError, VllamaError
from vllama.observe.captures.folder import (
    CaptureFolder,
    find_capture,
    list_files,
    list_summaries,
    open_capture,
)
from vllama.observe.captures.format import Body, encode_capture, read_capture


def list_ids(folder):
    return [one.id for one in list_summaries(folder)]


def test_the_newest_come_first_and_the_oldest_go(tmp_path):
    folder = CaptureFolder(tmp_path / "captures", most=2)
    for number in (1, 2, 3):
        folder.write(make_capture(number))
    assert list_ids(folder.path) == ["19a-3", "19a-2"]
    again = CaptureFolder(folder.path, most=2)  # as after a restart of the server
    again.write(make_capture(4))
    assert list_ids(folder.path) == ["19a-4", "19a-3"]
    assert [one.id for one in list_summaries(folder.path, 1)] == ["19a-4"]


def test_a_folder_never_exceeds_its_size(tmp_path):
    size_bytes = len(encode_capture(make_capture()))
    folder = CaptureFolder(tmp_path, limit_bytes=2 * size_bytes)
    for number in range(1, 6):
        folder.write(make_capture(number))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * size_bytes
    assert list_ids(tmp_path) == ["19a-5", "19a-4"]


def test_other_files_stay_and_damaged_ones_are_skipped(tmp_path):
    note = tmp_path / "notes.json"
    note.write_text("mine")
    folder = CaptureFolder(tmp_path, most=2)
    folder.write(make_capture(1))
    (damaged,) = list_files(tmp_path)
    damaged.write_text("{")
    folder.write(make_capture(2))
    assert list_ids(tmp_path) == ["19a-2"]
    folder.write(make_capture(3))
    folder.write(make_capture(4))
    assert note.read_text() == "mine" and not damaged.exists()


def test_only_the_owner_may_read(tmp_path):
    folder = CaptureFolder(tmp_path / "captures", most=1)
    folder.write(make_capture())
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (folder.path, *folder.path.iterdir())}
    assert modes == {0o700, 0o600}


def test_a_failed_write_leaves_nothing(tmp_path):
    folder = CaptureFolder(tmp_path / "captures", most=5)
    folder.write(make_capture(1))
    (path,) = list_files(folder.path)
    blocked = folder.path / path.name.replace("19a-1", "19a-2").replace("0201500", "0202500")
    blocked.mkdir()  # so that renaming fails, as a full disk would
    with pytest.raises(OSError, match="directory"):
        folder.write(make_capture(2))
    assert {one.name for one in folder.path.iterdir()} == {path.name, blocked.name}


def test_a_capture_is_found_by_its_id_and_by_the_clients(tmp_path):
    folder = CaptureFolder(tmp_path, most=9)
    for number, request_id in enumerate(("a", "b", "a"), 1):
        folder.write(make_capture(number, request_id=request_id))
    for id_, number in (("19a-1", 1), ("b", 2), ("a", 3)):
        found = find_capture(tmp_path, id_)
        assert found is not None and found.id == f"19a-{number}"
    assert find_capture(tmp_path, "c") is None
    assert find_capture(tmp_path / "missing", "a") is None


@pytest.mark.parametrize("content", [b"\xff\x00", '{"a": "ü"}'.encode(), b""])
def test_bodies_survive(content):
    capture = make_capture(body=content, answer=[(0.1, content), (0.2, b"x")])
    back = read_capture(encode_capture(capture), "it")
    assert back == capture
    assert back.request.body.content == content and back.answer.content == content + b"x"


def test_a_large_body_is_cut():
    body = Body.of(b"123", 5)
    assert body.content == b"123" and body.cut and body.size_bytes == 5
    assert Body.of("aü".encode()[:2], 3).content == b"a\xc3"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"{}", "missing required field"), (b"x", "malformed"), (b'\xff"', "capture 'it'")],
)
def test_a_file_that_is_no_capture(content, reason):
    with pytest.raises(ConfigError, match=reason):
        read_capture(content, "it")


def test_a_capture_of_another_form_or_with_broken_base64(tmp_path):
    good = encode_capture(make_capture(body=b"\xff"))
    with pytest.raises(ConfigError, match="format version 2"):
        read_capture(good.replace(b'"format": 1', b'"format": 2'), "it")
    with pytest.raises(ConfigError, match="cannot read the capture 'it'"):
        read_capture(good.replace(b'"/w=="', b'"/w="'), "it")
    with pytest.raises(VllamaError, match="No such file"):
        open_capture(tmp_path / "missing.json")


def test_refused_requests_take_at_most_half_of_the_places(tmp_path):
    folder = CaptureFolder(tmp_path, most=4)
    for number in range(1, 5):
        folder.write(make_capture(number))
    for number in range(5, 20):
        folder.write(make_capture(number, status=400 + number % 5))
    assert list_ids(tmp_path) == ["19a-19", "19a-18", "19a-4", "19a-3"]
    for number in range(20, 23):
        folder.write(make_capture(number))
    assert list_ids(tmp_path) == ["19a-22", "19a-21", "19a-20", "19a-19"]


def test_a_server_that_keeps_fewer_deletes_none_of_an_earlier_ones(tmp_path):
    for number in range(1, 6):
        CaptureFolder(tmp_path, most=5).write(make_capture(number))
    CaptureFolder(tmp_path, most=2).write(make_capture(6))
    assert list_ids(tmp_path) == ["19a-6", "19a-5", "19a-4", "19a-3", "19a-2"]
