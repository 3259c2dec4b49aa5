"""The progress that uv's lines report. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllama.base.units import parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What uv is doing: `text` for people; the bytes of the file being fetched, where it says so.

    A `minor` step takes a moment: it suits a line that is overwritten, not a log.
    """

    text: str
    minor: bool = False
    done_bytes: int | None = None
    total_bytes: int | None = None


LARGE_BYTES = 5_000_000
NEWS = (
    (r"Building wheels? for (?:collected packages: )?([^\s:,]+)", "compiling {0}", False),
    (r"(?:Building|Preparing) ([\w.-]+==\S+)", "compiling {0}", False),
    (r"Collecting ([^\s(]+)", "looking for {0}", True),
    (r"Installing collected packages|Prepared \d+ package", "installing the packages", False),
    (r"(waiting for another .+|trying .+)", "{0}", False),
)
"""Lines without numbers, what they mean, and whether that is minor."""


class Reader:
    """Reads the lines of one installation, in order."""

    def __init__(self) -> None:
        self._file = "fetching"
        self._sizes: dict[str, int] = {}

    def read(self, line: str) -> Progress | None:
        """Return what `line` tells; None if it is nothing for people."""
        text = line.strip()
        if match := re.match(r"Progress (\d+) of (\d+)$", text):  # pip, of the last file named
            return _fetching(self._file, int(match[1]), int(match[2]))
        if match := re.match(r"Downloading (\S+) \(([\d.]+)\s*([kKMGT]?i?B)\)", text):
            self._file = f"fetching {_package(match[1])}"
            size = self._sizes[match[1]] = parse_bytes(match[2] + match[3])
            return _fetching(self._file, 0, size)
        if (match := re.match(r"Downloaded (\S+)$", text)) and match[1] in self._sizes:  # uv
            size = self._sizes[match[1]]
            return _fetching(f"fetching {match[1]}", size, size)
        for pattern, news, minor in NEWS:
            if match := re.match(pattern, text):
                return Progress(text=news.format(*match.groups()), minor=minor)
        return None


def _fetching(text: str, done_bytes: int, total_bytes: int) -> Progress:
    minor = total_bytes < LARGE_BYTES
    return Progress(text=text, minor=minor, done_bytes=done_bytes, total_bytes=total_bytes)


def _package(name: str) -> str:
    """Return a package's name and version from its file's name; uv prints the name only."""
    stem = re.sub(r"\.metadata$|\.whl$|\.tar\.gz$|\.zip$", "", name.rpartition("/")[2])
    parts = stem.rsplit("-", 1) if stem.count("-") == 1 else stem.split("-")
    return " ".join(parts[:2]) if stem != name else name
