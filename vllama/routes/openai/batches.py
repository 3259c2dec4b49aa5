"""OpenAI's `/v1/files` and `/v1/batches`, as its clients use them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Struct

from vllama.accounts.keys.key import Scope
from vllama.accounts.keys.ring import check_scopes
from vllama.base import executors, private
from vllama.base.errors import BadRequest, Forbidden
from vllama.base.meaning import BINARY, Schema, make_integer, says
from vllama.dialects.openai.batch_types import (
    Batch,
    BatchList,
    DeletedFile,
    FileList,
    FileObject,
)
from vllama.dialects.openai.multipart import FormReader, Part
from vllama.dialects.openai.read import parse_openai
from vllama.net.http.request import Request
from vllama.routes.batches.rows import ENDPOINTS
from vllama.routes.batches.store import KEPT_S, NotThere, StoredBatch, check_size, make_id
from vllama.routes.route import Parameter, RouteKind, openai_route

if TYPE_CHECKING:
    from vllama.routes.batches.runner import Batches
    from vllama.routes.context import Gateway

FILES, CONTENT = "/v1/files/", "/content"
BATCHES, CANCEL = "/v1/batches/", "/cancel"
PURPOSE = "batch"
MOST_FILES = 10_000
MOST_BATCHES, USUAL_BATCHES = 100, 20
WINDOW, WINDOW_S = "24h", 86400
LEAST_KEPT_S = 3600
MOST_DIGITS = 12
MOST_PAIRS, MOST_NAME, MOST_VALUE = 16, 64, 512
OCTETS = "application/octet-stream"


async def upload(gateway: Gateway, request: Request) -> None:
    """Keep a file with the rows of a batch: JSON, one request a line."""
    store, owner = _open(gateway, request).store, _owner(gateway, request)
    reader = FormReader(request.header(b"content-type"), keeps_files=False)
    announced = request.header(b"content-length")
    store.check_room(owner, int(announced or 0))
    new = store.begin_file()
    size = 0
    try:
        file = await executors.storage.run(private.create, new)
        try:
            async for piece in request.pieces():
                reader.feed(piece)
                data = reader.take_file()
                size += len(data)
                check_size(size)
                await executors.storage.run(file.write, data)
        finally:
            await executors.storage.run(file.close)
        parts = reader.parts()
        fields = {part.name: part for part in parts}
        if "file" not in fields or fields["file"].filename is None:
            raise BadRequest("Missing required parameter: 'file'.")
        if sum(part.name == "file" for part in parts) > 1:
            raise BadRequest("Invalid value for 'file': expected one file.")
        kept_s = _read_kept_s("expires_after", _read_expiry(fields))
        purpose = fields["purpose"].text if "purpose" in fields else ""
        if purpose != PURPOSE:
            raise BadRequest(
                f"Invalid value for 'purpose': {purpose[:80]!r}; only 'batch' is supported."
            )
        name = fields["file"].filename
        store.check_room(owner, size)
        shown = await executors.storage.run(
            lambda: store.keep_file(new, name, purpose, owner, kept_s=kept_s)
        )
    finally:
        await executors.storage.run(lambda: new.unlink(missing_ok=True))
    request.json(200, shown)


async def list_files(gateway: Gateway, request: Request) -> None:
    """List the files of the key that asks."""
    purpose = request.read_query().get("purpose", "")
    found = _get(gateway).store.list_files(_owner(gateway, request), purpose)
    request.json(200, FileList(**_cut(request, found, MOST_FILES, MOST_FILES)))


async def get_file(gateway: Gateway, request: Request) -> None:
    """Return what is known of a file."""
    identity, owner = request.path.removeprefix(FILES), _owner(gateway, request)
    request.json(200, _get(gateway).store.find_file(identity, owner))


async def get_content(gateway: Gateway, request: Request) -> None:
    """Return the content of a file."""
    identity, store = request.path.removeprefix(FILES).removesuffix(CONTENT), _get(gateway).store
    shown = store.find_file(identity, _owner(gateway, request))
    file = await executors.storage.run(Path.open, store.content(shown.id), "rb")
    try:
        request.start(200, OCTETS.encode(), shown.bytes)
        while data := await executors.storage.run(file.read, 1 << 18):
            request.write(data)
            await request.wait_until_drained()
        request.end()
    finally:
        await executors.storage.run(file.close)


async def delete_file(gateway: Gateway, request: Request) -> None:
    """Remove a file."""
    store, identity = _open(gateway, request).store, request.path.removeprefix(FILES)
    await executors.storage.run(store.delete_file, identity, _owner(gateway, request))
    request.json(200, DeletedFile(id=identity))


async def create(gateway: Gateway, request: Request) -> None:
    """Run the rows of a file while nobody else asks their model.

    A request from anybody else stops the rows of that model at once; they go on a second after it
    has ended. `completion_window` is `24h`.
    """
    batches, owner = _open(gateway, request), _owner(gateway, request)
    given = parse_openai(await request.body())
    endpoint, window = given.get("endpoint"), given.get("completion_window", WINDOW)
    if endpoint not in ENDPOINTS:
        raise BadRequest(f"Invalid value for 'endpoint': use one of {', '.join(ENDPOINTS)}.")
    if window != WINDOW:
        raise BadRequest("Invalid value for 'completion_window': it must be '24h'.")
    metadata = given.get("metadata")
    if metadata is not None:
        _check_metadata(metadata)
    kept_s = _read_kept_s("output_expires_after", given.get("output_expires_after"))
    file = batches.store.find_file(str(given.get("input_file_id") or ""), owner)
    if file.purpose != PURPOSE:
        raise BadRequest(f"Invalid value for 'input_file_id': it is no file for a {PURPOSE}.")
    now_s, key = int(time.time()), gateway.running.of(request).access
    shown = Batch(
        id=make_id("batch_"),
        endpoint=str(endpoint),
        input_file_id=file.id,
        completion_window=WINDOW,
        created_at=now_s,
        expires_at=now_s + WINDOW_S,
        metadata=metadata,
    )
    stored = StoredBatch(owner, key.name if key is not None else "", shown, kept_s)
    await executors.storage.run(batches.store.save_batch, stored)
    answer = msgspec.json.encode(shown)  # as it is before it runs
    batches.start(stored)
    request.respond(200, answer)


def _check_metadata(metadata: object) -> None:
    """Raise BadRequest unless it is what OpenAI's API allows."""
    if not isinstance(metadata, dict) or len(metadata) > MOST_PAIRS:
        raise BadRequest(
            f"Invalid value for 'metadata': expected an object of at most {MOST_PAIRS} pairs."
        )
    for name, value in metadata.items():
        if not isinstance(value, str) or len(name) > MOST_NAME or len(value) > MOST_VALUE:
            raise BadRequest(
                f"Invalid value for 'metadata': expected names of at most {MOST_NAME} characters, "
                f"and texts of at most {MOST_VALUE}."
            )


