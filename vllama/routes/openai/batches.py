"""OpenAI's `/v1/files` and `/v1/batches`, as its clients use them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from vllama.accounts.keys.key import Scope
from vllama.accounts.keys.ring import check_scopes
from vllama.base import executors, private
from vllama.base.errors import BadRequest, Forbidden, NotFound
from vllama.base.meaning import BINARY, make_integer
from vllama.chat.bodies import decode_struct, encode_json
from vllama.chat.engine.request_fields import check_code
from vllama.dialects.openai.batch_types import (
    PURPOSE,
    WINDOW,
    Batch,
    BatchBody,
    DeletedFile,
    FileForm,
    FileObject,
    Page,
)
from vllama.dialects.openai.multipart import FormPart, FormReader
from vllama.net.http.content_encoding import MAX_BODY_BYTES
from vllama.net.http.request import Request
from vllama.routes.batches.store import MOST_FILES, StoredBatch, make_id
from vllama.routes.route import Parameter, RouteKind, openai_route

if TYPE_CHECKING:
    from vllama.routes.batches.runner import Batches
    from vllama.routes.context import Gateway

FILES, CONTENT = "/v1/files/", "/content"
BATCHES, CANCEL = "/v1/batches/", "/cancel"
MOST_BATCHES, USUAL_BATCHES = 100, 20
WINDOW_S = 86400
MOST_DIGITS = 12
OCTETS = "application/octet-stream"
Shown = TypeVar("Shown", FileObject, Batch)


async def upload(gateway: Gateway, request: Request) -> None:
    """Upload the input file of a batch: one JSON request per line."""
    store, owner = _open(gateway, request).store, gateway.running.of(request).owner
    reader = FormReader(request.header(b"content-type"), keeps_files=False)
    size, reserved = 0, int(request.header(b"content-length") or 0)
    new = store.begin_file()
    try:
        await executors.storage.run(store.reserve, new, owner, reserved)
        file = await executors.storage.run(private.create, new)
        try:
            packed = b"content-encoding" in request.headers  # unpacked in memory
            async for piece in request.pieces(MAX_BODY_BYTES if packed else None):
                reader.feed(piece)
                data = reader.take_file()
                size += len(data)
                if size > reserved:  # of a body in chunks
                    await executors.storage.run(store.reserve, new, owner, size)
                await executors.storage.run(file.write, data)
        finally:
            await executors.storage.run(file.close)
        form = _read_form(reader.parts())
        kept_s = form.expires_after.seconds
        shown = await executors.storage.run(store.keep_file, new, form.file, owner, kept_s)
    finally:
        await executors.storage.run(store.release, new)
    request.json(200, shown)


async def list_files(gateway: Gateway, request: Request) -> None:
    """List the files of the API key."""
    purpose = request.read_query().get("purpose", "")
    found = _get(gateway).store.list_files(gateway.running.of(request).owner, purpose)
    request.json(200, _cut(request, found, MOST_FILES, MOST_FILES))


async def get_file(gateway: Gateway, request: Request) -> None:
    """Describe a file."""
    identity, owner = request.path.removeprefix(FILES), gateway.running.of(request).owner
    request.json(200, _get(gateway).store.find_file(identity, owner))


async def get_content(gateway: Gateway, request: Request) -> None:
    """Return the content of a file."""
    identity, store = request.path.removeprefix(FILES).removesuffix(CONTENT), _get(gateway).store
    shown = store.find_file(identity, gateway.running.of(request).owner)
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
    """Delete a file."""
    store, identity = _open(gateway, request).store, request.path.removeprefix(FILES)
    await executors.storage.run(store.delete_file, identity, gateway.running.of(request).owner)
    request.json(200, DeletedFile(id=identity))


async def create(gateway: Gateway, request: Request) -> None:
    """Run a batch file when the server is idle.

    Any other request to a model pauses its rows at once; they continue a second after it
    has finished. `completion_window` is `24h`.
    """
    batches, owner = _open(gateway, request), gateway.running.of(request).owner
    asked = decode_struct(await request.body(), BatchBody, check_code)
    file = batches.store.find_file(asked.input_file_id, owner)
    if file.purpose != PURPOSE:
        raise BadRequest(f"Invalid value for 'input_file_id': the file's purpose is not {PURPOSE}.")
    now_s = int(time.time())
    shown = Batch(
        id=make_id("batch_"),
        endpoint=asked.endpoint,
        input_file_id=file.id,
        completion_window=WINDOW,
        created_at=now_s,
        expires_at=now_s + WINDOW_S,
        metadata=asked.metadata,
    )
    key, kept_s = gateway.running.of(request).key, asked.output_expires_after.seconds
    stored = StoredBatch(owner, key, shown, kept_s)
    await executors.storage.run(batches.store.add_batch, stored)
    answer = msgspec.json.encode(shown)  # as it is before it runs
    batches.start(stored)
    request.respond(200, answer)


def _read_form(parts: Sequence[FormPart]) -> FileForm:
    """Return the fields of a form, with the file's name; clients write `expires_after[seconds]`."""
    texts = {part.name: part.text for part in parts if part.filename is None}
    files = [part.filename for part in parts if part.name == "file"]
    if len(files) != 1 or files[0] is None:
        raise BadRequest("Invalid value for 'file': expected one file.")
    body: dict[str, object] = {"file": files[0], "purpose": texts.get("purpose")}
    if (seconds := texts.get("expires_after[seconds]")) is not None:
        is_number = seconds.isdecimal() and len(seconds) <= MOST_DIGITS
        body["expires_after"] = {"seconds": int(seconds) if is_number else seconds}
    return decode_struct(encode_json(body), FileForm, check_code)


