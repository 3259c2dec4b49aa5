"""The fields of OpenAI's files and batches. Times are in Unix seconds.

See https://platform.openai.com/docs/api-reference/batch, and /files.
"""

from __future__ import annotations

import time
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from vllama.base.meaning import BINARY, says
from vllama.chat.bodies import Body

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
PURPOSE, WINDOW = "batch", "24h"
LEAST_KEPT_S, KEPT_S = 3600, 30 * 86400
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]
T = TypeVar("T")
BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
OVER = ("failed", "completed", "expired", "cancelled")


class Expiry(Body):
    """The life of a file."""

    seconds: Annotated[int, Meta(ge=LEAST_KEPT_S, le=KEPT_S, description="30 days at most")]


_LONGEST = msgspec.field(default_factory=lambda: Expiry(seconds=KEPT_S))


class FileForm(Body):
    """The rows of a batch."""

    file: Annotated[str, says("the rows: JSON, one request a line", **BINARY)]
    purpose: Annotated[str, Meta(pattern=f"^{PURPOSE}$", description="the use of the file")]
    expires_after: Annotated[Expiry, says("how long it is kept")] = _LONGEST


class BatchBody(Body):
    """A new batch."""

    input_file_id: Annotated[str, says("the file with the rows", minLength=1)]
    endpoint: Annotated[
        str, Meta(pattern=f"^({'|'.join(ENDPOINTS)})$", description="the route of all rows")
    ]
    completion_window: Annotated[
        str, says("how long it may take", required=True), Meta(pattern=f"^{WINDOW}$")
    ] = WINDOW
    metadata: Annotated[Metadata | None, says("pairs of texts")] = None
    output_expires_after: Annotated[
        Expiry, says("how long the files with the responses are kept")
    ] = _LONGEST


class FileObject(Struct, kw_only=True):
    """A file that was uploaded, or that a batch has written."""

    id: str
    object: Literal["file"] = "file"
    bytes: Annotated[int, says("its size")]
    created_at: int
    expires_at: Annotated[int, says("when it is removed")]
    filename: Annotated[str, says("its name")]
    purpose: Annotated[str, says("what it is for: `batch` or `batch_output`")]
    status: Annotated[Literal["processed"], says("always `processed`")] = "processed"


class Page(Struct, Generic[T], kw_only=True):
    """A part of a list, the newest first."""

    object: Literal["list"] = "list"
    data: Annotated[list[T], says("files, or batches")]
    first_id: Annotated[str | None, says("the first of them")] = None
    last_id: Annotated[str | None, says("the last of them: the next `after`")] = None
    has_more: Annotated[bool, says("whether others follow")] = False


class DeletedFile(Struct, kw_only=True):
    """A file that was removed."""

    id: str
    object: Literal["file"] = "file"
    deleted: Annotated[bool, says("always true")] = True


class RowError(Struct, kw_only=True):
    """Error in a row of a batch's input."""

    code: Annotated[str, says("the kind of error")]
    message: Annotated[str, says("the error in a sentence")]
    line: Annotated[int | None, says("the line, from 1")] = None
    param: Annotated[str | None, says("the field")] = None


class RowErrors(Struct, kw_only=True):
    """Errors in a batch's input."""

    object: Literal["list"] = "list"
    data: Annotated[list[RowError], says("the first errors")]


class RequestCounts(Struct, kw_only=True):
    """Numbers of a batch's rows: all, and those that have ended."""

    total: Annotated[int, says("how many rows there are")] = 0
    completed: Annotated[int, says("how many have a response")] = 0
    failed: Annotated[int, says("how many have an error")] = 0


class Batch(Struct, kw_only=True):
    """A batch of requests, which runs while nobody else asks its models."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: Annotated[str, says("the route of all rows")]
    errors: Annotated[RowErrors | None, says("what is wrong with the input")] = None
    input_file_id: Annotated[str, says("the file with the rows")]
    completion_window: Annotated[str, says("how long it may take: `24h`")]
    status: Annotated[BatchStatus, says("how far it is")] = "validating"
    output_file_id: Annotated[str | None, says("the file with the responses, at the end")] = None
    error_file_id: Annotated[str | None, says("the file with the errors, at the end")] = None
    created_at: int
    in_progress_at: Annotated[int | None, says("when its rows began")] = None
    expires_at: Annotated[int, says("when it is given up")]
    finalizing_at: Annotated[int | None, says("when its last row ended")] = None
    completed_at: Annotated[int | None, says("when it was completed")] = None
    failed_at: Annotated[int | None, says("when its input was refused")] = None
    expired_at: Annotated[int | None, says("when it was given up")] = None
    cancelling_at: Annotated[int | None, says("when it was to be canceled")] = None
    cancelled_at: Annotated[int | None, says("when it was canceled")] = None
    request_counts: Annotated[RequestCounts, says("how many rows have ended")] = msgspec.field(
        default_factory=RequestCounts
    )
    metadata: dict[str, str] | None = None

    def enter(self, status: BatchStatus) -> None:
        """Take on a status, and note when."""
        self.status = status
        setattr(self, f"{status}_at", int(time.time()))
