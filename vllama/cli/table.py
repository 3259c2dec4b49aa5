"""Tables that fit the terminal: columns move together, the least important ones go, cells shorten.

Pure. On a pipe a table keeps all its columns: programs read it.
"""

from __future__ import annotations

from collections.abc import Sequence

GAPS = (4, 2)
"""Spaces between columns: Ollama's, and the fewest that still separate them."""
LEAST_CELL = 8
"""To how many columns a cell may be shortened."""

Rows = Sequence[Sequence[str]]


def align_cells(columns: Sequence[str], rows: Rows, gap: int = GAPS[0]) -> list[str]:
    """Align the cells of a table, the header first."""
    table = [tuple(columns), *(tuple(row) for row in rows)]
    widths = measure(columns, rows)
    return [
        (" " * gap)
        .join(
            cell + " " * (width - count_columns(cell))
            for cell, width in zip(row, widths, strict=True)
        )
        .rstrip()
        for row in table
    ]


def fit_cells(
    columns: Sequence[str], rows: Rows, width: int, optional: Sequence[str] = ()
) -> list[str]:
    """Align the cells of a table so that no line is longer than `width`, if that can be.

    The columns move together, then the `optional` ones go, in their order, then the widest cells
    are shortened.
    """
    gap = GAPS[0]
    if needs(columns, rows, gap) > width:
        gap = GAPS[1]
    for name in optional:
        if needs(columns, rows, gap) <= width:
            break
        if name in columns:
            at = list(columns).index(name)
            columns, *rows = ([*row[:at], *row[at + 1 :]] for row in (columns, *rows))
    excess = needs(columns, rows, gap) - width
    if excess > 0:
        rows = shorten(columns, rows, excess)
    return align_cells(columns, rows, gap)


def needs(columns: Sequence[str], rows: Rows, gap: int) -> int:
    """Return the columns of the terminal that a table takes."""
    return sum(measure(columns, rows)) + gap * (len(columns) - 1)


def measure(columns: Sequence[str], rows: Rows) -> list[int]:
    """Return the width of each column."""
    table = (columns, *rows)
    return [max(count_columns(row[at]) for row in table) for at in range(len(columns))]


def shorten(columns: Sequence[str], rows: Rows, excess: int) -> list[list[str]]:
    """Return the rows with the widest cells shortened, until `excess` columns are saved."""
    widths = measure(columns, rows)
    least = [max(LEAST_CELL, count_columns(name)) for name in columns]
    for _ in range(excess):
        widest = max(range(len(widths)), key=lambda at: widths[at] - least[at])
        if widths[widest] <= least[widest]:
            break
        widths[widest] -= 1
    return [
        [shorten_cell(cell, width) for cell, width in zip(row, widths, strict=True)] for row in rows
    ]


def shorten_cell(text: str, width: int) -> str:
    """Return a text of at most `width` columns; a name without spaces keeps its end, its tag."""
    if count_columns(text) <= width:
        return text
    tail = "" if " " in text else text[-(width // 3) :] if width >= 3 else ""
    head = text
    while head and count_columns(head) + count_columns(tail) + 1 > width:
        head = head[:-1]
    return f"{head.rstrip()}…{tail}"


def count_columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
