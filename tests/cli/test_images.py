"""Which words of a prompt are taken for images."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllama.base.errors import VllamaError
from vllama.cli.chat.images import MAX_BYTES, names_image, take_images

PNG = b"\x89PNG\r\n\x1a\n1"
JPEG = b"\xff\xd8\xff2"
WEBP = b"RIFF....WEBP3"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, and the home: a few images."""
    folder = tmp_path / "here"
    for name, content in (
        ("cat.png", PNG),
        ("my cat (1).png", PNG),
        ("sub/dog.JPEG", JPEG),
        ("sub/a.b.webp", WEBP),
        ("it's.jpg", JPEG),
        ("back\\slash.png", PNG),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.mark.parametrize(
    ("text", "left", "names"),
    [
        ("what is ./cat.png?", "what is ?", ["cat.png"]),
        ("./cat.png", "", ["cat.png"]),
        ("{here}/cat.png what is it", "what is it", ["{here}/cat.png"]),
        ("~/cat.png", "", ["{here}/cat.png"]),
        ("./my cat (1).png and ./cat.png", "and", ["my cat (1).png", "cat.png"]),
        (r"./my\ cat\ \(1\).png here", "here", ["my cat (1).png"]),
        ("'my cat (1).png' here", "here", ["my cat (1).png"]),
        ('see "{here}/my cat (1).png".', "see .", ["{here}/my cat (1).png"]),
        ("sub/dog.JPEG ../here/cat.png", "", ["sub/dog.JPEG", "../here/cat.png"]),
        ("./sub/a.b.webp", "", ["sub/a.b.webp"]),
        (r"./it\'s.jpg", "", ["it's.jpg"]),
        (r"./back\slash.png", "", [r"back\slash.png"]),
        ("a\n./cat.png\nb", "a\n\nb", ["cat.png"]),
        ("read /etc/hosts, then ./cat.png", "read /etc/hosts, then", ["cat.png"]),
        ("./no.png then ./cat.png", "./no.png then", ["cat.png"]),
        ("'no.png' './cat.png'", "'no.png'", ["cat.png"]),
        ("it's not 'this' but ./cat.png", "it's not 'this' but", ["cat.png"]),
        # as in Ollama: a bare name is a word
        ("what is cat.png", "what is cat.png", []),
        ("./cat.pngs and ./cat.png.bak", "./cat.pngs and ./cat.png.bak", []),
        ("./missing.png", "./missing.png", []),
        ("and/or", "and/or", []),
        ("https://example.org/cat.png", "https://example.org/cat.png", []),
        ("", "", []),
        ("./a\0.png", "./a\0.png", []),
    ],
)
def test_paths(text: str, left: str, names: list[str], here: Path) -> None:
    rest, images = take_images(text.format(here=here))
    assert rest == left
    assert [path for path, _ in images] == [Path(name.format(here=here)) for name in names]
    assert [base64.b64decode(content) for _, content in images] == [
        Path(name.format(here=here)).read_bytes() for name in names
    ]


def test_a_message_that_begins_with_an_image(here: Path) -> None:
    assert names_image("./cat.png what is it?")
    assert not names_image("what is ./cat.png?")
    assert not names_image("/bye")


@given(st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_other_text_is_left_alone(here: Path, text: str) -> None:
    assert take_images(text) == (text.strip(), [])


def test_files_that_are_no_images(here: Path) -> None:
    (here / "text.png").write_text("hello")
    with pytest.raises(VllamaError, match=r"'text.png': it is not a PNG, JPEG or WebP"):
        take_images("./text.png")
    with (here / "big.png").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(VllamaError, match="larger than 100 MB"):
        take_images("./big.png")
