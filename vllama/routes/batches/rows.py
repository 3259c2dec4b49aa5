"""The rows of a batch: lines of JSON, checked before the first one runs; and their answers.

An answer is on the disk before it counts, as usage is (docs/decisions/0028).
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable
from pathlib import Path
from secrets import token_hex
from sys import intern
from typing import Any, NamedTuple

import msgspec

from vllama.base import journal, private
from vllama.dialects.openai.batch_types import RowError

MAX_ROWS = 50_000
MAX_ROW_BYTES = 16 * 1024 * 1024
MAX_ERRORS = 100


class Place(NamedTuple):
    """The place of a row in its file, its `custom_id` and its model."""

    custom_id: str
    start: int
    length: int
    model: str


class _Ended(msgspec.Struct):
    custom_id: str


_read_ended = msgspec.json.Decoder(_Ended).decode


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


def check_rows(path: Path, endpoint: str) -> tuple[list[Place], list[RowError]]:
    """Return where the rows of a file are, and what is wrong with it. Blocks. Raises OSError."""
    if not path.exists():
        return [], [RowError(code="file_not_found", message="its input file was deleted")]
    places: list[Place] = []
    errors: list[RowError] = []
    seen: set[str] = set()
    start = 0
    with path.open("rb") as file:
        if file.read(len(BOM_UTF8)) == BOM_UTF8:  # Windows' editors write it
            start = len(BOM_UTF8)
        file.seek(start)
        for number, line in enumerate(file, 1):
            if line.strip():
                found = _check_line(line, endpoint, seen)
                if isinstance(found, RowError):
                    found.line = number
                    errors.append(found)
                else:
                    model = intern(found.body["model"])  # most rows have the same
                    places.append(Place(found.custom_id, start, len(line), model))
            start += len(line)
            if len(errors) >= MAX_ERRORS or len(places) > MAX_ROWS:
                break
    if len(places) > MAX_ROWS:
        errors.append(
            RowError(code="too_many_tasks", message=f"a batch may have at most {MAX_ROWS} rows")
        )
    if not (places or errors):
        errors.append(RowError(code="empty_file", message="the file has no rows"))
    return places, errors


def _check_line(line: bytes, endpoint: str, seen: set[str]) -> _Line | RowError:
    """Return a line as it was read, or what is wrong with it."""
    if len(line) > MAX_ROW_BYTES:
        return RowError(
            code="row_too_large", message=f"a row may have at most {MAX_ROW_BYTES >> 20} MiB"
        )
    try:
        row = msgspec.json.decode(line, type=_Line)
    except msgspec.ValidationError as error:
        return RowError(code="invalid_request", message=str(error))
    except (ValueError, RecursionError):
        return RowError(code="invalid_json_line", message="the line is not valid JSON")
    if row.custom_id in seen:
        message = f"the custom_id '{row.custom_id[:80]}' is a duplicate"
        return RowError(code="duplicate_custom_id", message=message, param="custom_id")
    seen.add(row.custom_id)
    if row.method != "POST":
        return RowError(code="invalid_method", message="the method must be POST", param="method")
    if row.url != endpoint:
        message = f"the url must be {endpoint}, the endpoint of the batch"
        return RowError(code="mismatched_url", message=message, param="url")
    if not isinstance(row.body.get("model"), str):
        return RowError(code="invalid_model", message="model is required", param="body.model")
    if row.body.get("stream"):
        message = "streaming is not supported in a batch"
        return RowError(code="invalid_request", message=message, param="body.stream")
    return row


def read_row(path: Path, place: Place) -> bytes:
    """Return the body of a row that was checked. Blocks. Raises OSError."""
    with path.open("rb") as file:
        file.seek(place.start)
        line = msgspec.json.decode(file.read(place.length), type=_Line)
    return msgspec.json.encode(line.body)


def write_line(custom_id: str, status: int, body: bytes) -> bytes:
    """Return a row's answer as a line of a file."""
    response = {
        "status_code": status,
        "request_id": f"req_{token_hex(12)}",
        "body": msgspec.Raw(body or b"null"),
    }
    identity = f"batch_req_{token_hex(12)}"
    line = {"id": identity, "custom_id": custom_id, "response": response, "error": None}
    return msgspec.json.encode(line) + b"\n"


def add_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Add answers to a file, and wait for the disk. Blocks. Raises OSError."""
    journal.append_to(path, b"".join(lines))


def read_ended(path: Path) -> set[str]:
    """Return the `custom_id`s of a file's answers. Blocks. Raises OSError.

    A line that cannot be read, such as one that a crash has cut, is put aside: its row runs again.
    """
    if not path.exists():
        return set()
    with path.open("rb") as file:
        ended, unreadable = journal.read_lines(file, _read_ended)
    if unreadable:
        journal.put_aside(path, unreadable, path.with_suffix(".unreadable"))
        whole, bad = path.with_suffix(".whole"), set(unreadable)
        with path.open("rb") as old, private.create(whole) as new:
            new.writelines(line for line in old if line.removesuffix(b"\n") not in bad)
        whole.replace(path)
    return {each.custom_id for each in ended}
