from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.errors import BadRequest
from vllama.translate.multipart import Part, build_form, parse_form

FILE = bytes(range(256)) + b"\r\n\n\r--vllama-1\r\n\x00\xff"


def test_there_and_back() -> None:
    parts = [
        Part(name="model", data="größe:m".encode()),
        Part(name="file", data=FILE, filename='a "b".wav', content_type="audio/wav"),
        Part(name="empty", data=b""),
    ]
    body, content_type = build_form(parts, seed="1")
    assert content_type == "multipart/form-data; boundary=vllama-1x"  # the file has the other
    back = parse_form(body, content_type)
    assert [(p.name, p.data) for p in back] == [(p.name, p.data) for p in parts]
    assert back[0].text == "größe:m" and back[0].filename is None
    assert back[1].content_type == "audio/wav" and back[1].filename == "a %22b%22.wav"


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
        (b"{}", "application/json", "Content-Type isn't multipart/form-data"),
        (b"{}", "", "Content-Type isn't multipart/form-data"),
        (b"", "multipart/form-data", "no multipart boundary"),
        (b"", "multipart/form-data; boundary=x", "NextPart: EOF"),
        (b"hello", "multipart/form-data; boundary=x", "NextPart: EOF"),
        (b"--x\r\n\r\nno end", "multipart/form-data; boundary=x", "NextPart: EOF"),
        (b"--x\r\n\r\n\r\n" * 101 + b"--x--", "multipart/form-data; boundary=x", "more than 100"),
        (b"", "multipart/form-data; boundary=x\r\nx: y", "malformed MIME header"),
    ],
)
def test_broken(body: bytes, content_type: str, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_form(body, content_type)
    assert str(caught.value).startswith("failed to parse multipart form: ")
    assert text in str(caught.value)


@given(st.lists(st.tuples(st.text(max_size=6), st.binary(max_size=60)), min_size=1, max_size=4))
def test_any_form_survives(fields: list[tuple[str, bytes]]) -> None:
    parts = [Part(name=f"n{n}", data=data, filename=name) for n, (name, data) in enumerate(fields)]
    back = parse_form(*build_form(parts, seed="s"))
    assert [part.data for part in back] == [data for _, data in fields]
    assert [part.name for part in back] == [part.name for part in parts]


@given(st.binary(max_size=200), st.text(max_size=40))
def test_only_bad_request_ever(body: bytes, content_type: str) -> None:
    for kind in (content_type, "multipart/form-data; boundary=" + content_type):
        try:
            parse_form(body, kind)
        except BadRequest:
            pass