def _read_expiry(fields: Mapping[str, Part]) -> dict[str, object] | None:
    """Return `expires_after` of a form, whose parts are named as `expires_after[seconds]`."""
    parts = {"anchor": "expires_after[anchor]", "seconds": "expires_after[seconds]"}
    found = {name: fields[part].text for name, part in parts.items() if part in fields}
    seconds = found.get("seconds", "")
    is_number = seconds.isdecimal() and len(seconds) <= MOST_DIGITS
    return {**found, "seconds": int(seconds) if is_number else None} if found else None


def _read_kept_s(name: str, given: object) -> int:
    """Return how many seconds a file is kept, the longest time if nothing is said."""
    if given is None:
        return KEPT_S
    seconds = given.get("seconds") if isinstance(given, dict) else None
    if not isinstance(seconds, int) or not LEAST_KEPT_S <= seconds <= KEPT_S:
        raise BadRequest(
            f"Invalid value for '{name}': 'seconds' must be from {LEAST_KEPT_S} to {KEPT_S}."
        )
    return seconds


async def list_batches(gateway: Gateway, request: Request) -> None:
    """List the batches of the key that asks."""
    owner = _owner(gateway, request)
    mine = [each.shown for each in _get(gateway).store.list_batches() if each.owner == owner]
    request.json(200, BatchList(**_cut(request, mine, MOST_BATCHES, USUAL_BATCHES)))


async def get_batch(gateway: Gateway, request: Request) -> None:
    """Return how far a batch is."""
    identity, owner = request.path.removeprefix(BATCHES), _owner(gateway, request)
    request.json(200, _get(gateway).store.find_batch(identity, owner).shown)


async def cancel(gateway: Gateway, request: Request) -> None:
    """Stop a batch; what has ended stays."""
    batches, owner = _open(gateway, request), _owner(gateway, request)
    identity = request.path.removeprefix(BATCHES).removesuffix(CANCEL)
    request.json(200, (await batches.cancel(identity, owner)).shown)


