"""`vllama logs`, with no server anywhere: the files are all it needs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Vllama
from vllama.base import log_context
from vllama.base.servers import RunningServer, announce
from vllama.cli.commands.logs import LONGEST_RUN, RunShortener
from vllama.cli.server_log import (
    BatchHandler,
    JsonFormatter,
    LogFile,
    Outlet,
    TextFormatter,
    add_context,
)
from vllama.supervise.logs import OWN_LOG, get_rotated_path, open_log, rotate

OURS, OTHER = 11434, 40123


@pytest.fixture
def logs(env: dict[str, str], tmp_path: Path) -> Path:
    """The folder of the logs, with three starts of one model."""
    folder = tmp_path / "logs"
    env["VLLAMA_LOG_DIR"] = str(folder)
    for number in (1, 2, 3):
        path = open_log(folder, "tiny:1b", now_s=1_700_000_000.0 + number)
        path.write_text(f"start {number}\n\x1b[31mloading\x1b[0m\nend {number}\n")
    return folder


@pytest.mark.parametrize(
    ("args", "lines"),
    [
        (["tiny:1b"], ["start 3", "loading", "end 3"]),
        (["TINY:1b", "--attempt", "2"], ["start 2", "loading", "end 2"]),
        (["tiny:1b", "-n", "1"], ["end 3"]),
        (["tiny:1b", "-n", "0"], []),
    ],
)
def test_an_engine(vllama: Vllama, logs: Path, args: list[str], lines: list[str]) -> None:
    shown = vllama("logs", *args)
    assert (shown.returncode, shown.stdout.splitlines(), shown.stderr) == (0, lines, "")


def test_an_engine_as_json(vllama: Vllama, logs: Path) -> None:
    shown = vllama("logs", "tiny:1b", "--json", "-n", "2", "--attempt", "1")
    assert [json.loads(line) for line in shown.stdout.splitlines()] == [
        {"model": "tiny:1b", "attempt": 1, "line": "loading"},
        {"model": "tiny:1b", "attempt": 1, "line": "end 1"},
    ]


def test_lines_about_each_tensor_are_left_out(vllama: Vllama, logs: Path) -> None:
    tensors = [f"create_tensor: loading tensor blk.{number}.weight" for number in range(300)]
    lines = ["loader: one", *tensors, "server: ready", *tensors[:LONGEST_RUN], "no part at all"]
    open_log(logs, "big:1b", now_s=1.0).write_text("\n".join(lines) + "\n")
    more = f"… {300 - LONGEST_RUN} more lines of create_tensor (to show all: vllama logs --debug)"
    shown = [*lines[: LONGEST_RUN + 1], more, *lines[301:]]
    assert vllama("logs", "big:1b").stdout.splitlines() == shown
    assert vllama("logs", "big:1b", "-n", "50").stdout.splitlines() == shown[-50:]
    assert vllama("logs", "big:1b", "--debug").stdout.splitlines() == lines
    assert vllama("logs", "big:1b", VLLAMA_DEBUG="1").stdout.splitlines() == lines
    assert len(vllama("logs", "big:1b", "--json").stdout.splitlines()) == len(lines)


def test_a_run_that_goes_on_is_one_run() -> None:
    runs = RunShortener()
    assert len(list(runs.feed(["a: x"] * (LONGEST_RUN + 2)))) == LONGEST_RUN
    assert list(runs.feed(["a: x"] * 3)) == []
    assert list(runs.feed(["b: y"])) == [
        "… 5 more lines of a (to show all: vllama logs --debug)",
        "b: y",
    ]


def test_latest_may_be_left_out(vllama: Vllama, logs: Path) -> None:
    open_log(logs, "mine:latest", now_s=1.0).write_text("hello\n")
    assert vllama("logs", "mine").stdout == "hello\n"


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["other"], 1, ["no logs of 'other'", "tiny:1b"]),
        (["tiny:1b", "--attempt", "9"], 1, ["no log of attempt 9", "1, 2, 3"]),
        (["--attempt", "1"], 2, ["--attempt needs a MODEL"]),
        ([], 1, [OWN_LOG, "no such file"]),
    ],
)
def test_what_is_not_there(
    vllama: Vllama, logs: Path, args: list[str], status: int, words: list[str]
) -> None:
    shown = vllama("logs", *args)
    assert (shown.returncode, shown.stdout) == (status, "")
    assert all(word in shown.stderr for word in words), shown.stderr


# -- vllama's own -----------------------------------------------------------------------------


def record(text: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("vllama.x", level, "", 0, text, (), None)


def line(text: str, level: int = logging.INFO) -> str:
    made = record(text, level)
    add_context(made)
    return f"{JsonFormatter().format(made)}\n"


def test_the_own_log(vllama: Vllama, logs: Path) -> None:
    file = LogFile(logs / OWN_LOG)
    file.write(line("begun"))
    traced = log_context.trace.set(log_context.Trace("abc-1"))
    named = log_context.model.set("tiny:1b")
    file.write(line("bad \x1b[2J news\nof two lines", logging.ERROR))
    log_context.trace.reset(traced)
    log_context.model.reset(named)
    first, second = (json.loads(line) for line in vllama("logs", "--json").stdout.splitlines())
    assert set(first) == {"ts", "level", "component", "pid", "msg"}
    assert (second["request_id"], second["model"], second["level"]) == ("abc-1", "tiny:1b", "error")
    shown = vllama("logs").stdout.splitlines()
    assert shown[0].endswith(" INFO    x: begun")
    # nothing that moves a terminal, nor a line that somebody else wrote
    assert shown[1].endswith(r" ERROR   x: bad \x1b[2J news\nof two lines [abc-1]")
    assert len(shown) == 2
    assert vllama("logs", "-n", "1", "--json").stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("running", "args", "shown"),
    [
        ([], [], ["main", "old", "more"]),
        ([OURS], [], ["main", "old", "more"]),
        ([OURS, OTHER], [], ["main", "old", "more"]),
        ([OTHER], [], ["verify", "old"]),
        ([OURS], ["-n", "1"], ["more"]),
        ([OURS], ["--all"], ["main", "verify", "old", "more"]),
    ],
)
def test_the_log_of_one_server(
    vllama: Vllama,
    env: dict[str, str],
    logs: Path,
    running: list[int],
    args: list[str],
    shown: list[str],
) -> None:
    env |= {"OLLAMA_HOST": f"127.0.0.1:{OURS}", "VLLAMA_DATA_DIR": str(logs)}
    file = LogFile(logs / OWN_LOG)
    for port, text in ((OURS, "main"), (OTHER, "verify"), (None, "old"), (OURS, "more")):
        log_context.port = port or 0
        made = json.loads(line(text))
        if port is None:  # of an earlier version
            del made["pid"]
        file.write(f"{json.dumps(made)}\n")
    log_context.port = 0
    with contextlib.ExitStack() as stack:
        for port in running:
            stack.enter_context(announce(logs, RunningServer(f"http://127.0.0.1:{port}", "x")))
        found = vllama("logs", *args).stdout.splitlines()
        as_json = vllama("logs", "--json", *args).stdout.splitlines()
    assert [text.split()[-1] for text in found] == shown
    assert [json.loads(text)["msg"] for text in as_json] == shown
    named = [text for text in found if text.startswith("[port ")]
    assert named == ([text for text in found if "old" not in text] if "--all" in args else [])
    assert all(f", pid {os.getpid()}] " in text for text in named)


def test_a_server_without_lines_is_told(vllama: Vllama, env: dict[str, str], logs: Path) -> None:
    env |= {"OLLAMA_HOST": f"127.0.0.1:{OURS}", "VLLAMA_DATA_DIR": str(logs)}
    log_context.port = OTHER
    LogFile(logs / OWN_LOG).write(line("verify") + "\n")
    log_context.port = 0
    assert "verify" in vllama("logs").stdout  # of the last server, as none runs
    with announce(logs, RunningServer(f"http://127.0.0.1:{OURS}", "x")):
        done = vllama("logs")
    assert not done.stdout and f"no log of a server on port {OURS}" in done.stderr
    assert "verify" in vllama("logs", "--all").stdout and not vllama("logs", "-n", "0").stderr


@pytest.mark.parametrize(
    "sign", ["\n", "\r", "\x1b", "\x9b", "\x7f", "\0", "\u2028", "\u202e", "\udcff"]
)
def test_what_somebody_asks_for_stays_within_its_line(sign: str) -> None:
    try:
        raise ValueError(f"in {sign}it")
    except ValueError:
        failed = logging.LogRecord(
            "vllama.x", logging.ERROR, "", 0, f"GET /é 模{sign}y", (), sys.exc_info()
        )
    shown = TextFormatter().format(failed)
    first, *rest = shown.split("\n")
    assert first.endswith(f": GET /é 模{repr(sign)[1:-1]}y")
    assert rest[0].startswith("Traceback ") and rest[-1].startswith(("ValueError: in ", "it"))
    assert "".join(shown.split("\n")).isprintable()


def test_the_own_log_is_bounded_and_shared(tmp_path: Path) -> None:
    """Two servers write to one file: no line is lost while they put it aside in turn."""
    path = tmp_path / OWN_LOG
    files = [LogFile(path, max_bytes=4000) for _ in range(2)]
    for number in range(60):
        files[number % 2].write(line(f"line {number}"))
    numbers = [
        int(json.loads(line)["msg"].split()[1])
        for part in (get_rotated_path(path), path)
        for line in part.read_text().splitlines()
    ]
    assert (
        get_rotated_path(path).exists()
        and max(path.stat().st_size, get_rotated_path(path).stat().st_size) <= 4000
    )
    assert numbers == list(range(60))
    for number in range(1000):
        files[number % 2].write(line(f"line {number}"))
    assert sorted(part.name for part in tmp_path.iterdir()) == [OWN_LOG, f"{OWN_LOG}.1"]


class Batches:
    """Keeps the batches that are written."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.three = asyncio.Event()

    def write(self, text: str) -> None:
        self.batches.append(text.split())
        if len(self.batches) == 3:
            self.three.set()


