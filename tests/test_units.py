"""Tables for sizes, durations and times."""

from __future__ import annotations

import math

import pytest

from vllama.base import units

DAY = 86400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("-0", 0.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1h30m15.5s", 5415.5),
        ("500ms", 0.5),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("250μs", 0.00025),
        ("1ns", 1e-9),
        ("-1m", -60.0),
        ("+5s", 5.0),
        (".5h", 1800.0),
        ("1.h", 3600.0),
        ("24h", 86400.0),
    ],
)
def test_go_duration(text: str, seconds: float) -> None:
    assert units.parse_go_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("300", 'time: missing unit in duration "300"'),
        ("-1", 'time: missing unit in duration "-1"'),
        ("1h5", 'time: missing unit in duration "1h5"'),
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        (".s", 'time: invalid duration ".s"'),
        ("forever", 'time: invalid duration "forever"'),
        (" 5m", 'time: invalid duration " 5m"'),
        ("5x", 'time: unknown unit "x" in duration "5x"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ('5"', 'time: unknown unit "\\"" in duration "5\\""'),
        ("9999999h", 'time: invalid duration "9999999h"'),
    ],
)
def test_go_duration_errors(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        units.parse_go_duration(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0.0),
        (300, 300.0),
        (1.5, 1.5),
        (-1, math.inf),
        (-0.5, math.inf),
        ("10m", 600.0),
        ("-1m", math.inf),
        ("0", 0.0),
        ("0" * 5000 + "7s", 7.0),
        ("0.5" + "1" * 5000 + "s", 0.511111111),
        (-0.0, 0.0),
    ],
)
def test_keep_alive(value: object, seconds: float | None) -> None:
    assert units.parse_keep_alive(value) == seconds


NO_DURATION = "expected a number of seconds, or a duration such as '5m'"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, NO_DURATION),
        ({}, NO_DURATION),
        ([], NO_DURATION),
        ("300", 'time: missing unit in duration "300"'),
        ("-1", 'time: missing unit in duration "-1"'),
        ("", 'time: invalid duration ""'),
        (math.nan, NO_DURATION),
        (b"5m", NO_DURATION),
        (10**400, NO_DURATION),
        (-(10**4000), NO_DURATION),
        ("9" * 400 + "s", f'time: invalid duration "{"9" * 400}s"'),
        ("9" * 5000 + "ns", f'time: invalid duration "{"9" * 5000}ns"'),
        ("١s", 'time: invalid duration "١s"'),
        ("1e9s", 'time: unknown unit "e" in duration "1e9s"'),
    ],
)
def test_keep_alive_errors(value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        units.parse_keep_alive(value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "seconds"), [("300", 300.0), ("-1", math.inf), ("0", 0.0), ("5m", 300.0)]
)
def test_keep_alive_of_the_environment(value: str, seconds: float) -> None:
    assert units.parse_keep_alive(value, bare_numbers=True) == seconds


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (1536, "1.5 KB"),
        (91_728_832, "91 MB"),
        (2_000_000_000, "2 GB"),
        (2_019_393_189, "2.0 GB"),
        (9_999_999_999, "10.0 GB"),
        (10_400_000_000, "10 GB"),
        (1_500_000_000_000, "1.5 TB"),
        (2_500_000_000_000_000, "2500 TB"),
    ],
)
def test_bytes_decimal(size: int, text: str) -> None:
    assert units.format_bytes_decimal(size) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(512, "512 B"), (1024**2 * 512, "512 MiB"), (85_520_809_984, "79.6 GiB"), (1024**4, "1 TiB")],
)
def test_bytes_binary(size: int, text: str) -> None:
    assert units.format_bytes_binary(size) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * 1024**3),
        ("500MB", 500_000_000),
        ("1.5 gb", 1_500_000_000),
        ("8G", 8 * 1024**3),
        ("1024", 1024),
        (" 7 B ", 7),
    ],
)
def test_parse_bytes(text: str, size: int) -> None:
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GB", "5 apples", "1.2.3GB", "0 apples", "9" * 400, "1" * 5000 + "TiB"]
)
def test_parse_bytes_errors(text: str) -> None:
    with pytest.raises(ValueError, match="use the form 24GiB"):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "Less than a second"),
        (0.99, "Less than a second"),
        (1.5, "1 second"),
        (59, "59 seconds"),
        (60, "About a minute"),
        (119, "About a minute"),
        (299.9, "4 minutes"),
        (3599, "59 minutes"),
        (3600, "About an hour"),
        (5399, "About an hour"),
        (5400, "2 hours"),
        (47 * 3600, "47 hours"),
        (48 * 3600, "2 days"),
        (13 * DAY, "13 days"),
        (14 * DAY, "2 weeks"),
        (59 * DAY, "8 weeks"),
        (60 * DAY, "2 months"),
        (729 * DAY, "24 months"),
        (730 * DAY, "2 years"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0s"),
        (7, "7ns"),
        (1500, "1.5µs"),
        (130_079_000, "130.079ms"),
        (1_000_000_000, "1s"),
        (4_232_710_706, "4.232710706s"),
        (63_500_000_000, "1m3.5s"),
        (3_600_000_000_000, "1h0m0s"),
        (60_000_000_001, "1m0.000000001s"),
    ],
)
def test_go_duration_text(duration_ns: int, text: str) -> None:
    assert units.format_go_duration(duration_ns) == text


