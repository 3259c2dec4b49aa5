"""Making models over the Ollama API: create, copy, blobs.

What is wrong with a request is a status; only what happens after the first line of the stream (a
base that has to be pulled) is told inside it.

See docs/reference/ollama-api.md#model-management, #create.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllama.chat.go_json import Fields
from vllama.dialects.go_types import decode_request
from vllama.dialects.ollama.options import resolve_options
from vllama.dialects.ollama.request_types import COPY, CREATE
from vllama.errors import BadRequest, InvalidModelRef, ModelNotFound, VllamaError
from vllama.http.request import BodyTooLarge, Request
from vllama.models.create import (
    Recipe,
    check_copy_name,
    check_new_name,
    make_bundle,
    make_no_source_error,
)
from vllama.models.create import copy as copy_model
from vllama.models.create import create as create_model
from vllama.models.modelfile import KNOWN, LISTS
from vllama.models.ref import CloudDisabled, Kind, ModelRef
from vllama.models.types import Bundle, PullEvent
from vllama.routes.ollama.convert import check_quant, convert_weights
from vllama.routes.ollama.models import read_name, send_error, send_line, write_pull_line
from vllama.routes.ollama.pull_stream import stream_pull
from vllama.units import format_bytes_decimal

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

BLOBS = "/api/blobs/"
PIECE_BYTES = 1024 * 1024
UNUSED = ("draft_quantize", "info")
SUCCESS = "success"


class Lines:
    """The progress of one request: NDJSON, or with `stream` false only the end."""

    def __init__(self, request: Request, *, stream: bool) -> None:
        self._request = request
        self._stream = stream

    async def send(self, value: object) -> None:
        """Send a line, if lines are wanted."""
        if self._stream:
            await send_line(self._request, value)

    async def end(self, error: VllamaError | None = None) -> None:
        """End the answer. An error becomes a line, or is raised if nothing was sent yet."""
        if error is not None and not self._request.status:
            raise error
        if error is not None:
            await send_error(self._request, error)
        elif not self._stream:
            self._request.json(200, {"status": SUCCESS})
            return
        self._request.end()


async def create(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/create`: make a model from another one, from files, or from safetensors."""
    body = decode_request(await request.body(), CREATE)
    fields = Fields(body, "CreateRequest")
    source, files = fields.text("from"), fields.mapping("files", "map[string]string")
    adapters = fields.mapping("adapters", "map[string]string")
    drafts = fields.mapping("draft_files", "map[string]string")
    check_file_names((*files, *drafts))
    for digest in (*files.values(), *adapters.values(), *drafts.values()):
        find_blob(gateway, digest)
    name = check_new_name(read_name(body))
    if fields.text("remote_host"):
        raise CloudDisabled
    if not source and not files:
        given = fields.raw("files") is not None
        raise BadRequest("unknown type" if given else "neither 'from' or 'files' was specified")
    quantize = fields.text("quantize") or fields.text("quantization") or None
    settings = read_recipe_settings(fields)
    lines = Lines(request, stream=body.get("stream") is not False)
    try:
        if adapters or not (source or is_folder(files)):
            await lines.send({"status": "parsing GGUF"})
        extra = await asyncio.to_thread(find_extra_files, gateway, adapters, drafts)
        if source:
            base = await find_base(gateway, request, source, lines)
        elif is_folder(files):
            uploads = get_blobs(gateway, files)
            base = await convert_weights(gateway, request, name, uploads, quantize, lines.send)
        else:
            base = await asyncio.to_thread(find_uploads, gateway, files)
        made = await check_quant(gateway, request, base, quantize, lines.send)
        new = made is not base or is_folder(files)
        recipe = Recipe(name=name, base=made, new_base=new, **settings, **extra)
        told: list[str] = []
        await asyncio.to_thread(create_model, gateway.catalog.library, recipe, told.append)
        for status in told:
            await lines.send({"status": status})
    except VllamaError as error:
        await lines.end(error)
    else:
        await lines.end()
    finally:
        gateway.catalog.forget()


def check_file_names(names: Iterable[str]) -> None:
    """Refuse names that lead elsewhere. Raises BadRequest."""
    if any(name.startswith("/") or ".." in name.split("/") for name in names):
        raise BadRequest("file path must be relative")


def find_blob(gateway: Gateway, digest: object) -> Path:
    """Return where an upload lies, whether or not it is there. Raises BadRequest."""
    return gateway.catalog.library.local.blobs.path(digest if isinstance(digest, str) else "")


def read_recipe_settings(fields: Fields) -> dict[str, Any]:
    """Return what a body says beside name and files, as fields of `Recipe`. Raises BadRequest."""
    parameters, unknown = known_parameters(fields.mapping("parameters", "map[string]interface {}"))
    unused = [name for name in UNUSED if fields.raw(name)]
    notes = [f"leaving out {', '.join(unused)}: not used here"] if unused else []
    if unknown:
        notes.append(f"leaving out unknown parameters: {', '.join(unknown)}")
    messages = fields.items("messages", "[]api.Message")
    return {
        "parameters": parameters,
        "system": fields.text("system") or None,
        "template": fields.text("template") or None,
        "messages": tuple(read_message(fields, item) for item in messages if item is not None)
        or None,
        "license": read_license(fields),
        "renderer": fields.text("renderer") or None,
        "parser": fields.text("parser") or None,
        "requires": fields.text("requires") or None,
        "notes": tuple(notes),
    }


