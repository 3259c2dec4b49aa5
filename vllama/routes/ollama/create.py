"""Making models over the Ollama API: create, copy, blobs.

What is wrong with a request is a status; only what happens after the first line of the stream (a
base that has to be pulled) is told inside it.

See docs/reference/ollama-api.md#model-management, #create.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllama.base import executors
from vllama.base.errors import BadRequest, InvalidModelRef, ModelNotFound, NotFound, VllamaError
from vllama.base.units import format_bytes_decimal
from vllama.dialects.ollama.answer_types import Progress, Success
from vllama.dialects.ollama.options import resolve_options
from vllama.dialects.ollama.read import decode_request
from vllama.dialects.ollama.request_types import SHA256, CopyBody, CreateBody
from vllama.models.convert.adapter import bring_adapters
from vllama.models.create import (
    NewModel,
    check_copy_name,
    check_new_name,
    make_bundle,
    make_no_source_error,
)
from vllama.models.create import copy as copy_model
from vllama.models.create import create as create_model
from vllama.models.modelfile import KNOWN, LISTS
from vllama.models.names.ref import CloudDisabled, Kind, ModelRef
from vllama.models.types import Bundle, PullEvent
from vllama.net.http.content_encoding import BodyTooLarge
from vllama.net.http.request import Request
from vllama.routes.ollama.progress import (
    PROGRESS,
    Lines,
    check_quant,
    convert_weights,
    make_progress,
    stream_pull,
)
from vllama.routes.route import Parameter, RouteKind, ollama_route

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

BLOBS = "/api/blobs/"
PIECE_BYTES = 1024 * 1024
UNUSED = ("info",)
SUCCESS = "success"


async def create(gateway: Gateway, request: Request) -> None:
    """Create a model from another model, or from uploaded files."""
    body = decode_request(await request.body(), CreateBody)
    source, files = body.source, body.files or {}
    adapters, drafts = body.adapters, body.draft_files
    if any(path.startswith("/") or ".." in path.split("/") for path in (*files, *drafts)):
        raise BadRequest("file path must be relative")
    for digest in (*files.values(), *adapters.values(), *drafts.values()):
        find_blob(gateway, digest)
    name = check_new_name(body.model or body.name)
    if body.remote_host:
        raise CloudDisabled
    if not source and not files:
        raise BadRequest(
            "unknown type" if body.files is not None else "neither 'from' or 'files' was specified"
        )
    quantize = body.quantize or body.quantization or None
    settings = read_recipe_settings(body)
    lines = Lines(request, stream=body.stream)
    try:
        if adapters or not (source or is_folder(files)):
            await lines.send(Progress("parsing GGUF"))
        beside = dict(await executors.disk.run(get_blobs, gateway, adapters))
        draft = await executors.disk.run(get_blobs, gateway, drafts)
        if draft and (wanted := body.draft_quantize):
            large = await executors.storage.run(make_bundle, draft)
            draft = [("", (await check_quant(gateway, request, large, wanted, lines.send)).path)]
        if source:
            base = await find_base(gateway, request, source, lines)
        elif is_folder(files):
            uploads = get_blobs(gateway, files)
            base = await convert_weights(gateway, request, name, uploads, quantize, lines.send)
        else:
            base = await executors.storage.run(lambda: make_bundle(get_blobs(gateway, files)))
        made = await check_quant(gateway, request, base, quantize, lines.send)
        new = made is not base or is_folder(files)
        given = (gateway.catalog.library, made, ", ".join(beside), beside)
        recipe = NewModel(
            name=name,
            base=made,
            new_base=new,
            adapters=await executors.storage.run(bring_adapters, *given) if beside else (),
            draft=next((path for _, path in draft), None),
            **settings,
        )
        told: list[str] = []
        before = await gateway.describe_model(name)
        await executors.storage.run(create_model, gateway.catalog.library, recipe, told.append)
        await gateway.record_act("models create", name, before, await gateway.describe_model(name))
        for status in told:
            await lines.send(Progress(status))
    except VllamaError as error:
        await lines.end(error)
    else:
        await lines.end()
    finally:
        gateway.catalog.forget()


def find_blob(gateway: Gateway, digest: object) -> Path:
    """Return where an upload lies, whether or not it is there. Raises BadRequest."""
    return gateway.catalog.library.local.blobs.path(digest if isinstance(digest, str) else "")


def read_recipe_settings(body: CreateBody) -> dict[str, Any]:
    """Return a body's settings as fields of `NewModel`. Raises BadRequest."""
    parameters, unknown = split_parameters(body.parameters)
    unused = [name for name in UNUSED if getattr(body, name)]
    notes = [f"ignoring {', '.join(unused)}: not supported"] if unused else []
    if unknown:
        notes.append(f"ignoring unknown parameters: {', '.join(unknown)}")
    messages = tuple(
        {"role": one.role.lower(), "content": one.content}
        | ({"images": one.images} if one.images else {})
        for one in body.messages
        if one is not None
    )
    texts = ("system", "template", "renderer", "parser", "requires")
    return {
        "parameters": parameters,
        "messages": messages,
        "license": join_license(body.license),
        "notes": tuple(notes),
        **{name: getattr(body, name) or None for name in texts},
    }


