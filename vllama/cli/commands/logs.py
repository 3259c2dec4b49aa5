"""`vllama logs`: the log of an engine or of vllama itself, read from this disk.

Each start of an engine is an attempt with its own log; the newest five of each model are kept.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vllama.base.errors import ConfigError, ModelNotFound, VllamaError
from vllama.base.log_lines import as_text, is_of_port
from vllama.cli.context import load_settings, local_library
from vllama.cli.options import model_argument, option
from vllama.cli.output import console, is_terminal, say, say_aside, show_json_line
from vllama.config import Config

if TYPE_CHECKING:
    from vllama.supervise.log_reader import Logbook, Reader

EXAMPLES = """\
\b
Examples:
  vllama logs                            the server's log
  vllama logs --all                      logs of all servers, such as those that verify starts
  vllama logs smollm2:135m               the latest start of the model's engine
  vllama logs smollm2:135m --attempt 3   an earlier start
  vllama logs smollm2:135m -f -n 50      the last 50 lines, then new ones
"""
LOOK_EVERY_S = 0.2
FOLLOWED_LINES = 20
OWN_LINE_BYTES = 1024 * 1024
COLORS = {"warning": "yellow", "error": "red", "critical": "bold red", "debug": "dim"}


def logs(
    model: Annotated[
        str | None,
        model_argument("Model, for the log of its engine. [default: the server's log]"),
    ] = None,
    follow: Annotated[bool, option("--follow -f", "Follow the log, including new starts.")] = False,
    attempt: Annotated[
        int | None,
        option("--attempt N", "Engine start to show, of the last five. [latest]", min=1),
    ] = None,
    lines: Annotated[
        int | None, option("--lines -n N", "Show the last N lines. [all; with --follow 20]", min=0)
    ] = None,
    every: Annotated[bool, option("--all", "Show the log of all servers.")] = False,
    debug: Annotated[
        bool, option("--debug", "Show all lines, including those about tensors.")
    ] = False,
    as_json: Annotated[bool, option("--json", "Print JSON, one object per line.")] = False,
) -> None:
    """Show the log of a model's engine, or of the server."""
    settings = load_settings()
    if lines is None and follow:
        lines = FOLLOWED_LINES
    if model is not None:
        whole = debug or settings.debug
        _Engine(settings, model, as_json=as_json, whole=whole).show(attempt, lines, follow=follow)
    elif attempt is not None:
        raise ConfigError("--attempt needs a MODEL", hint="see 'vllama logs --help'")
    else:
        port = None if every else _find_port(settings)
        _show_own(settings.log_dir, lines, port, as_json=as_json, follow=follow)


class _Engine:
    """The logs of one model's engine."""

    def __init__(self, settings: Config, model: str, *, as_json: bool, whole: bool) -> None:
        """`whole`: show every line, also those of long runs; JSON always has all."""
        from vllama.supervise.log_reader import Logbook

        self._settings, self._model, self._as_json = settings, model, as_json
        self._runs = None if whole or as_json else RunShortener()
        self._book: Logbook = Logbook(settings.log_dir)

    def show(self, attempt: int | None, lines: int | None, *, follow: bool) -> None:
        """Show one attempt; with `follow` go on, also with those that come after the newest."""
        from vllama.supervise.log_reader import Reader
        from vllama.supervise.logs import read_number

        found = self._attempts()
        if not found and not follow:
            self._fail()
        while not found:
            _wait()
            found = self._attempts()
        name, path = found[-1] if attempt is None else self._find_attempt(found, attempt)
        reader = Reader(path)
        begun = self._shorten(_add_unfinished(reader.read_all(), None if follow else reader))
        self._print(name, reader, _last(begun, lines))
        while follow:
            _wait()
            self._print(name, reader, self._shorten(reader.read_new(), goes_on=True))
            newer = self._newer(name, path) if attempt is None else None
            if newer is not None:
                self._print(name, reader, self._shorten([*reader.read_new(), *reader.flush()]))
                name, path = newer
                reader = Reader(path)
                say_aside(f"-- {name}, attempt {read_number(path)} --")
                self._print(name, reader, self._shorten(reader.read_all()))

    def _shorten(self, lines: Iterable[str], *, goes_on: bool = False) -> Iterable[str]:
        """Yield the lines to show; `goes_on`: their run may go on with the next ones."""
        if self._runs is None:
            yield from lines
            return
        yield from self._runs.feed(lines)
        if not goes_on:
            yield from self._runs.flush()

    def _attempts(self) -> list[tuple[str, Path]]:
        """Return the attempts of the model, or of all its replicas, the oldest first."""
        names = self._book.find(self._model, f"{self._model}:latest") or self._book.find(
            *self._resolve()
        )
        found = [(name, path) for name in names for path in self._book.list_attempts(name)]
        return sorted(found, key=lambda item: item[1].name) if len(names) > 1 else found

    def _resolve(self) -> list[str]:
        """Return the full name of the model on this disk, if there is one."""
        try:
            return [local_library(self._settings).find(self._model).bundle.name]
        except VllamaError:
            return []

    def _newer(self, name: str, path: Path) -> tuple[str, Path] | None:
        """Return the attempt after this one, if it has begun."""
        found = self._attempts()
        here = next((at for at, item in enumerate(found) if item == (name, path)), None)
        if here is None:  # deleted meanwhile
            return found[0] if found else None
        return found[here + 1] if here + 1 < len(found) else None

    def _find_attempt(self, found: list[tuple[str, Path]], attempt: int) -> tuple[str, Path]:
        from vllama.supervise.logs import read_number

        for name, path in reversed(found):
            if read_number(path) == attempt:
                return name, path
        kept = ", ".join(str(read_number(path)) for _, path in found)
        raise ModelNotFound(
            self._model,
            message=f"no log of attempt {attempt} of '{self._model}'",
            hint=f"available logs: {kept}",
        )

    def _fail(self) -> None:
        names = self._book.list_names()
        hint = f"available logs: {', '.join(names)}" if names else "no engine has been started"
        message = f"no logs of '{self._model}' in '{self._settings.log_dir}'"
        raise ModelNotFound(self._model, message=message, hint=hint)

    def _print(self, name: str, reader: Reader, lines: Iterable[str]) -> None:
        from vllama.supervise.logs import read_number

        number = read_number(reader.path)
        for line in lines:
            if self._as_json:
                show_json_line({"model": name, "attempt": number, "line": line})
            else:
                say(line)


