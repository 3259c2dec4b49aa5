"""What is shown, piece by piece: tables, wrap, sections, progress, the voice of the server, log."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import logging
import os
import pty
import random
import struct
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from vllama.cli.chat.answer_view import AnswerPrinter, WordWrap
from vllama.cli.command_index import GROUPS, help_page
from vllama.cli.model_view import format_sections, make_sections
from vllama.cli.output import say, show_error, show_table, wrap_words
from vllama.cli.progress import _Lines, label_event, read_event
from vllama.cli.progress_bar import FittingProgress
from vllama.cli.reporter import TerminalReporter
from vllama.cli.server_log import set_up_logging
from vllama.cli.table import align_cells, fit_cells
from vllama.models.types import PullEvent
from vllama.server.reporter import Reporter

Capture = pytest.CaptureFixture[str]


def test_tables() -> None:
    assert align_cells(("NAME", "ID"), [("模型", "1"), ("a", "22")]) == [
        "NAME    ID",
        "模型    1",
        "a       22",
    ]
    assert align_cells(("NAME", "ID"), []) == ["NAME    ID"]


TABLE = (
    ("NAME", "ID", "SIZE", "STORE"),
    [("hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M", "4f0b524721b7", "98 MB", "ollama")],
)


@pytest.mark.parametrize(
    ("width", "header"),
    [
        (200, ["NAME", "ID", "SIZE", "STORE"]),
        (80, ["NAME", "ID", "SIZE", "STORE"]),
        (76, ["NAME", "ID", "SIZE"]),
        (60, ["NAME", "SIZE"]),
        (40, ["NAME", "SIZE"]),
    ],
)
def test_a_table_fits_the_terminal(width: int, header: list[str]) -> None:
    lines = fit_cells(*TABLE, width, optional=("STORE", "ID"))
    assert lines[0].split() == header
    assert all(len(line) <= width for line in lines)
    # the tag of a name is what tells two of them apart
    assert ":Q4_K_M" in lines[1] and lines[1].startswith("hf.co/")


def test_text_is_shortened_at_its_end() -> None:
    lines = fit_cells(("A", "WHY"), [("x", "it suits this machine very well")], 20)
    assert lines[1] == "x  it suits this ma…"


@pytest.mark.parametrize("width", [30, 40, 50, 80, 200])
def test_progress_takes_one_line(width: int) -> None:
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=width, color_system=None)
    bars = FittingProgress(terminal)
    bars.add_task("pulling Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf", total=9e9, completed=4e9)
    terminal.print(bars.make_tasks_table(bars.tasks))
    (line,) = out.getvalue().splitlines()
    assert len(line.rstrip()) <= width
    assert " 44%" in line and line.startswith("pulling Qwen")
    assert ("4.0/9.0 GB" in line) is (width >= 40) and ("━" in line) is (width >= 80)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_help_page_fits_the_terminal(width: int) -> None:
    lines = help_page(min(width, 100)).splitlines()
    usage = {
        "Usage: vllama [OPTIONS] COMMAND [ARGS]...",
        "  -h, --help     Show this message and exit.",
    }
    assert all(len(line) <= width for line in lines if line not in usage)
    words = " ".join(" ".join(lines).split())
    for name, text in (row for rows in GROUPS.values() for row in rows.items()):
        assert f"{name} {text}" in words


def test_errors(capsys: Capture) -> None:
    show_error("it [broke]", "mend it")
    assert capsys.readouterr().err == "Error: it [broke]\nHint: mend it\n"
    show_error("a server says \x1b[31mred\nand more")
    assert capsys.readouterr().err == "Error: a server says \\x1b[31mred\nand more\n"


RED, PLAIN = "\x1b[31m", "\x1b[0m"
STEERING = {
    "clipboard": ("a\x1b]52;c;ZXZpbA==\x07b", "a]52;c;ZXZpbA==b"),
    "clear the screen": ("a\x1b[2J\x1b[Hb", "a[2J[Hb"),
    "title": ("a\x1b]0;title\x1b\\b", "a]0;title\\b"),
    "alternate screen": ("a\x1b[?1049hb", "a[?1049hb"),
    "report": ("a\x1b[6n\x1bZb", "a[6nZb"),
    "eight bits": ("a\x9b2Jb\x9dc\x85d", "a2Jbcd"),
    "over the line": ("safe\revil\b\b\x7f", "safeevil"),
    "bell, null": ("a\x07\x00\x0b\x0cb", "ab"),
    "endless color": ("a\x1b[" + "1;" * 50 + "mb", "a[" + "1;" * 50 + "mb"),
    "half a color": ("a\x1b[3", "a"),
    "text that runs backwards": ("a\u202edcb\u202c\u2066e\u2069\u200f\u05d0", "adcbe\u200f\u05d0"),
    "color": (f"a{RED}b", f"a{RED}b"),
    "color, reset": (f"a\x1b[38;5;1mb{PLAIN}c", f"a\x1b[38;5;1mb{PLAIN}c"),
    "lines": ("a\r\nb\n\tc", "a\nb\n\tc"),
}


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(("text", "shown"), STEERING.values(), ids=STEERING)
def test_a_model_cannot_steer_the_terminal(
    text: str, shown: str, size: int, wrap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However its text is cut into pieces."""

    def write() -> None:
        printer = AnswerPrinter(wrap=wrap, hide_thinking=False)
        for place in range(0, len(text), size):
            printer.content(text[place : place + size])
        printer.end()

    assert see(write, monkeypatch) == shown + "\n" + (PLAIN if "\x1b" in shown else "")