def test_lines_are_written_in_batches_and_none_is_lost() -> None:
    kept = Batches()
    log = BatchHandler(Outlet(logging.Formatter(), kept.write))
    log.handle(record("alone"))

    async def run() -> None:
        log.handle(record("one"))
        log.handle(record("two"))
        assert kept.batches == [["alone"]]
        log.handle(record("bad", logging.WARNING))
        log.handle(record("three"))
        await kept.three.wait()
        log.handle(record("last"))

    asyncio.run(run())
    log.close()
    assert kept.batches == [["alone"], ["one", "two", "bad"], ["three"], ["last"]]


def test_only_the_owner_reads_the_log(tmp_path: Path) -> None:
    LogFile(tmp_path / "logs" / OWN_LOG).write(line("one"))
    assert (tmp_path / "logs" / OWN_LOG).stat().st_mode & 0o777 == 0o600


def test_a_name_that_is_no_text_is_logged(tmp_path: Path) -> None:
    file = LogFile(tmp_path / OWN_LOG)
    file.write(line("no file \udcff"))
    assert json.loads((tmp_path / OWN_LOG).read_text())["msg"] == "no file \udcff"


def test_a_full_disk_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "no folder").touch()
    file = LogFile(tmp_path / "no folder" / OWN_LOG)
    file.write(line("lost"))