def split_parameters(given: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """Split parameters into those that have an effect, and the names of the others.

    Raises BadRequest for a value of the wrong type.
    """
    known = {name: value for name, value in given.items() if name in KNOWN and value is not None}
    resolve_options(known, {})
    for name in LISTS & known.keys():
        value = known[name]
        known[name] = [value] if isinstance(value, str) else value
    unknown = [name for name, value in given.items() if name not in KNOWN and value is not None]
    return known, sorted(unknown)


def join_license(value: str | list[str | None] | None) -> str | None:
    """Return one text; a list has several."""
    texts = value if isinstance(value, list) else [value]
    return "\n\n".join(text for text in texts if text) or None


async def find_base(gateway: Gateway, request: Request, name: str, lines: Lines) -> Bundle:
    """Return the model to build on; pull it if it is not here."""
    try:
        return await gateway.catalog.bundle(name)
    except ModelNotFound:
        if ModelRef.parse(name).kind is Kind.PATH:
            raise

    async def tell(event: PullEvent) -> None:
        if event.status != SUCCESS:  # the end of the pull is not that of the whole
            await lines.send(make_progress(event))

    return await stream_pull(gateway, request, name, tell)


def is_folder(files: Mapping[str, object]) -> bool:
    """Tell whether the uploaded files are those of a safetensors model."""
    return any(name.lower().endswith(".safetensors") for name in files)


def get_blobs(gateway: Gateway, files: Mapping[str, object]) -> list[tuple[str, Path]]:
    """Return where uploaded files lie, beside the names they had. Raises BadRequest."""
    blobs = gateway.catalog.library.local.blobs
    found = []
    for name, digest in files.items():
        if not blobs.has(str(digest)):
            raise NotFound(f"blob {digest} not found", hint="upload it to /api/blobs first")
        found.append((name, find_blob(gateway, digest)))
    return found


async def copy(gateway: Gateway, request: Request) -> None:
    """Copy a model to a second name."""
    body = decode_request(await request.body(), CopyBody)
    source, destination = body.source, body.destination
    try:
        ModelRef.parse(source)
    except InvalidModelRef:
        raise BadRequest(f'source "{source}" is invalid') from None
    name = check_copy_name(destination)
    try:
        bundle = await gateway.catalog.bundle(source)
    except InvalidModelRef:
        raise BadRequest(f'source "{source}" is invalid') from None
    except ModelNotFound as error:
        raise make_no_source_error(source, error) from None
    before = await gateway.describe_model(name)
    await executors.storage.run(copy_model, gateway.catalog.library, bundle, name)
    gateway.catalog.forget()
    after = {"source": bundle.name} | await gateway.describe_model(name)
    await gateway.record_act("models copy", name, before, after)
    request.respond(200, b"", b"")


async def head_blob(gateway: Gateway, request: Request) -> None:
    """Check whether a file has been uploaded."""
    blobs = gateway.catalog.library.local.blobs
    here = await executors.disk.run(blobs.has, request.path.removeprefix(BLOBS))
    if here:
        request.respond(200, b"", b"")
    else:
        request.respond(404, b"")


def check_upload(size_bytes: int, most_bytes: int | None) -> None:
    """Raise BodyTooLarge for a file that is larger than the settings allow."""
    if most_bytes is not None and size_bytes > most_bytes:
        raise BodyTooLarge(
            f"cannot store the file: it is larger than {format_bytes_decimal(most_bytes)}",
            hint="restart the server with a larger --max-blob-size",
        )


async def upload_blob(gateway: Gateway, request: Request) -> None:
    """Upload a model file; its digest is verified."""
    blobs, digest = gateway.catalog.library.local.blobs, request.path.removeprefix(BLOBS)
    if await executors.disk.run(blobs.has, digest):
        request.respond(200, b"", b"")
        return
    most_bytes = gateway.guards.most_upload_bytes
    length = request.header(b"content-length")
    announced = int(length) if length.isdigit() else None
    check_upload(announced or 0, most_bytes)
    writer = await executors.storage.run(blobs.writer, digest, announced)
    try:
        kept, size_bytes = bytearray(), 0
        async for piece in request.pieces():
            size_bytes += len(piece)
            check_upload(size_bytes, most_bytes)
            kept += piece
            if len(kept) >= PIECE_BYTES:
                await executors.storage.run(writer.write, bytes(kept))
                kept.clear()
        await executors.storage.run(writer.write, bytes(kept))
        await executors.storage.run(writer.finish)
    finally:
        writer.discard()
    request.respond(201, b"", b"")


_writes = partial(ollama_route, kind=RouteKind.WRITES)
DIGEST = Parameter(
    "digest",
    "digest of the file: `sha256:` and 64 hexadecimal digits",
    {"type": "string", "pattern": SHA256},
    example=f"sha256:{hashlib.sha256().hexdigest()}",
)
_blob: dict[str, Any] = {"parameters": (DIGEST,), "statuses": (200, 201)}
ROUTES = (
    _writes(
        "POST /api/create",
        create,
        body=CreateBody,
        answer=Success,
        stream=PROGRESS,
        errors=(404, 413, 502, 507),
    ),
    _writes("POST /api/copy", copy, body=CopyBody, errors=(404,)),
    _writes("HEAD /api/blobs/{digest}", head_blob, **_blob, errors=(413, 507)),
    _writes("POST /api/blobs/{digest}", upload_blob, **_blob, upload=True, errors=(413, 507)),
)