def test_ago_and_until() -> None:
    assert units.format_ago(0.2) == "Less than a second ago"
    assert units.format_ago(21 * DAY) == "3 weeks ago"
    assert units.format_ago(-299) == "4 minutes from now"
    assert units.format_until(299) == "4 minutes from now"
    assert units.format_until(-60) == "About a minute ago"
    assert units.format_until(20.5 * 365 * DAY) == "20 years from now"
    assert units.format_until(21 * 365 * DAY) == "Forever"
    assert units.format_until(math.inf) == "Forever"


def test_utc_time() -> None:
    assert units.rfc3339_utc(1_700_000_000_000_000_006) == "2023-11-14T22:13:20.000000006Z"
    assert units.rfc3339_utc(0) == "1970-01-01T00:00:00.000000000Z"


@pytest.mark.parametrize("time_s", [0.0, 1_700_000_000.25, 4_000_000_000.5])
def test_local_time_and_back(time_s: float) -> None:
    text = units.rfc3339_local(time_s)
    assert text[-1] == "Z" or text[-6] in "+-"
    assert units.parse_rfc3339(text) == time_s


def test_a_fraction_may_round_up_to_a_second() -> None:
    assert units.parse_rfc3339(units.rfc3339_local(5.9999999)) == 6.0


def test_forever_is_a_time_far_away() -> None:
    assert units.parse_rfc3339(units.rfc3339_local(math.inf)) == units.FOREVER_EPOCH_S


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T00:00:00.5Z", 0.5),
        ("1970-01-01T02:00:00.123456789+02:00", 0.123456),
        ("2318-01-01T00:00:00.123456789+00:00", 10981785600.123456),
    ],
)
def test_parse_time(text: str, seconds: float) -> None:
    assert units.parse_rfc3339(text) == pytest.approx(seconds, abs=1e-5)


def test_a_long_duration_is_refused_unread() -> None:
    """Each of its parts would copy the rest: 47 MB of them took hours."""
    longest = "0s" * (units.MAX_DURATION // 2 - 1)
    assert units.parse_go_duration(longest) == 0.0
    with pytest.raises(ValueError, match="invalid duration") as found:
        units.parse_go_duration(longest * 5_000)
    assert len(str(found.value)) < 2 * units.MAX_DURATION


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0"), (999, "999"), (50 * 1000**3, "50GB"), (64 * 1024**2, "64MiB"),
        (1024**4, "1TiB"), (1536 * 1024**2, "1536MiB"), (10**9 + 1, "1000000001"),
    ],
)  # fmt: skip
def test_write_bytes(size: int, text: str) -> None:
    assert units.write_bytes(size) == text and units.parse_bytes(text) == size
