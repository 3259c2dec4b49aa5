"""Log files, line splitting, the ring and the tailer."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.supervise.conftest import until
from vllama.supervise.logs import (
    LINE_LIMIT_BYTES,
    LineSplitter,
    LogRing,
    Tailer,
    open_log,
    slug,
)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"10%\r20%\r30%\ndone", ["10%", "20%", "30%", "done"]),
        (b"\n\n  x  \n\n", ["  x"]),
        (b"\x1b[32mgreen\x1b[0m \x1b[2Kx\n", ["green x"]),
        ("gr\u00fc\u00df \u20ac\n".encode(), ["gr\u00fc\u00df \u20ac"]),
        (b"bad \xff byte\n", ["bad \ufffd byte"]),
        (b"", []),
    ],
)
def test_splitter_whole_and_in_any_cut(data: bytes, lines: list[str]) -> None:
    cuts = [[data], [data[i : i + 1] for i in range(len(data))]]
    random_ = random.Random(1)
    for _ in range(20):
        at = sorted(random_.sample(range(len(data) + 1), k=min(3, len(data))))
        edges = [0, *at, len(data)]
        cuts.append([data[a:b] for a, b in pairwise(edges)])
    for parts in cuts:
        splitter = LineSplitter()
        seen = [line for part in parts for line in splitter.feed(part)]
        assert seen + splitter.flush() == lines


def test_a_long_line_is_cut_and_bounded() -> None:
    splitter = LineSplitter()
    for _ in range(100):
        assert splitter.feed(b"x" * 10_000) == []
        assert len(splitter.partial) <= LINE_LIMIT_BYTES + 2
    (line,) = splitter.feed(b"y\n")
    assert line == "x" * LINE_LIMIT_BYTES + " …"


def test_ring_keeps_the_newest_and_the_first_error() -> None:
    ring = LogRing(limit=3)
    for line in ("a", "ValueError: one", "RuntimeError: two", "b", "c", "d"):
        ring.append(line)
    assert ring.tail(99) == ("b", "c", "d")
    assert ring.tail(2) == ("c", "d")
    assert ring.tail(0) == ()
    assert ring.first_error == "ValueError: one"
    assert ring.total == 6


def test_slugs_are_file_names_and_differ() -> None:
    names = ["a/b", "a-b", "a b", "../..", "", "x" * 300, "hf.co/Org/Model:Q4_K_M", "ß"]
    slugs = [slug(name) for name in names]
    assert len(set(slugs)) == len(names)
    assert all("/" not in text and 0 < len(text) < 100 and text[0] != "." for text in slugs)
    assert slug("llama3-8b") == "llama3-8b"


def test_open_log_keeps_the_newest(tmp_path: Path) -> None:
    for _ in range(8):
        path = open_log(tmp_path, "m", now_s=1_700_000_000.0, keep=3)
        path.with_name(path.name + ".1").touch()
    other = open_log(tmp_path, "n", now_s=0.0, keep=3)
    assert sorted(p.name for p in (tmp_path / "m").glob("*.log")) == [
        "20231114T221320Z-0006.log",
        "20231114T221320Z-0007.log",
        "20231114T221320Z-0008.log",
    ]
    assert len(list((tmp_path / "m").iterdir())) == 7
    assert (tmp_path / "m" / "name").read_text() == "m"
    assert other.exists()


def append(path: Path, data: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(data)


def test_tailer_follows_tells_and_finishes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    told: list[str] = []
    ring = LogRing()
    tailer = Tailer(path, ring, interval_s=0.001, on_line=told.append)

    async def main() -> None:
        running = asyncio.ensure_future(tailer.run())
        append(path, b"one\n")
        await until(lambda: told == ["one"])
        append(path, b"\r 10%")  # a bar that has not ended is news too
        await until(lambda: told == ["one", " 10%"])
        append(path, b"\r 20%")
        await until(lambda: told == ["one", " 10%", " 20%"])
        tailer.slow_down(0.001)
        append(path, b"\nquiet\nlast")
        await until(lambda: ring.tail(1) == ("quiet",))
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(main())
    assert told == ["one", " 10%", " 20%"]
    append(path, b" words")
    tailer.finish()
    tailer.finish()
    assert ring.tail(9) == ("one", " 10%", " 20%", "quiet", "last words")
    assert tailer.read_bytes == path.stat().st_size


def test_rotation_caps_the_file_and_loses_no_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    ring = LogRing()

    def ring_has(total: int) -> bool:
        return ring.total == total

    async def main() -> None:
        tailer = Tailer(path, ring, max_bytes=10_000, interval_s=0.001)
        running = asyncio.ensure_future(tailer.run())
        with path.open("ab", buffering=0) as child:
            for number in range(200):
                child.write(b"%05d %s\n" % (number, b"x" * 200))
                if number % 10 == 9:
                    await until(partial(ring_has, number + 1))
        await until(lambda: path.stat().st_size <= 10_000)
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(main())
    assert [int(line[:5]) for line in ring.tail(999)] == list(range(200))
    assert path.with_name("log.1").stat().st_size < 20_000


def test_a_huge_backlog_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 6_000_000 + b"\nend\n")
    ring = LogRing()
    tailer = Tailer(path, ring)
    tailer.finish()
    assert ring.tail(1) == ("end",)
    assert tailer.read_bytes == path.stat().st_size


def test_a_missing_or_truncated_file_is_survived(tmp_path: Path) -> None:
    path = tmp_path / "log"
    ring = LogRing()
    tailer = Tailer(path, ring)
    assert not tailer.read()
    path.write_bytes(b"a long first line\n")
    tailer.read()
    path.write_bytes(b"short\n")
    tailer.read()
    path.unlink()
    tailer.finish()
    assert ring.tail(9) == ("a long first line", "short")