def find_extra_files(
    gateway: Gateway, adapters: Mapping[str, object], drafts: Mapping[str, object]
) -> dict[str, Any]:
    """Return the uploads beside the model, as fields of `Recipe`. Raises BadRequest. Blocking."""
    return {
        "adapters": tuple(path for _, path in get_blobs(gateway, adapters)),
        "draft": next((path for _, path in get_blobs(gateway, drafts)), None),
    }


def known_parameters(given: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
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


def read_message(fields: Fields, item: object) -> dict[str, object]:
    """Return a message's role, text and images. Raises BadRequest."""
    if not isinstance(item, dict):
        fields.refuse("messages", item, "api.Message")
    role = str(item.get("role") or "").lower()
    content, images = item.get("content") or "", item.get("images") or []
    return {"role": role, "content": content} | ({"images": images} if images else {})


def read_license(fields: Fields) -> str | None:
    """Return one text; a list has several."""
    value = fields.raw("license")
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts if text is not None):
        fields.refuse("license", value, "string")
    return "\n\n".join(str(text) for text in texts if text) or None


async def find_base(gateway: Gateway, request: Request, name: str, lines: Lines) -> Bundle:
    """Return the model to build on; pull it if it is not here."""
    try:
        return await gateway.catalog.bundle(name)
    except ModelNotFound:
        if ModelRef.parse(name).kind is Kind.PATH:
            raise

    async def tell(event: PullEvent) -> None:
        if event.status != SUCCESS:  # the end of the pull is not that of the whole
            await lines.send(write_pull_line(event))

    return await stream_pull(gateway, request, name, tell)


def is_folder(files: Mapping[str, object]) -> bool:
    """Tell whether the uploaded files are those of a safetensors model."""
    return any(name.lower().endswith(".safetensors") for name in files)


def find_uploads(gateway: Gateway, files: Mapping[str, object]) -> Bundle:
    """Return the model that uploaded files are. Raises BadRequest. Blocking."""
    return make_bundle(get_blobs(gateway, files))


def get_blobs(gateway: Gateway, files: Mapping[str, object]) -> list[tuple[str, Path]]:
    """Return where uploaded files lie, beside the names they had. Raises BadRequest."""
    blobs = gateway.catalog.library.local.blobs
    found = []
    for name, digest in files.items():
        if not blobs.has(str(digest)):
            raise BlobNotFound(f"blob {digest} not found", hint="upload it to /api/blobs first")
        found.append((name, find_blob(gateway, digest)))
    return found


async def copy(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/copy`: give a model a second name."""
    body = decode_request(await request.body(), COPY)
    source, destination = str(body.get("source", "")), str(body.get("destination", ""))
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
    await asyncio.to_thread(copy_model, gateway.catalog.library, bundle, name)
    gateway.catalog.forget()
    request.respond(200, b"", b"")


async def head_blob(gateway: Gateway, request: Request) -> None:
    """Serve `HEAD /api/blobs/sha256:…`: tell whether a blob is here."""
    blobs = gateway.catalog.library.local.blobs
    here = await asyncio.to_thread(blobs.has, request.path.removeprefix(BLOBS))
    if here:
        request.respond(200, b"", b"")
    else:
        request.respond(404, b"")


def check_upload(size_bytes: int, most_bytes: int | None) -> None:
    """Raise BodyTooLarge for a file that is larger than the settings allow."""
    if most_bytes is not None and size_bytes > most_bytes:
        raise BodyTooLarge(
            f"cannot store the file: it has more than {format_bytes_decimal(most_bytes)}",
            hint="start the server with a larger --max-blob-size",
        )


async def upload_blob(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/blobs/sha256:…`: store the body as it comes, verified."""
    blobs, digest = gateway.catalog.library.local.blobs, request.path.removeprefix(BLOBS)
    if await asyncio.to_thread(blobs.has, digest):
        request.respond(200, b"", b"")
        return
    most_bytes = gateway.guards.most_upload_bytes
    length = request.header(b"content-length")
    announced = int(length) if length.isdigit() else None
    check_upload(announced or 0, most_bytes)
    writer = await asyncio.to_thread(blobs.writer, digest, announced)
    try:
        kept, size_bytes = bytearray(), 0
        async for piece in request.pieces():
            size_bytes += len(piece)
            check_upload(size_bytes, most_bytes)
            kept += piece
            if len(kept) >= PIECE_BYTES:
                await asyncio.to_thread(writer.write, bytes(kept))
                kept.clear()
        await asyncio.to_thread(writer.write, bytes(kept))
        await asyncio.to_thread(writer.finish)
    finally:
        writer.discard()
    request.respond(201, b"", b"")


class BlobNotFound(BadRequest):
    """A file of a new model has not been uploaded."""

    status = 404
