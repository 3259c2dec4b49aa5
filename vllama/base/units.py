"""Sizes, durations and times in the formats of Ollama's API and command line.

Pure, except that `rfc3339_local` reads the local time zone, and `format_load` the clock. The
formats follow Ollama's Go code (`format/bytes.go`, `format/time.go`, `api/types.go`) and Go's
`time.ParseDuration`, including the texts of errors, because clients show and compare them.
"""

from __future__ import annotations

import math
import re
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache

_GO_UNITS_NS: dict[str, int] = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, micro sign
    "μs": 1_000,  # U+03BC, Greek letter mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_GO_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")
_MAX_NS = 2**63 - 1
_MAX_DIGITS = 19

FOREVER_EPOCH_S = _MAX_NS // 1_000_000_000
"""The Unix time that means "never" in the API, in the year 2262 (Go's largest duration)."""

_BYTE_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
    **{prefix: 1024**power for power, prefix in enumerate("kmgt", 1)},
}

MAX_DURATION = 10_000
"""Characters of a duration; Go reads any number of parts."""


def parse_go_duration(text: str) -> float:
    """Parse a duration such as `1h30m`, `500ms`, `-1m` or `0`; return seconds.

    Raises ValueError with the text of Go's `time.ParseDuration`.
    """
    quoted = _go_quote(text[:MAX_DURATION])
    if len(text) >= MAX_DURATION:
        raise ValueError(f"time: invalid duration {quoted}")
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0.0
    if not rest:
        raise ValueError(f"time: invalid duration {quoted}")
    total_ns = 0
    while rest:
        match = _GO_PART.match(rest)
        assert match is not None  # every part of the pattern may be empty
        whole, fraction, unit = match.group(1), match.group(2) or "", match.group(3)
        if not (whole or fraction) or len(whole.lstrip("0")) > _MAX_DIGITS:
            raise ValueError(f"time: invalid duration {quoted}")
        if not unit:
            raise ValueError(f"time: missing unit in duration {quoted}")
        if unit not in _GO_UNITS_NS:
            raise ValueError(f"time: unknown unit {_go_quote(unit)} in duration {quoted}")
        scale = _GO_UNITS_NS[unit]
        total_ns += int(whole[-_MAX_DIGITS:] or "0") * scale
        if fraction := fraction[:_MAX_DIGITS]:  # the rest is less than a nanosecond
            total_ns += int(fraction) * scale // 10 ** len(fraction)
        if total_ns > _MAX_NS:
            raise ValueError(f"time: invalid duration {quoted}")
        rest = rest[match.end() :]
    return sign * total_ns / 1e9


def parse_keep_alive(value: object, *, bare_numbers: bool = False) -> float | None:
    """Read a `keep_alive`: seconds, `math.inf` for "forever", or None for "not given".

    Numbers are seconds, strings are Go durations, anything negative means forever. Digits in a
    string are an error in a request; `bare_numbers` allows them, as `OLLAMA_KEEP_ALIVE` does.
    Raises ValueError.
    """
    seconds = math.nan
    match value:
        case None:
            return None
        case bool():
            pass
        case int() | float():
            with suppress(OverflowError):
                seconds = float(value)
        case str() if bare_numbers and re.fullmatch(r"[+-]?[0-9]+", value):
            seconds = float(value)
        case str():
            seconds = parse_go_duration(value)
    if math.isnan(seconds):
        raise ValueError("expected a number of seconds, or a duration such as '5m'")
    return math.inf if seconds < 0 else seconds


def format_bytes_decimal(size_bytes: int) -> str:
    """Format a size as Ollama does: `512 B`, `91 MB`, `2.0 GB` (a round value without `.0`)."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "KB")):
        if size_bytes >= 1000**power:
            value = size_bytes / 1000**power
            whole = value >= 10 or value == math.trunc(value)
            return f"{int(value)} {unit}" if whole else f"{value:.1f} {unit}"
    return f"{size_bytes} B"


def format_share(done_bytes: int, total_bytes: int) -> str:
    """Format how much of a file was moved: `62% of 91 MB`."""
    return f"{100 * done_bytes // total_bytes}% of {format_bytes_decimal(total_bytes)}"


def format_load(completed: int, total: int, started_s: float) -> str:
    """Format how far a load is now: `62% of 91 MB, 1.4 s`, or only the time."""
    passed = f"{max(0.0, time.time() - started_s):.1f} s"
    return f"{format_share(completed, total)}, {passed}" if completed and total else passed


def format_bytes_binary(size_bytes: int) -> str:
    """Format a memory size in binary units: `79.6 GiB`, `512 MiB`."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**power:
            text = f"{size_bytes / 1024**power:.1f}".removesuffix(".0")
            return f"{text} {unit}"
    return f"{size_bytes} B"


def format_parameter_count(count: int | None) -> str:
    """Write a parameter count as Ollama does (format.HumanNumber): `134.52M`, `3.2B`, `7B`."""
    if count is None:
        return ""
    for unit, letter, digits in ((10**9, "B", 1), (10**6, "M", 2)):
        if count >= unit:
            number = count / unit
            shown = f"{number:.0f}" if number.is_integer() else f"{number:.{digits}f}"
            return shown + letter
    return f"{count / 1000:.0f}K" if count >= 1000 else str(count)


