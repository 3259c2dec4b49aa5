"""A log is read in blocks, however long it is, and only the wanted lines are shown."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from vllama.routes.server.logs import BLOCK_LINES, OWN, LogText
from vllama.supervise.logs import OWN_LOG, get_rotated_path

MANY = 10 * BLOCK_LINES + 7


def write(path: Path, first: int, last: int, end: str = "\n", more: int = 0) -> None:
    lines = (f'{{"number": {number}, "more": "{"x" * more}"}}' for number in range(first, last))
    path.write_text("\n".join(lines) + end)


@pytest.mark.parametrize("lines", [None, 0, 1, BLOCK_LINES + 1, 10**8])
@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("is_rotated", [False, True])
def test_the_last_lines(tmp_path: Path, lines: int | None, end: str, is_rotated: bool) -> None:
    start = MANY // 2 if is_rotated else 0
    write(tmp_path / OWN_LOG, start, MANY, end)
    if is_rotated:
        write(get_rotated_path(tmp_path / OWN_LOG), 0, start)
    blocks = [*LogText(tmp_path, OWN, None).read(lines, ended=True)]
    shown = b"".join(blocks).decode().splitlines()
    first = max(0, MANY - (MANY if lines is None else lines))
    assert [int(line.split()[1].rstrip(",")) for line in shown] == [*range(first, MANY)]
    assert all(block.count(b"\n") <= BLOCK_LINES for block in blocks)


@pytest.mark.parametrize("lines", [None, 10**8])
def test_no_more_than_a_block_is_in_memory(tmp_path: Path, lines: int | None) -> None:
    write(tmp_path / OWN_LOG, 0, MANY, more=500)
    size = (tmp_path / OWN_LOG).stat().st_size
    tracemalloc.start()
    try:
        for _ in LogText(tmp_path, OWN, None).read(lines, ended=True):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size / 1.5
