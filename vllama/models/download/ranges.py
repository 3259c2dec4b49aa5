"""One request for one part of a file: checks that the answer is that part, and fast enough.

A failure that another try may cure raises `RetryNeeded`; an answer that shows a server without
ranges raises `RangesUnsupported`.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from vllama.base.errors import SourceError
from vllama.models.download.partial_file import Range
from vllama.models.sources.hub_json import parse_wait_s
from vllama.models.types import Location
from vllama.net.web.bodies import Pace
from vllama.net.web.connections import ConnectionBroken, Connections, StreamedResponse

_EXPIRED = frozenset({401, 403, 404, 410})  # what storages answer to an old signature
_FILES = frozenset({"of no type", "application/octet-stream", "binary/octet-stream"})
_RANGE = re.compile(r"bytes (\d{1,19})-\d{1,19}/(\d{1,19}|\*)")


class RetryNeeded(Exception):
    """This attempt failed; another one may succeed.

    `expired`: it needs a new address. `slow`: bytes arrived, but too few. `misplaced`: other bytes
    arrived than were asked for. `wait_s`: how long the server asked to wait.
    """

    def __init__(
        self,
        reason: str,
        *,
        expired: bool = False,
        slow: bool = False,
        misplaced: bool = False,
        wait_s: float = 0.0,
    ) -> None:
        super().__init__(reason)
        self.expired, self.slow, self.misplaced = expired, slow, misplaced
        self.wait_s = wait_s


class RangesUnsupported(Exception):
    """The server sends whole files only."""


def stream_part(
    connections: Connections,
    location: Location,
    part: Range,
    *,
    ranged: bool,
    slow_after_s: float,
) -> Generator[bytes]:
    """Yield the rest of `part`; the caller advances `part.done` with each piece.

    `ranged` False asks for the whole file. `slow_after_s` is the time over which the speed is
    measured. Raises RetryNeeded, RangesUnsupported, SourceError, BadAddress.
    """
    headers = {**location.headers, "Accept-Encoding": "identity"}
    if ranged:
        headers["Range"] = f"bytes={part.position}-{part.start + part.size - 1}"
    try:
        with connections.ask(location.url, headers) as answer:
            _check(answer, part, location, ranged)
            yield from _pieces(answer, part, slow_after_s)
    except ConnectionBroken as error:
        raise RetryNeeded(str(error)) from error


def _pieces(answer: StreamedResponse, part: Range, slow_after_s: float) -> Generator[bytes]:
    pace = Pace(slow_after_s)
    while part.left:
        data = answer.read()
        if not data:
            raise RetryNeeded("the connection was closed early")
        yield data
        if slow := pace.add(len(data)):
            raise RetryNeeded(slow, slow=True)


def _check(answer: StreamedResponse, part: Range, location: Location, ranged: bool) -> None:
    status = answer.status
    if status == 206 and ranged:
        _check_range(answer.headers.get("content-range", ""), part, location)
    elif status == 200:
        kind = answer.headers.get("content-type", "of no type")
        other = answer.length is not None and answer.length != location.size_bytes
        if other and kind in _FILES:
            _check_size(str(answer.length), location)
        if other or kind.startswith("text/html"):  # a proxy's login, a storage's apology
            raise RetryNeeded(f"unexpected content instead of the file ({kind})")
        if ranged and (part.position or part.size != location.size_bytes):
            raise RangesUnsupported
    elif status in _EXPIRED:
        raise RetryNeeded(f"the storage returned {status}", expired=True)
    elif status in (206, 408, 416, 425, 429) or status >= 500:
        if status == 416:  # bytes */SIZE
            _check_size(answer.headers.get("content-range", "").rpartition("/")[2] or "*", location)
        raise RetryNeeded(f"the storage returned {status}", wait_s=parse_wait_s(answer.headers))
    else:
        raise SourceError(f"the storage returned {status}")


def _check_range(said: str, part: Range, location: Location) -> None:
    match = _RANGE.fullmatch(said.strip())
    if match is None or int(match[1]) != part.position:
        raise RetryNeeded(f"the storage returned an unexpected range ('{said}')", misplaced=True)
    _check_size(match[2], location)


def _check_size(said: str, location: Location) -> None:
    """Raise SourceError for a file of another size: it will not grow while it is asked for."""
    if said not in ("*", str(location.size_bytes)):
        raise SourceError(f"the stored file has {said} bytes, not {location.size_bytes}")
