"""Progress of a download: bars on a terminal, a line now and then elsewhere; on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from vllama.base.units import format_share
from vllama.cli.context import local_library
from vllama.cli.output import console, is_terminal, say_aside
from vllama.config import Config
from vllama.config.parse import whole_path
from vllama.models.types import PullEvent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


QUIET_S = 10.0
STOP_LIMIT_S = 10.0
SIGNAL_CHECK_S = 0.2
STEP_PERCENT = 10
SUCCESS = "success"
LASTING = ("chose ", "license: ", "using ", "warning: ")
"""How statuses begin that are to be read after the download too."""


class PullDisplay:
    """Shows the events of one pull; to be used in a `with` statement, from any thread."""

    def __call__(self, event: PullEvent) -> None:
        """Show one event."""

    def close(self) -> None:
        """End the display; what was reached stays on the screen."""

    def __enter__(self) -> PullDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_display() -> PullDisplay:
    """Return bars on a terminal, lines elsewhere."""
    return _Bars() if is_terminal(sys.stderr) else _Lines()


def show_installer(display: PullDisplay) -> Callable[[str], None]:
    """Return a function that shows the lines of an installer; small steps only on a terminal."""
    from vllama.machine.environments.installer import UvReader

    reader, fancy = UvReader(), is_terminal(sys.stderr)

    def show(line: str) -> None:
        news = reader.read(line)
        if news is None or (news.minor and not fancy):
            return
        total, done = (None, None) if news.minor else (news.total_bytes, news.done_bytes)
        display(PullEvent(status=news.text, total_bytes=total, completed_bytes=done))

    return show


def pull_with_progress(settings: Config, model: str, *, insecure: bool = False) -> None:
    """Download a model to this machine. Raises VllamaError, and Abort if Ctrl-C has ended it."""
    with open_display() as display:
        whole = _pull(settings, model, display, insecure)
    if not whole:
        say_aside(
            f"Interrupted. The partial download is saved; run 'vllama pull {model}' to resume."
        )
        raise typer.Abort


def _pull(settings: Config, model: str, display: PullDisplay, insecure: bool) -> bool:
    """Pull in a thread, so that Ctrl-C can stop it in order; False if it did."""
    from concurrent.futures import wait

    from vllama.base.threads import begin
    from vllama.plan.choose import list_loadable_formats
    from vllama.plan.form_choice import FitsHere
    from vllama.server.preflight import gather_facts

    library = local_library(settings)
    cancel = threading.Event()

    def work() -> None:
        facts = gather_facts(settings)
        library.remote.pull(
            whole_path(model),
            formats=list_loadable_formats(facts),
            fits=FitsHere(facts),
            progress=display,
            cancel=cancel,
            insecure=insecure,
        )

    pulling = begin(work)
    try:
        while not pulling.done():  # a signal that another thread got wakes no endless wait
            wait([pulling], SIGNAL_CHECK_S)
    except KeyboardInterrupt:
        cancel.set()
        wait([pulling], STOP_LIMIT_S)
        return False
    pulling.result()
    return True


def read_event(line: dict[str, object]) -> PullEvent:
    """Read one progress object of `/api/pull`."""

    def number(key: str) -> int | None:
        value = line.get(key)
        return value if isinstance(value, int) else None

    digest = line.get("digest")
    moving = isinstance(digest, str)
    return PullEvent(
        status=str(line.get("status", "")),
        digest=str(digest).removeprefix("sha256:") if moving else None,
        total_bytes=number("total"),
        completed_bytes=number("completed") or (0 if moving else None),
    )


def label_event(event: PullEvent) -> str:
    """Name the file that moves."""
    return f"pulling {event.file}" if event.file else event.status


class _Lines(PullDisplay):
    """Plain lines: every new status, and of a file the start, each tenth, and the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_status = ""
        self._shown: dict[str, tuple[int, float]] = {}

    def __call__(self, event: PullEvent) -> None:
        if not event.total_bytes:
            if event.status != self._last_status:
                say_aside(event.status)
            self._last_status = event.status
            return
        key = event.digest or event.file or event.status
        done = event.completed_bytes or 0
        percent = 100 * done // event.total_bytes
        shown, when_s = self._shown.get(key, (-STEP_PERCENT, -QUIET_S))
        step = percent // STEP_PERCENT > shown // STEP_PERCENT
        if step or (percent > shown and self._clock() - when_s >= QUIET_S):
            self._shown[key] = (percent, self._clock())
            say_aside(f"{label_event(event)}: {format_share(done, event.total_bytes)}")


class _Bars(PullDisplay):
    """A line for each file with what the terminal has room for, and below what is going on."""

    def __init__(self, out: Console | None = None) -> None:
        from rich.console import Group
        from rich.live import Live
        from rich.spinner import Spinner

        from vllama.cli.progress_bar import FittingProgress

        self._bars = FittingProgress(console=out or console(stderr=True))
        self._spinner = Spinner("dots", text="")
        self._group = Group
        self._tasks: dict[str, TaskID] = {}
        self._live = Live(
            Group(self._bars, self._spinner), console=self._bars.console, transient=False
        )
        self._live.start()

    def __call__(self, event: PullEvent) -> None:
        if not event.total_bytes:
            if event.status.startswith(LASTING):
                self._live.console.print(event.status)
                return
            self._spinner.update(text=event.status)
            if event.status == SUCCESS:
                self._live.update(self._group(self._bars, SUCCESS))
            return
        key = event.digest or event.file or event.status
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task(label_event(event), total=event.total_bytes)
        self._bars.update(
            self._tasks[key], total=event.total_bytes, completed=event.completed_bytes or 0
        )
        self._spinner.update(text="")

    def close(self) -> None:
        self._live.update(self._group(self._bars, self._last_line()))
        self._live.stop()

    def _last_line(self) -> str:
        text = str(self._spinner.text)
        return text if text == SUCCESS else ""
