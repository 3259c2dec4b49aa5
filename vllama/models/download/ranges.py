"""One request for one part of a file: checks that the answer is that part, and fast enough.

A failure that another try may cure raises `RetryNeeded`; an answer that shows a server without
ranges raises `RangesUnsupported`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator

from vllama.errors import SourceError
from vllama.models.download.connections import ConnectionBroken, Connections, StreamedResponse
from vllama.models.download.partial_file import Part
from vllama.models.sources.base import Location
from vllama.models.sources.hub_json import parse_wait_s

LEAST_BYTES_PER_S = 1024
"""A slower connection was probably forgotten by its server; a new one may do better."""
_EXPIRED = frozenset({401, 403, 404, 410})  # what storages answer to an old signature
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
    part: Part,
    *,
    ranged: bool,
    slow_after_s: float,
) -> Generator[bytes]:
    """Yield the rest of `part`; the caller advances `part.done` with each piece.

    `ranged` False asks for the whole file. `slow_after_s` is the time over which the speed is
    measured. Raises Again, NoRanges, SourceError, BadAddress.
    """
    headers = {**location.headers, "Accept-Encoding": "identity"}
    if ranged:
        headers["Range"] = f"bytes={part.position}-{part.start + part.size - 1}"
    try:
        with connections.get(location.url, headers) as answer:
            _check(answer, part, location, ranged)
            yield from _pieces(answer, part, slow_after_s)
    except ConnectionBroken as error:
        raise RetryNeeded(str(error)) from error


def _pieces(answer: StreamedResponse, part: Part, slow_after_s: float) -> Generator[bytes]:
    since, had = time.monotonic(), part.done
    while part.left:
        data = answer.read()
        if not data:
            raise RetryNeeded("the connection was closed early")
        yield data
        passed = time.monotonic() - since
        if passed >= slow_after_s:
            if part.done - had < LEAST_BYTES_PER_S * passed:
                raise RetryNeeded(f"only {part.done - had} bytes came in {passed:.0f} s", slow=True)
            since, had = time.monotonic(), part.done


def _check(answer: StreamedResponse, part: Part, location: Location, ranged: bool) -> None:
    status = answer.status
    if status == 206 and ranged:
        _check_range(answer.headers.get("content-range", ""), part, location)
    elif status == 200:
        kind = answer.headers.get("content-type", "of no type")
        other = answer.length is not None and answer.length != location.size_bytes
        if other or kind.startswith("text/html"):  # a proxy's login, a storage's apology
            raise RetryNeeded(f"something else came instead of the file ({kind})")
        if ranged and (part.position or part.size != location.size_bytes):
            raise RangesUnsupported
    elif status in _EXPIRED:
        raise RetryNeeded(f"the storage answered {status}", expired=True)
    elif status in (206, 408, 416, 425, 429) or status >= 500:
        raise RetryNeeded(f"the storage answered {status}", wait_s=parse_wait_s(answer.headers))
    else:
        raise SourceError(f"the storage answered {status}")


def _check_range(said: str, part: Part, location: Location) -> None:
    match = _RANGE.fullmatch(said.strip())
    if match is None or int(match[1]) != part.position:
        raise RetryNeeded(
            f"the storage sent another range than asked for ('{said}')", misplaced=True
        )
    if match[2] not in ("*", str(location.size_bytes)):
        raise RetryNeeded(f"the storage's file has {match[2]} bytes, not {location.size_bytes}")
