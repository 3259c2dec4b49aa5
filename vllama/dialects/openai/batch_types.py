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
    """The lifetime of a file."""

    seconds: Annotated[
        int, Meta(ge=LEAST_KEPT_S, le=KEPT_S, description="lifetime; at most 30 days")
    ]


_LONGEST = msgspec.field(default_factory=lambda: Expiry(seconds=KEPT_S))


class FileForm(Body):
    """The input file of a batch."""

    file: Annotated[str, says("one JSON request per line", **BINARY)]
    purpose: Annotated[str, Meta(pattern=f"^{PURPOSE}$", description="purpose of the file")]
    expires_after: Annotated[Expiry, says("lifetime of the file")] = _LONGEST


class BatchBody(Body):
    """A new batch."""

    input_file_id: Annotated[str, says("ID of the input file", minLength=1)]
    endpoint: Annotated[
        str, Meta(pattern=f"^({'|'.join(ENDPOINTS)})$", description="route of every row")
    ]
    completion_window: Annotated[
        str, says("time limit for the batch", required=True), Meta(pattern=f"^{WINDOW}$")
    ] = WINDOW
    metadata: Annotated[Metadata | None, says("up to 16 key-value pairs")] = None
    output_expires_after: Annotated[Expiry, says("lifetime of the output files")] = _LONGEST


class FileObject(Struct, kw_only=True):
    """An uploaded file, or an output file of a batch."""

    id: str
    object: Literal["file"] = "file"
    bytes: Annotated[int, says("size in bytes")]
    created_at: int
    expires_at: Annotated[int, says("expiration time, in Unix seconds")]
    filename: Annotated[str, says("file name")]
    purpose: Annotated[str, says("purpose of the file: `batch` or `batch_output`")]
    status: Annotated[Literal["processed"], says("always `processed`")] = "processed"


class Page(Struct, Generic[T], kw_only=True):
    """One page of a list, newest first."""

    object: Literal["list"] = "list"
    data: Annotated[list[T], says("files or batches")]
    first_id: Annotated[str | None, says("ID of the first item")] = None
    last_id: Annotated[str | None, says("ID of the last item; the next `after`")] = None
    has_more: Annotated[bool, says("true if more items follow")] = False


class DeletedFile(Struct, kw_only=True):
    """A deleted file."""

    id: str
    object: Literal["file"] = "file"
    deleted: Annotated[bool, says("always true")] = True


class RowError(Struct, kw_only=True):
    """An error in a row of a batch's input."""

    code: Annotated[str, says("error code")]
    message: Annotated[str, says("error message")]
    line: Annotated[int | None, says("line number, from 1")] = None
    param: Annotated[str | None, says("name of the invalid field")] = None


class RowErrors(Struct, kw_only=True):
    """The errors in a batch's input."""

    object: Literal["list"] = "list"
    data: Annotated[list[RowError], says("the first errors")]


class RequestCounts(Struct, kw_only=True):
    """Row counts of a batch."""

    total: Annotated[int, says("total number of rows")] = 0
    completed: Annotated[int, says("number of rows with a response")] = 0
    failed: Annotated[int, says("number of rows with an error")] = 0


class Batch(Struct, kw_only=True):
    """A batch of requests, run when its models are idle."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: Annotated[str, says("route of every row")]
    errors: Annotated[RowErrors | None, says("errors in the input")] = None
    input_file_id: Annotated[str, says("ID of the input file")]
    completion_window: Annotated[str, says("time limit: `24h`")]
    status: Annotated[BatchStatus, says("status of the batch")] = "validating"
    output_file_id: Annotated[str | None, says("output file ID; null until completed")] = None
    error_file_id: Annotated[str | None, says("error file ID; null until completed")] = None
    created_at: int
    in_progress_at: Annotated[int | None, says("time when the first row started")] = None
    expires_at: Annotated[int, says("time when the batch expires")]
    finalizing_at: Annotated[int | None, says("time when the last row finished")] = None
    completed_at: Annotated[int | None, says("completion time")] = None
    failed_at: Annotated[int | None, says("time when the input was rejected")] = None
    expired_at: Annotated[int | None, says("time when the batch expired")] = None
    cancelling_at: Annotated[int | None, says("time when cancellation was requested")] = None
    cancelled_at: Annotated[int | None, says("cancellation time")] = None
    request_counts: Annotated[RequestCounts, says("row counts")] = msgspec.field(
        default_factory=RequestCounts
    )
    metadata: dict[str, str] | None = None

    def enter(self, status: BatchStatus) -> None:
        """Take on a status, and note when."""
        self.status = status
        setattr(self, f"{status}_at", int(time.time()))