# -- following --------------------------------------------------------------------------------


@contextmanager
def following(env: dict[str, str], *args: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "vllama", "logs", "-f", *args]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        killer = threading.Timer(50, process.kill)  # a line that never comes fails, not hangs
        killer.start()
        try:
            yield process
        finally:
            killer.cancel()
            process.kill()


def add(path: Path, text: str) -> None:
    with path.open("a") as log:
        log.write(text)


def test_follow_over_rotations_and_starts_until_interrupted(
    env: dict[str, str], logs: Path
) -> None:
    newest = next(logs.glob("tiny*/*-0003.log"))
    with following(env, "tiny:1b", "-n", "1") as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "end 3\n"
        add(newest, "more\n")
        assert process.stdout.readline() == "more\n"
        rotate(newest)
        add(newest, "after the rotation\nits last words")
        assert process.stdout.readline() == "after the rotation\n"
        add(open_log(logs, "tiny:1b", now_s=1_700_000_009.0), "start 4\n")
        assert process.stdout.readline() == "its last words\n"
        assert process.stdout.readline() == "start 4\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == "-- tiny:1b, attempt 4 --\n"


def test_follow_waits_for_the_first_start(env: dict[str, str], logs: Path) -> None:
    with following(env, "later:1b", "--json") as process:
        assert process.stdout
        add(open_log(logs, "later:1b", now_s=1_700_000_009.0), "here\n")
        line = json.loads(process.stdout.readline())
        assert line == {"model": "later:1b", "attempt": 1, "line": "here"}


@pytest.mark.parametrize("model", ["tiny:1b", None])
def test_follow_ends_when_nobody_reads(env: dict[str, str], logs: Path, model: str | None) -> None:
    file = LogFile(logs / OWN_LOG)
    file.write(line("begun"))
    with following(env, *([model] if model else [])) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline()
        process.stdout.close()  # and nothing is added: it must see that by itself
        assert process.wait(60) == 1
        assert process.stderr.read() == ""


def test_color_is_for_terminals(logs: Path, terminal, vllama: Vllama) -> None:
    file = LogFile(logs / OWN_LOG)
    file.write(line("trouble", logging.ERROR))
    shown = terminal("logs")
    assert shown.finish() == 0
    assert b"\x1b[31m" in shown._raw and "trouble" in shown.screen
    assert "\x1b" not in vllama("logs").stdout
