"""The handlers that list the logs, and that show or follow one.

See docs/reference/api.md#what-the-server-knows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from vllama.base import executors, log_context
from vllama.base.errors import BadRequest, NotFound
from vllama.base.log_lines import as_text, is_of_port
from vllama.base.meaning import TEXT, Schema, says
from vllama.base.units import rfc3339_local
from vllama.net.http.request import Request
from vllama.routes.route import Parameter, RouteKind, server_route
from vllama.supervise.log_reader import Logbook, Reader
from vllama.supervise.logs import OWN_LOG, read_number

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

PREFIX = "/api/logs/"
OWN = "vllama"
"""The name of vllama's own log; those of engines have the names of models, which have a tag."""
OWN_LINE_BYTES = 1024 * 1024
LOOK_EVERY_S = 0.25
FOLLOWED_LINES = 20
BLOCK_LINES = 500
PLAIN = b"text/plain; charset=utf-8"


class LogAttempt(Struct):
    """The log of one engine start."""

    attempt: Annotated[int, says("number of the start")]
    size: Annotated[int, says("size in bytes")]
    written_at: Annotated[str | None, says("time of the last line")]


class Log(Struct):
    """A log of vllama, or of a model's engine with its starts, oldest first."""

    name: str
    size: Annotated[int, says("size in bytes")]
    attempts: Annotated[list[LogAttempt], says("engine starts, oldest first")]


class Logs(Struct):
    """The stored logs."""

    logs: Annotated[list[Log], says("stored logs")]


async def list_logs(gateway: Gateway, request: Request) -> None:
    """List vllama's log and the logs of engines, with their starts."""
    rows = await executors.disk.run(_list_logs, gateway.in_use.config.log_dir)
    request.json(200, Logs(rows))


async def get_log(gateway: Gateway, request: Request) -> None:
    """Return a log.

    With `?follow=1` the response stays open and streams new lines.
    """
    query = request.read_query()
    attempt, follow = read_number_in(query, "attempt"), query.get("follow", "") in ("1", "true")
    lines = read_number_in(query, "lines")
    if lines is None and follow:
        lines = FOLLOWED_LINES
    log = await executors.disk.run(
        LogText, gateway.in_use.config.log_dir, request.path.removeprefix(PREFIX), attempt
    )
    blocks = log.read(lines, ended=not follow)
    text = await executors.disk.run(next, blocks, b"")
    request.endless = follow
    request.start(200, PLAIN)
    request.write(text or b"\n" * follow)
    while text and not request.disconnected:
        await request.wait_until_drained()
        request.write(text := await executors.disk.run(next, blocks, b""))
    while follow and not (request.disconnected or gateway.stopping):
        await asyncio.sleep(LOOK_EVERY_S)
        request.write(await executors.disk.run(log.read_new))
        await request.wait_until_drained()
    request.end()


class LogText:
    """A log as lines for people. Blocks for the time of reading a file."""

    def __init__(self, log_dir: Path, name: str, attempt: int | None) -> None:
        """Find the log; without `attempt` that of the newest. Raises NotFound."""
        self._folder, self._name = log_dir, name
        self._newest = attempt is None and name != OWN
        if name == OWN:
            self._reader = Reader(log_dir / OWN_LOG, line_bytes=OWN_LINE_BYTES)
            return
        paths = Logbook(log_dir).list_attempts(name)
        found = [path for path in paths if attempt in (None, read_number(path))]
        if not found:
            which = "" if attempt is None else f" of attempt {attempt}"
            raise NotFound(f"no log{which} of '{name}'", hint="see GET /api/logs")
        self._reader = Reader(found[-1])

    def read(self, lines: int | None, *, ended: bool) -> Iterator[bytes]:
        """Yield the last `lines` (None: all) in blocks; `ended`: the last may be unfinished."""
        skipped = 0
        if lines is not None:  # counted first, so that none of them has to be kept
            count = sum(1 for _ in self._read_all(Reader(self._reader.path), ended))
            skipped = max(0, count - lines)
        found = islice(self._read_all(self._reader, ended), skipped, None)
        while block := self._encode(islice(found, BLOCK_LINES)):
            yield block

    def read_new(self) -> bytes:
        """Return the lines that were added since, also those of a newer attempt."""
        text = self._encode(self._select(self._reader.read_new()))
        if not self._newest:
            return text
        paths = Logbook(self._folder).list_attempts(self._name)
        newer = [p for p in paths if read_number(p) > read_number(self._reader.path)]
        for path in newer:
            text += self._encode([*self._reader.read_new(), *self._reader.flush()])
            self._reader = Reader(path)
            text += b"-- %b, attempt %d --\n" % (self._name.encode(), read_number(path))
            text += self._encode(self._reader.read_all())
        return text

    def _read_all(self, reader: Reader, ended: bool) -> Iterator[str]:
        yield from self._select(reader.read_all())
        yield from reader.flush() if ended else ()

    def _select(self, lines: Iterable[str]) -> Iterable[str]:
        """Leave out lines of other servers, such as those of verify, from the server's log."""
        is_ours = partial(is_of_port, port=log_context.port)
        return filter(is_ours, lines) if self._name == OWN else lines

    def _encode(self, lines: Iterable[str]) -> bytes:
        shown = map(read_own, lines) if self._name == OWN else lines
        return "".join(f"{line}\n" for line in shown).encode()


def read_own(line: str) -> str:
    """Return a line of vllama's own log for people."""
    try:
        return as_text(json.loads(line))
    except (ValueError, TypeError, KeyError):
        return line  # cut when the disk was full


def read_number_in(query: dict[str, str], name: str) -> int | None:
    """Return a parameter, None if it is not given. Raises BadRequest."""
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise BadRequest(f"cannot show a log: {name} is '{text}'", hint="it must be a number")
    return int(text)


def _list_logs(log_dir: Path) -> list[Log]:
    book, own = Logbook(log_dir), log_dir / OWN_LOG
    rows = []
    if own.exists():
        rows.append(Log(OWN, own.stat().st_size, []))
    for name in book.list_names():
        attempts = [describe_attempt(path) for path in book.list_attempts(name)]
        rows.append(Log(name, sum(row.size for row in attempts), attempts))
    return rows


def describe_attempt(path: Path) -> LogAttempt:
    """Return the row of the log of one attempt."""
    try:
        status = path.stat()
    except FileNotFoundError:  # pruned meanwhile
        return LogAttempt(read_number(path), 0, None)
    return LogAttempt(read_number(path), status.st_size, rfc3339_local(status.st_mtime))


_COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
ROUTES = (
    server_route("GET /api/logs", list_logs, RouteKind.WRITTEN, answer=Logs),
    server_route(
        f"GET {PREFIX}{{name}}",
        get_log,
        RouteKind.WRITTEN,
        parameters=(
            Parameter("name", "`vllama`, or a model name"),
            Parameter("lines", "number of lines from the end", _COUNT),
            Parameter("attempt", "engine start, by number; the latest by default", _COUNT),
        ),
        media={"text/plain": TEXT},
    ),
)