def format_amount(size_bytes: int) -> str:
    """Return an amount of memory for people, fine enough to tell two quantizations apart."""
    if size_bytes < 1024**3:
        return f"{size_bytes / 1024**2:.0f} MiB"
    return f"{size_bytes / 1024**3:.1f} GiB"


def format_amounts(one_bytes: int, other_bytes: int) -> tuple[str, str]:
    """Return two amounts for people to compare, fine enough that different ones look different."""
    if format_amount(one_bytes) != format_amount(other_bytes) or one_bytes == other_bytes:
        return format_amount(one_bytes), format_amount(other_bytes)
    one, other = (f"{size / 1024**2:.1f} MiB" for size in (one_bytes, other_bytes))
    return (one, other) if one != other else (f"{one_bytes} bytes", f"{other_bytes} bytes")


def parse_bytes(text: str) -> int:
    """Parse `24GiB`, `500MB`, `1.5 GB`, `8G` (binary, as coreutils) or plain bytes.

    Raises ValueError.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = _BYTE_UNITS.get(match.group(2).lower(), math.inf) if match else math.inf
    size = float(match.group(1)) * unit if match else math.inf
    if not size < 2**63:
        raise ValueError(f'not a size: "{text[:80]}"; use the form 24GiB or 500MB')
    return int(size)


def write_bytes(size_bytes: int) -> str:
    """Write a size as `parse_bytes` reads it, without losing a byte: `50GB`, `64MiB`, `12345`."""
    for power in (4, 3, 2, 1):
        for step, end in ((1024, "iB"), (1000, "B")):
            count, rest = divmod(size_bytes, step**power)
            if count and not rest:
                return f"{count}{' KMGT'[power]}{end}"
    return str(size_bytes)


def format_duration(seconds: float) -> str:
    """Format a duration for people as Ollama does: `About a minute`, `3 weeks`; not negative."""
    whole = int(seconds)
    minutes = int(seconds / 60)
    hours = int(seconds / 3600 + 0.5)
    match (whole, minutes, hours):
        case (0, _, _):
            return "Less than a second"
        case (1, _, _):
            return "1 second"
        case (_, 0, _):
            return f"{whole} seconds"
        case (_, 1, _):
            return "About a minute"
        case (_, m, _) if m < 60:
            return f"{m} minutes"
        case (_, _, 1):
            return "About an hour"
        case (_, _, h) if h < 48:
            return f"{h} hours"
        case (_, _, h) if h < 24 * 14:
            return f"{h // 24} days"
        case (_, _, h) if h < 24 * 60:
            return f"{h // 24 // 7} weeks"
        case (_, _, h) if h < 24 * 365 * 2:
            return f"{h // 24 // 30} months"
    return f"{int(seconds / 3600) // 24 // 365} years"


def format_go_duration(duration_ns: int) -> str:
    """Format a duration as Go prints it: `1m3.5s`, `130.079ms`, `0s`; not negative."""
    if duration_ns < 1_000_000_000:
        for scale, unit in ((1_000_000, "ms"), (1_000, "µs"), (1, "ns")):
            if duration_ns >= scale:
                return _trim_number(duration_ns, scale) + unit
        return "0s"
    minutes, rest_ns = divmod(duration_ns, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    text = _trim_number(rest_ns, 1_000_000_000) + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def format_ago(seconds: float) -> str:
    """Format a time `seconds` ago for people; a future time reads `… from now`."""
    return f"{format_duration(seconds)} ago" if seconds >= 0 else format_until(-seconds)


def format_until(seconds: float) -> str:
    """Format a time `seconds` from now for people; more than 20 years are `Forever`."""
    if seconds < 0:
        return format_ago(-seconds)
    if math.isinf(seconds) or int(seconds / 3600) // 24 // 365 > 20:
        return "Forever"
    return f"{format_duration(seconds)} from now"


def rfc3339_utc(time_ns: int) -> str:
    """Format a Unix time in nanoseconds as `2026-01-02T03:04:05.000000006Z`."""
    seconds, nanos = divmod(time_ns, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanos:09d}Z"


def rfc3339_local(time_s: float) -> str:
    """Format a Unix time in seconds with the local offset; `math.inf` is the year 2262."""
    second, microseconds = divmod(round(min(time_s, FOREVER_EPOCH_S) * 1e6), 1_000_000)
    moment, offset = _local_second(second)
    return f"{moment}.{microseconds:06d}{offset}"


@lru_cache(maxsize=64)
def _local_second(second: int) -> tuple[str, str]:
    """Return a second as text, and its offset: to ask for the local zone is slow."""
    text = datetime.fromtimestamp(second, UTC).astimezone().isoformat()
    return text[:19], text[19:].replace("+00:00", "Z")


def parse_rfc3339(text: str) -> float:
    """Parse an RFC 3339 time with any number of fraction digits; return Unix seconds.

    Raises ValueError.
    """
    return datetime.fromisoformat(re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", text)).timestamp()


def _trim_number(value: int, scale: int) -> str:
    whole, rest = divmod(value, scale)
    fraction = f"{rest:0{len(str(scale)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{fraction}" if fraction else str(whole)


def _go_quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