def see(write: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a terminal is sent."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    found = b""
    with os.fdopen(slave, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        write()
    with contextlib.suppress(OSError):  # the end: nobody has the other side open
        while piece := os.read(master, 10_000):
            found += piece
    os.close(master)
    return found.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("case", ["clipboard", "clear the screen", "title", "eight bits", "color"])
def test_its_license_and_a_name_of_another_server_cannot_either(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, shown = STEERING[case]
    assert see(lambda: say(text), monkeypatch) == shown + "\n"
    table = see(lambda: show_table(("NAME",), [(text,)]), monkeypatch)
    assert table.partition("\n")[2] == shown + "\n"


def test_what_a_program_reads_is_the_models_text(capsys: Capture) -> None:
    printer = AnswerPrinter(wrap=True, hide_thinking=False)
    printer.content("a\x1b[2J\r")
    printer.end()
    assert capsys.readouterr().out == "a\x1b[2J\r\n"


def wrapped(pieces: list[str], width: int) -> str:
    out: list[str] = []
    wrap = WordWrap(out.append, lambda: width)
    for piece in pieces:
        wrap.feed(piece)
    wrap.flush()
    return "".join(out)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("one two three", "one two\nthree"),
        ("one two\nthree four", "one two\nthree four"),
        ("  - item", "  - item"),
        ("averyveryverylongword x", "averyveryverylongword\nx"),
        ("a\n\n\nb", "a\n\n\nb"),
        ("ends with space ", "ends with\nspace "),
        ("汉字汉字汉字汉字", "汉字汉字汉\n字汉字"),
        ("tab\there", "tab\there"),
    ],
)
def test_word_wrap(text: str, expected: str) -> None:
    assert wrapped([text], 10) == expected
    assert wrapped(list(text), 10) == expected
    chance = random.Random(text)
    for _ in range(20):
        cuts = sorted(chance.choices(range(len(text) + 1), k=3))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert wrapped(pieces, 10) == expected


def test_sections() -> None:
    shown = {
        "details": {"family": "qwen3", "parameter_size": "0.6B", "context_length": 40960},
        "model_info": {"general.architecture": "qwen3", "qwen3.embedding_length": 1024},
        "capabilities": ["completion", "tools"],
        "parameters": 'stop                           "<|im_end|>"\ntemperature  0.6',
        "license": "\n\nApache License\n\n  Version 2.0\nmore",
        "system": "",
    }
    assert format_sections(make_sections(shown)) == [
        "  Model",
        "    architecture        qwen3",
        "    parameters          0.6B",
        "    context length      40960",
        "    embedding length    1024",
        "",
        "  Capabilities",
        "    completion",
        "    tools",
        "",
        "  Parameters",
        '    stop           "<|im_end|>"',
        "    temperature    0.6",
        "",
        "  License",
        "    Apache License",
        "    Version 2.0",
        "    ...",
        "",
    ]
    seeing = shown | {
        "requires": "0.19.0",
        "projector_info": {
            "general.architecture": "clip",
            "general.parameter_count": 411_000_000,
            "clip.vision.embedding_length": 1024,
            "clip.vision.projection_dim": 2560,
        },
    }
    lines = format_sections(make_sections(seeing))
    assert lines[5] == "    requires            0.19.0"
    assert lines[11:17] == [
        "  Projector",
        "    architecture        clip",
        "    parameters          411M",
        "    embedding length    1024",
        "    dimensions          2560",
        "",
    ]
    titles = [title for title, _ in make_sections(shown, verbose=True)]
    assert "Metadata" in titles
    assert make_sections({}) == []


def test_progress_as_lines(capsys: Capture) -> None:
    now_s = [0.0]
    lines = _Lines(clock=lambda: now_s[0])
    lines(PullEvent(status="pulling manifest"))
    lines(PullEvent(status="pulling manifest"))

    def moved(done: int) -> None:
        lines(PullEvent(status="pulling ab", file="m.gguf", total_bytes=1000, completed_bytes=done))

    for done in (0, 10, 20, 100, 150):
        moved(done)
    now_s[0] += 11
    moved(160)
    moved(170)
    moved(1000)
    lines(PullEvent(status="success"))
    assert capsys.readouterr().err.splitlines() == [
        "pulling manifest",
        "pulling m.gguf: 0% of 1 KB",
        "pulling m.gguf: 10% of 1 KB",
        "pulling m.gguf: 16% of 1 KB",
        "pulling m.gguf: 100% of 1 KB",
        "success",
    ]


def test_events_of_the_api() -> None:
    event = read_event({"status": "pulling ab", "digest": "sha256:ab", "total": 7})
    assert event == PullEvent(status="pulling ab", digest="ab", total_bytes=7, completed_bytes=0)
    assert label_event(event) == "pulling ab"
    assert read_event({"status": "success"}) == PullEvent(status="success")
    assert read_event({}) == PullEvent(status="")


def test_the_voice_of_the_server(capsys: Capture) -> None:
    now_s = [0.0]
    ui: Reporter = TerminalReporter(clock=lambda: now_s[0])
    ui.note("a note")
    ui.warn("be careful")
    for text in ("loading m", "1 of 9", "2 of 9"):
        ui.loading(text)
    now_s[0] += 3
    ui.loading("3 of 9")
    ui.loading("")
    ui.pull(PullEvent(status="pulling manifest"))
    ui.pull(PullEvent(status="success"))
    ui.ready("http://127.0.0.1:1", "vllama run m")
    ui.error("it broke", None)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "a note",
        "Warning: be careful",
        "loading m",
        "3 of 9",
        "pulling manifest",
        "success",
        "ready: http://127.0.0.1:1 (try: vllama run m)",
        "Error: it broke",
    ]