def _find_port(settings: Config) -> int:
    """Return the port of the server that runs on the data folder: the usual one, or another.

    If none runs, it is that of the last one.
    """
    from urllib.parse import urlsplit

    from vllama.base.servers import find_servers

    running = {urlsplit(each.url).port or 0 for each in find_servers(settings.data_dir)}
    if not running:
        return _read_last_port(settings.log_dir) or settings.port
    return settings.port if settings.port in running else min(running)


def _read_last_port(log_dir: Path) -> int | None:
    """Return the port of the server that logged last; None if no line tells one."""
    from vllama.supervise.logs import OWN_LOG

    try:
        with (log_dir / OWN_LOG).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - OWN_LINE_BYTES))
            ports = re.findall(rb'"port": (\d+),', log.read())  # unescaped: of no text
    except OSError:
        return None
    return int(ports[-1]) if ports else None


def _show_own(
    log_dir: Path, lines: int | None, port: int | None, *, as_json: bool, follow: bool
) -> None:
    """Show the log of the server on a port, or of all servers."""
    from vllama.supervise.log_reader import Reader
    from vllama.supervise.logs import OWN_LOG

    path = log_dir / OWN_LOG
    if not path.exists() and not follow:
        raise ConfigError(f"no such file: '{path}'", hint="start a server first: vllama serve")
    reader = Reader(path, line_bytes=OWN_LINE_BYTES)
    show = say if as_json else partial(_show_readable, named=port is None)

    def select(found: Iterable[str]) -> Iterator[str]:
        return (line for line in found if port is None or is_of_port(line, port))

    whole = _add_unfinished(reader.read_all(), None if follow else reader)
    shown = False
    for line in _last(select(whole), lines):
        show(line)
        shown = True
    if port is not None and lines != 0 and not (shown or follow):
        say_aside(f"no log of a server on port {port}; --all shows the logs of other servers")
    while follow:
        _wait()
        for line in select(reader.read_new()):
            show(line)


def _show_readable(line: str, *, named: bool) -> None:
    """Print a line of our own log for people, in the color of its level on a terminal.

    `named`: with the server that wrote it.
    """
    level, text = _readable(line, named=named)
    if is_terminal(sys.stdout):
        console().print(text, style=COLORS.get(level))
    else:
        say(text)


def _readable(line: str, *, named: bool) -> tuple[str, str]:
    """Return the level of a line of our own log and its text for people."""
    try:
        fields = json.loads(line)
        server = ", ".join(f"{name} {fields[name]}" for name in ("port", "pid") if name in fields)
        text = as_text(fields)
        return str(fields["level"]), f"[{server}] {text}" if named and server else text
    except (ValueError, TypeError, KeyError):
        return "", line  # cut when the disk was full


def _add_unfinished(lines: Iterable[str], ended: Reader | None) -> Iterable[str]:
    """Yield lines, and then the unfinished last line of `ended`."""
    yield from lines
    if ended is not None:
        yield from ended.flush()


def _last(lines: Iterable[str], count: int | None) -> Iterable[str]:
    """Return the last `count` lines, None for all."""
    return lines if count is None else deque(lines, maxlen=count)


def _wait() -> None:
    """Wait until it is time to look again. Raises BrokenPipeError when the reader has gone."""
    if sys.stdout.isatty():
        time.sleep(LOOK_EVERY_S)
        return
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors are always reported
    if poll.poll(LOOK_EVERY_S * 1000):
        raise BrokenPipeError


LONGEST_RUN = 40
"""Lines in a row that begin alike and are shown; lists of metadata are shorter."""


class RunShortener:
    """Passes lines on, but of a long run only its beginning and how many more there were.

    Engines name the part that speaks before a colon; lines of one part in a row are a run.
    """

    def __init__(self) -> None:
        self._part = ""
        self._count = 0

    def feed(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines to show of these."""
        for line in lines:
            part, colon, _ = line.partition(": ")
            if not colon or part != self._part:
                yield from self.flush()
                self._part, self._count = part if colon else "", 0
            self._count += 1
            if self._count <= LONGEST_RUN or not self._part:
                yield line

    def flush(self) -> Iterator[str]:
        """Yield how many lines were left out since the last one that was shown."""
        left_out = self._count - LONGEST_RUN
        if self._part and left_out > 0:
            yield f"… {left_out} more lines of {self._part} (to show all: vllama logs --debug)"
        self._count = min(self._count, LONGEST_RUN)
