"""One request for one part of a file: is the answer the part, and does it come fast enough?

What can be tried again is `Again`; what shows a server without Range is `NoRanges`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator

from vllama.errors import SourceError
from vllama.models.download.connections import Answer, Broken, OpenConnections, Wire
from vllama.models.download.partial_file import Part
from vllama.models.sources.base import Location
from vllama.models.sources.hub_json import wait_s

LEAST_BYTES_PER_S = 1024
"""A connection that is slower has been forgotten by its server: a new one may do better."""
_EXPIRED = frozenset({401, 403, 404, 410})  # what storages answer to an old signature
_RANGE = re.compile(r"bytes (\d{1,19})-\d{1,19}/(\d{1,19}|\*)")


class Again(Exception):
    """This attempt failed; another one may go well.

    `expired`: with a new address. `slow`: although bytes came. `misplaced`: they were others than
    asked for. `wait_s`: as the server asked.
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


class NoRanges(Exception):
    """The server sends whole files only."""


def receive(
    wire: Wire,
    location: Location,
    part: Part,
    *,
    ranged: bool,
    reading: OpenConnections,
    slow_after_s: float,
) -> Generator[bytes]:
    """Yield what is left of `part`; the caller moves `part.done` on with each piece.

    `ranged` False asks for the whole file. `slow_after_s` is the time over which the speed is
    judged. Raises Again, NoRanges, SourceError, BadAddress.
    """
    headers = {**location.headers, "Accept-Encoding": "identity"}
    if ranged:
        headers["Range"] = f"bytes={part.position}-{part.start + part.size - 1}"
    try:
        with wire.get(location.url, headers, reading) as answer:
            _check(answer, part, location, ranged)
            yield from _pieces(answer, part, slow_after_s)
    except Broken as error:
        raise Again(str(error)) from error


def _pieces(answer: Answer, part: Part, slow_after_s: float) -> Generator[bytes]:
    since, had = time.monotonic(), part.done
    while part.left:
        data = answer.read()
        if not data:
            raise Again("the connection was closed early")
        yield data
        passed = time.monotonic() - since
        if passed >= slow_after_s:
            if part.done - had < LEAST_BYTES_PER_S * passed:
                raise Again(f"only {part.done - had} bytes came in {passed:.0f} s", slow=True)
            since, had = time.monotonic(), part.done


def _check(answer: Answer, part: Part, location: Location, ranged: bool) -> None:
    status = answer.status
    if status == 206 and ranged:
        _check_range(answer.headers.get("content-range", ""), part, location)
    elif status == 200:
        kind = answer.headers.get("content-type", "of no type")
        other = answer.length is not None and answer.length != location.size_bytes
        if other or kind.startswith("text/html"):  # a proxy's login, a storage's apology
            raise Again(f"something else came instead of the file ({kind})")
        if ranged and (part.position or part.size != location.size_bytes):
            raise NoRanges
    elif status in _EXPIRED:
        raise Again(f"the storage answered {status}", expired=True)
    elif status in (206, 408, 416, 425, 429) or status >= 500:
        raise Again(f"the storage answered {status}", wait_s=wait_s(answer.headers))
    else:
        raise SourceError(f"the storage answered {status}")


def _check_range(said: str, part: Part, location: Location) -> None:
    match = _RANGE.fullmatch(said.strip())
    if match is None or int(match[1]) != part.position:
        raise Again(f"the storage sent another range than asked for ('{said}')", misplaced=True)
    if match[2] not in ("*", str(location.size_bytes)):
        raise Again(f"the storage's file has {match[2]} bytes, not {location.size_bytes}")
