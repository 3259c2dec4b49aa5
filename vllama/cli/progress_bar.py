"""A progress bar that takes one line of any terminal: what there is no room for is left out."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from vllama.cli.table import shorten_cell

LEAST_NAME, MOST_NAME = 12, 48
BAR = 20
PARTS: tuple[tuple[ProgressColumn, int], ...] = (
    (TaskProgressColumn(), 4),
    (DownloadColumn(), 15),
    (BarColumn(bar_width=BAR), BAR),
    (TransferSpeedColumn(), 10),
    (TimeRemainingColumn(compact=True), 5),
)
"""What is shown beside a file's name, the most important first, and the columns that it takes."""
ORDER = (BarColumn, TaskProgressColumn, DownloadColumn, TransferSpeedColumn, TimeRemainingColumn)


class NameColumn(ProgressColumn):
    """The name of a file, shortened to `width` columns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def render(self, task: Task) -> Text:
        """Return the name."""
        return Text(shorten_cell(task.description, self._width), no_wrap=True)


def choose_columns(width: int) -> list[ProgressColumn]:
    """Return the columns that fit `width`, the name first."""
    left = width - 1 - LEAST_NAME
    chosen: list[ProgressColumn] = []
    for column, takes in PARTS:
        if takes + 1 > left:
            break
        left -= takes + 1
        chosen.append(column)
    chosen.sort(key=lambda column: ORDER.index(type(column)))
    return [NameColumn(min(LEAST_NAME + left, MOST_NAME)), *chosen]


class FittingProgress(Progress):
    """Bars whose columns follow the width of the terminal, also while it changes."""

    def __init__(self, console: Console) -> None:
        self._terminal = console  # the parent draws before it has one
        super().__init__(console=console, auto_refresh=False)

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        """Return one line for each task."""
        self.columns = tuple(choose_columns(self._terminal.width))
        return super().make_tasks_table(tasks)