async def list_batches(gateway: Gateway, request: Request) -> None:
    """List the batches of the API key."""
    owner = gateway.running.of(request).owner
    mine = [each.shown for each in _get(gateway).store.list_batches() if each.owner == owner]
    request.json(200, _cut(request, mine, MOST_BATCHES, USUAL_BATCHES))


async def get_batch(gateway: Gateway, request: Request) -> None:
    """Describe a batch and its progress."""
    identity, owner = request.path.removeprefix(BATCHES), gateway.running.of(request).owner
    request.json(200, _get(gateway).store.find_batch(identity, owner).shown)


async def cancel(gateway: Gateway, request: Request) -> None:
    """Cancel a batch; finished rows are kept."""
    batches, owner = _open(gateway, request), gateway.running.of(request).owner
    identity = request.path.removeprefix(BATCHES).removesuffix(CANCEL)
    request.json(200, await batches.cancel(identity, owner))


def _cut(request: Request, items: Sequence[Shown], most: int, usual: int) -> Page[Shown]:
    """Return the part of a list that a query asks for, `usual` items without a limit.

    Raises BadRequest if its limit is not from 1 to `most`, NotFound if nothing has the id `after`.
    """
    query = request.read_query()
    text, after = query.get("limit", str(usual)), query.get("after", "")
    if not text.isdecimal() or len(text) > MOST_DIGITS or not 1 <= int(text) <= most:
        raise BadRequest(f"Invalid value for 'limit': it must be from 1 to {most}.")
    ids = [each.id for each in items]
    if after and after not in ids:
        raise NotFound(f"the list has no item with the ID {after[:80]}")
    begin = ids.index(after) + 1 if after else 0
    data = list(items[begin : begin + int(text)])
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    has_more = begin + len(data) < len(items)
    return Page(data=data, first_id=first, last_id=last, has_more=has_more)


def _get(gateway: Gateway) -> Batches:
    """Return the batches. Raises Busy while another server has them."""
    gateway.batches.store.check_open()
    return gateway.batches


def _open(gateway: Gateway, request: Request) -> Batches:
    """Return the batches for a change. Raises Forbidden if it is not allowed."""
    if gateway.guards.read_only:
        raise Forbidden(
            f"cannot serve {request.method} {request.path[:80]}: this server is read-only",
            hint="restart it without --read-only",
        )
    check_scopes(gateway.running.of(request).access, (Scope.INFER,))
    return _get(gateway)


_FILE = (Parameter("id", "file ID, such as `file-1a2b`"),)
_BATCH = (Parameter("id", "batch ID, such as `batch_1a2b`"),)


def _page(most: int) -> tuple[Parameter, ...]:
    return (
        Parameter("limit", "number of items to return", make_integer(1, most)),
        Parameter("after", "ID of the last item of the previous page"),
    )


_api = partial(openai_route, kind=RouteKind.OWN)
ROUTES = (
    _api("POST /v1/files", upload, body=FileForm, form=True, answer=FileObject, errors=(413,)),
    _api(
        "GET /v1/files",
        list_files,
        shared=True,
        answer=Page[FileObject],
        parameters=(Parameter("purpose", "only files with this purpose"), *_page(MOST_FILES)),
        errors=(404,),
    ),
    _api(f"GET {FILES}{{id}}", get_file, answer=FileObject, parameters=_FILE),
    _api(f"GET {FILES}{{id}}{CONTENT}", get_content, parameters=_FILE,
         media={OCTETS: BINARY}),
    _api(f"DELETE {FILES}{{id}}", delete_file, answer=DeletedFile, parameters=_FILE),
    _api("POST /v1/batches", create, body=BatchBody, answer=Batch, errors=(404,)),
    _api("GET /v1/batches", list_batches, shared=True, answer=Page[Batch],
         parameters=_page(MOST_BATCHES), errors=(404,)),
    _api(f"GET {BATCHES}{{id}}", get_batch, answer=Batch, parameters=_BATCH),
    _api(f"POST {BATCHES}{{id}}{CANCEL}", cancel, answer=Batch, parameters=_BATCH),
)  # fmt: skip
