from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.base.errors import BadRequest
from vllama.dialects.openai.multipart import (
    MAX_HEADER_BYTES,
    MAX_PARTS,
    FormPart,
    FormReader,
    FormTooLarge,
    build_form,
)

TYPE = "multipart/form-data; boundary=x"
FIELD = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'
PIECE_BYTES = 64 * 1024  # what a socket gives at most
FILE = bytes(range(256)) + b"\r\n\n\r--vllama-1\r\n\x00\xff"


def parse_form(body: bytes, content_type: str, piece_bytes: int = PIECE_BYTES) -> list[FormPart]:
    form = FormReader(content_type)
    for piece in cut(body, piece_bytes):
        form.feed(piece)
    return form.parts()


def cut(body: bytes, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    return (body[at : at + piece_bytes] for at in range(0, len(body), piece_bytes))


def test_there_and_back() -> None:
    parts = [
        FormPart(name="model", data="größe:m".encode()),
        FormPart(name="file", data=FILE, filename='a "b".wav', content_type="audio/wav"),
        FormPart(name="empty", data=b""),
    ]
    body, content_type = build_form(parts, seed="1")
    assert content_type == "multipart/form-data; boundary=vllama-1x"  # the file has the other
    back = parse_form(body, content_type)
    assert [(p.name, p.data) for p in back] == [(p.name, p.data) for p in parts]
    assert back[0].text == "größe:m" and back[0].filename is None
    assert back[1].content_type == "audio/wav" and back[1].filename == 'a "b".wav'


def test_as_browsers_and_curl_write_it() -> None:
    body = (
        b"--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n"
        b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n"
        b"Content-Type: audio/x-wav\r\n\r\nRIFF\n\r\n\r\n--XX--\r\n"
    )  # fmt: skip
    model, file = parse_form(body, 'Multipart/Form-Data; Boundary="XX"')
    assert (model.name, model.text) == ("model", "m")
    assert (file.data, file.filename) == (b"RIFF\n\r\n", "a.wav")


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        (b"{}", "application/json", "Content-Type is not multipart/form-data"),
        (b"{}", "", "Content-Type is not multipart/form-data"),
        (b"", "multipart/form-data", "Empty boundary"),
        (b"", "multipart/form-data; boundary=x", "Unexpected end"),
        (b"hello", "multipart/form-data; boundary=x", "Unexpected end"),
        (FIELD + b"no end", "multipart/form-data; boundary=x", "Unexpected end"),
        (b"--x\r\n\r\nof no name\r\n--x--", TYPE, "Missing Content-Disposition"),
        (b"--x\r\nContent-Disposition: form-data\n\n1\n--x--", TYPE, "Invalid line break"),
        (b"", f"{TYPE}{'y' * 2000}", "Content-Type is not"),
        (b"", 'multipart/form-data; boundary="x\nx: y"', "Invalid characters in boundary"),
    ],
)
def test_broken(body: bytes, content_type: str, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_form(body, content_type)
    assert str(caught.value).startswith("failed to parse multipart form: ")
    assert text in str(caught.value)


@given(
    st.lists(st.tuples(st.text(max_size=6), st.binary(max_size=60)), min_size=1, max_size=4),
    st.integers(1, 99),
)
def test_any_form_survives(fields: list[tuple[str, bytes]], piece_bytes: int) -> None:
    parts = [
        FormPart(name=f"n{n}", data=data, filename=name) for n, (name, data) in enumerate(fields)
    ]
    back = parse_form(*build_form(parts, seed="s"), piece_bytes=piece_bytes)
    assert [part.data for part in back] == [data for _, data in fields]
    assert [part.name for part in back] == [part.name for part in parts]


@given(st.binary(max_size=200), st.text(max_size=40))
def test_only_bad_request_ever(body: bytes, content_type: str) -> None:
    for kind in (content_type, "multipart/form-data; boundary=" + content_type):
        try:
            parse_form(body, kind)
        except BadRequest:
            pass


def test_names_of_files_as_older_clients_write_them() -> None:
    def name_in(disposition: bytes) -> str | None:
        body = b"--x\r\nContent-Disposition: form-data; %b\r\n\r\n\r\n--x--" % disposition
        (part,) = parse_form(body, TYPE)
        return part.filename

    assert name_in(b"name=\"file\"; filename*=utf-8''gr%C3%B6%C3%9Fe.mp3") == "größe.mp3"
    assert name_in(b"name=\"file\"; filename*=nothing''a.mp3; x=1") == "a.mp3"
    assert name_in(b"name=file; filename=a.wav") == "a.wav"
    assert name_in(b'name="file"') is None


def head_of(*lines: bytes) -> bytes:
    return b"--x\r\n" + b"\r\n".join(lines) + b"\r\n\r\n\r\n--x--\r\n"


@pytest.mark.parametrize(
    "body",
    [
        FIELD * (MAX_PARTS + 1) + b"--x--",
        FIELD * 100_000,
        head_of(b"Content-Disposition: form-data" + b"; name*0*=a" * 30_000),
        head_of(b"Content-Disposition: form-data; a=" + b"\\" * MAX_HEADER_BYTES),
        head_of(*[b"Content-Disposition: form-data; name=a"] * 30_000),
        b"--x\r\nX: " + b"y" * 1_000_000,
        b"--x\r\n" + b"X: y\r\n" * 100_000,
        b"--x\r\nX: y\r\n" + b" y\r\n" * 100_000,
    ],
)
def test_too_many_parts_and_headers_are_refused_before_the_rest_is_read(body: bytes) -> None:
    form, pieces, read = FormReader(TYPE), cut(body, 1024), 0
    with pytest.raises(FormTooLarge) as caught:
        for piece in pieces:
            read += len(piece)
            form.feed(piece)
    assert caught.value.status == 413
    assert read <= 2 * MAX_PARTS * len(FIELD)


def nested(depth: int) -> bytes:
    inner = b"".join(
        b"--%d\r\nContent-Type: multipart/mixed; boundary=%d\r\n\r\n" % (level, level + 1)
        for level in range(depth)
    )
    return (
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n'
        b"Content-Type: multipart/mixed; boundary=0\r\n\r\n" + inner + b"\r\n--x--"
    )


def test_nested_parts_are_data() -> None:
    (part,) = parse_form(nested(3000), TYPE)
    assert part.content_type == "multipart/mixed" and part.data.startswith(b"--0\r\n")


@pytest.mark.parametrize(
    "filling", [b"\n", b"\r", b"\r\n", b"\r\n-", b"\r\n--", b"-", b"\r\n--y", b"\0"]
)
@pytest.mark.parametrize("start", [b"", b"\r\n", FIELD[:-2]])
def test_the_work_is_linear_in_the_pieces(filling: bytes, start: bytes) -> None:
    def work(size_bytes: int) -> int:
        body = start + filling * (size_bytes // len(filling)) + b"\r\n--x--"
        return lines_run(cut(body))

    once, twice = work(16 * PIECE_BYTES), work(32 * PIECE_BYTES)
    assert twice < 2.5 * once
    assert once < 16 * 100  # lines of Python for a piece: it looks at no single bytes


def lines_run(pieces: Iterable[bytes]) -> int:
    """Count the lines of Python that run for these pieces, in whatever module."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    form, before = FormReader(TYPE), sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        for piece in pieces:
            form.feed(piece)
        form.parts()
    except BadRequest:
        pass
    finally:
        sys.settrace(before)
    return count