def _cut(
    request: Request, items: Sequence[FileObject | Batch], most: int, usual: int
) -> dict[str, Any]:
    """Return the fields of a list with the items that a query asks for, `usual` without a limit.

    Raises BadRequest if its limit is not from 1 to `most`, NotThere if nothing has the id `after`.
    """
    query = request.read_query()
    text, after = query.get("limit", str(usual)), query.get("after", "")
    if not text.isdecimal() or len(text) > MOST_DIGITS or not 1 <= int(text) <= most:
        raise BadRequest(f"Invalid value for 'limit': it must be from 1 to {most}.")
    ids = [each.id for each in items]
    if after and after not in ids:
        raise NotThere(f"nothing in the list has the id {after[:80]}")
    begin = ids.index(after) + 1 if after else 0
    end = begin + int(text)
    chosen = ids[begin:end]
    return {
        "data": items[begin:end],
        "first_id": chosen[0] if chosen else None,
        "last_id": chosen[-1] if chosen else None,
        "has_more": end < len(ids),
    }


def _get(gateway: Gateway) -> Batches:
    """Return the batches. Raises Busy while another server has them."""
    gateway.batches.store.check_open()
    return gateway.batches


def _open(gateway: Gateway, request: Request) -> Batches:
    """Return the batches for a change. Raises Forbidden if it is not allowed."""
    if gateway.guards.read_only:
        raise Forbidden(
            f"cannot serve {request.method} {request.path[:80]}: this server is read-only",
            hint="start it without --read-only",
        )
    check_scopes(gateway.running.of(request).access, (Scope.INFER,))
    return _get(gateway)


def _owner(gateway: Gateway, request: Request) -> str:
    """Return whose files and batches a request may see: those of its key."""
    key = gateway.running.of(request).access
    return key.owner if key is not None else ""


_FILE = (Parameter("id", "the file's id, such as `file-1a2b`"),)
_BATCH = (Parameter("id", "the batch's id, such as `batch_1a2b`"),)


def _page(most: int) -> tuple[Parameter, ...]:
    return (
        Parameter("limit", "how many are listed", make_integer(1, most)),
        Parameter("after", "the id after which the list begins"),
    )


_api = partial(openai_route, kind=RouteKind.OWN)


class FileForm(Struct):
    """The rows of a batch."""

    file: Annotated[str, says("the rows: JSON, one request a line", **BINARY)]
    purpose: Annotated[str, says("the use of the file", const=PURPOSE)]


class Expiry(Struct):
    """The life of a file."""

    seconds: Annotated[int, says("30 days at most", minimum=LEAST_KEPT_S, maximum=KEPT_S)]


_PAIRS: Schema = {"maxProperties": MOST_PAIRS, "propertyNames": {"maxLength": MOST_NAME}}


class BatchBody(Struct):
    """A new batch."""

    input_file_id: Annotated[str, says("the file with the rows", minLength=1)]
    endpoint: Annotated[str, says("the route of all rows", enum=list(ENDPOINTS))]
    completion_window: Annotated[str, says("how long it may take", const=WINDOW)]
    metadata: Annotated[
        dict[str, Annotated[str, says(maxLength=MOST_VALUE)]] | None,
        says("pairs of texts", **_PAIRS),
    ] = None
    output_expires_after: Annotated[
        Expiry | None, says("how long the files with the responses are kept")
    ] = None


ROUTES = (
    _api("POST /v1/files", upload, body=FileForm, form=True, answer=FileObject, errors=(413,)),
    _api(
        "GET /v1/files",
        list_files,
        answer=FileList,
        parameters=(Parameter("purpose", "only files for this"), *_page(MOST_FILES)),
        errors=(404,),
    ),
    _api(f"GET {FILES}{{id}}", get_file, answer=FileObject, parameters=_FILE),
    _api(f"GET {FILES}{{id}}{CONTENT}", get_content, parameters=_FILE,
         media={OCTETS: BINARY}),
    _api(f"DELETE {FILES}{{id}}", delete_file, answer=DeletedFile, parameters=_FILE),
    _api("POST /v1/batches", create, body=BatchBody, answer=Batch, errors=(404,)),
    _api("GET /v1/batches", list_batches, answer=BatchList, parameters=_page(MOST_BATCHES),
         errors=(404,)),
    _api(f"GET {BATCHES}{{id}}", get_batch, answer=Batch, parameters=_BATCH),
    _api(f"POST {BATCHES}{{id}}{CANCEL}", cancel, answer=Batch, parameters=_BATCH),
)  # fmt: skip