@pytest.fixture
def clean_logging() -> object:
    root, ours = logging.getLogger(), logging.getLogger("vllama")
    before = (root.handlers[:], root.level, ours.level)
    yield
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)


@pytest.mark.usefixtures("clean_logging")
def test_the_log(capsys: Capture) -> None:
    set_up_logging(debug=False, log_format="text")
    logging.getLogger("vllama.x").info("heard %d", 1)
    logging.getLogger("vllama.x").debug("not heard")
    logging.getLogger("other").info("not heard")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("INFO    x: heard 1")
    set_up_logging(debug=True, log_format="json")
    logging.getLogger("vllama.x").debug("heard %d", 2)
    try:
        raise ValueError("deep")
    except ValueError:
        logging.getLogger("other").exception("it broke")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["level"], first["component"], first["msg"]) == ("debug", "x", "heard 2")
    assert "ValueError: deep" in second["exception"]


LONG = (
    "    vllama engines install llama-server (the fastest here; 12 MB, a wheel), or: "
    "https://example.org/a/very/long/address/that/nobody/may/break/because/it/would/not/open/then"
)


def test_no_word_is_broken_at_the_edge_of_a_terminal() -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with os.fdopen(slave, "w") as stream:
        lines = wrap_words(LONG, stream).split("\n")
        assert " ".join(line.strip() for line in lines) == LONG.strip()
        assert all(line.startswith("    ") and not line.startswith("     ") for line in lines)
        assert [line for line in lines if len(line) > 40] == [f"    {LONG.split()[-1]}"]
        assert wrap_words("a b\n\nc", stream) == "a b\n\nc"
        cells = wrap_words("  →  one    " + "word " * 6, stream).split("\n")
        assert cells == ["  →  one    word word word word word", "            word"]
        assert wrap_words("word " * 9, stream).split("\n")[1] == "word"
        told = wrap_words("word " * 20, stream, len("Hint: ")).split("\n")
        assert "Hint: " + told[0] == "Hint:" + " word" * 7
        assert {line[:6] for line in told[1:]} == {" " * 6}
    os.close(master)


def test_what_a_program_reads_is_one_line(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as stream:
        assert wrap_words(LONG, stream) == LONG
