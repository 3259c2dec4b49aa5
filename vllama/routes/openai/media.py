"""Speech and images: `/v1/audio/…`, `/v1/images/…`.

None of the engines that vllama starts makes speech or images; a server behind `--upstream` may.
Requests and answers are passed on but for the model's name. An engine that turns speech into text
gets the form as it came, too; one whose model hears in a chat is asked there at temperature 0, as
Ollama does.

See docs/reference/ollama-api.md#images-and-audio.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Struct

from vllama.base.errors import BadRequest
from vllama.base.meaning import BINARY, TEXT, says
from vllama.chat.engine.request_fields import pass_fields
from vllama.chat.engine.traits import Traits
from vllama.chat.request import Call
from vllama.chat.writer import EVENT_STREAM
from vllama.dialects.ollama.request_types import Model
from vllama.dialects.openai.answer_types import Transcription
from vllama.dialects.openai.multipart import FormPart, FormReader, pass_form
from vllama.dialects.openai.read import parse_openai, read_chat
from vllama.models.lookup import Entry
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import JSON, Request
from vllama.net.upstream.pool import Upstream
from vllama.routes.inference.demand import size_context
from vllama.routes.inference.lease import with_lease
from vllama.routes.inference.offers import (
    NotSupported,
    fetch_or_refuse,
    list_traits,
    make_need_of_entry,
)
from vllama.routes.inference.relay import name_ignored
from vllama.routes.openai.common import ask_whole, find_v1_model
from vllama.routes.prompts.prepare import check_request
from vllama.routes.route import RouteKind, openai_route
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


_SOUNDS: Mapping[str, bytes] = {
    "mp3": b"audio/mpeg", "opus": b"audio/ogg", "aac": b"audio/aac", "flac": b"audio/flac",
    "wav": b"audio/wav", "pcm": b"audio/pcm",
}  # fmt: skip


async def speech(gateway: Gateway, request: Request) -> None:
    """Convert text to speech, on an upstream server."""
    body = parse_openai(await request.body())
    form = body.get("response_format") or "mp3"
    if not isinstance(form, str) or form not in _SOUNDS:
        raise BadRequest(f"Invalid value for 'response_format': {str(form)[:80]!r}.")
    if not isinstance(body.get("input"), str) or not body["input"]:
        raise BadRequest("Missing required parameter: 'input'.")
    await pass_on(
        gateway, request, body.get("model"), "make speech", lambda traits: traits.speech_path,
        body, _SOUNDS[form],
    )  # fmt: skip


async def generate_images(gateway: Gateway, request: Request) -> None:
    """Generate images, on an upstream server."""
    body: dict[str, Any] = parse_openai(await request.body())
    if not isinstance(body.get("prompt"), str) or not body["prompt"]:
        raise BadRequest("Missing required parameter: 'prompt'.")
    await pass_on(
        gateway, request, body.get("model"), "make images", lambda traits: traits.images_path, body
    )


async def edit_images(gateway: Gateway, request: Request) -> None:
    """Edit an image, on an upstream server."""
    parts = await read_form(request)
    model = next((part.text for part in parts if part.name == "model"), None)
    await pass_on(
        gateway, request, model, "edit images", lambda traits: traits.image_edits_path, parts
    )


async def read_form(request: Request) -> list[FormPart]:
    """Return the parts of a form. Raises BadRequest, BodyTooLarge."""
    form = FormReader(request.header(b"content-type"))
    async for piece in request.pieces(MAX_FORM_BYTES):
        form.feed(piece)
    return form.parts()


async def pass_on(
    gateway: Gateway,
    request: Request,
    model: str | None,
    what: str,
    find_path: Callable[[Traits], str | None],
    given: Mapping[str, Any] | Sequence[FormPart],
    kind: bytes = JSON,
) -> None:
    """Send a request to the engine of `model` and its answer, of type `kind`, to the client.

    `given` are its fields, or the parts of its form. Raises NotSupported.
    """
    entry = await find_v1_model(gateway, model)
    refusal = NotSupported(
        f"cannot {what} with '{model}': no installed engine supports it",
        hint="connect a server that supports it: --upstream URL",
    )
    need = make_need_of_entry(entry)
    if not any(find_path(traits) for traits in list_traits(gateway, entry.bundle, need.mode)):
        raise refusal

    async def use(lease: Lease, upstream: Upstream) -> None:
        path = find_path(lease.traits)
        if path is None:
            raise refusal
        name, passed = lease.traits.model_name or str(model), lease.traits.passed_fields
        if isinstance(given, Mapping):
            fields, ignored = pass_fields(given, passed)
            call = Call(path=path, fields={**fields, "model": name})
        else:
            call, ignored = pass_form(path, given, passed, model=name, seed=request.number)
        name_ignored(request, ignored)
        fetching = fetch_or_refuse(upstream, call, f"{what} with '{model}'")
        request.respond(200, await unless_gone(request, fetching), kind)

    await with_lease(gateway, request, entry.bundle, need, None, use)


MAX_FORM_BYTES = 25 * 1024 * 1024 + 64 * 1024
"""Ollama's and OpenAI's limit for the file, and room for the fields."""

_TYPES = {
    "text": b"text/plain; charset=utf-8",
    "srt": b"application/x-subrip; charset=utf-8",
    "vtt": b"text/vtt; charset=utf-8",
}
_TASKS = {
    "transcribe": "Write down the words that are spoken, and nothing else. Do not answer them.",
    "translate": "Write down in English what is said, and nothing else. Do not answer it.",
}


async def transcriptions(gateway: Gateway, request: Request) -> None:
    """Transcribe speech."""
    await transcribe(gateway, request, "transcribe")


async def translations(gateway: Gateway, request: Request) -> None:
    """Translate speech into English."""
    await transcribe(gateway, request, "translate")


async def transcribe(gateway: Gateway, request: Request, task: str) -> None:
    """Find the model, then the way in which its engine hears."""
    parts = await read_form(request)
    fields = {part.name: part for part in parts}
    if "model" not in fields or not fields["model"].text:
        raise BadRequest("model is required")
    if "file" not in fields:
        raise BadRequest("file is required: http: no such file")
    if not fields["file"].data:
        raise BadRequest("audio file is empty")
    name = fields["model"].text
    entry = await find_v1_model(gateway, name)

    shape = fields["response_format"].text if "response_format" in fields else "json"
    wanted = make_need_of_entry(entry)
    refusal = NotSupported(
        f"cannot {task} with '{name}': its engine does not accept audio",
        hint="use a model with audio input, on an engine that supports it",
    )
    offers = list_traits(gateway, entry.bundle, wanted.mode)
    if not any(find_path(traits, task) or traits.takes_audio for traits in offers):
        raise refusal

    async def use(lease: Lease, upstream: Upstream) -> None:
        path = find_path(lease.traits, task)
        if path is not None:
            model, passed = lease.traits.model_name or name, lease.traits.passed_fields
            call, ignored = pass_form(path, parts, passed, model=model, seed=request.number)
            name_ignored(request, ignored)
            answer = await unless_gone(
                request, fetch_or_refuse(upstream, call, f"{task} with '{name}'")
            )
            flows = "stream" in fields and fields["stream"].text.lower() == "true"
            kind = EVENT_STREAM.encode() if flows else _TYPES.get(shape, JSON)
            request.respond(200, answer, kind)
            return
        if not lease.traits.takes_audio:
            raise refusal
        if shape not in ("json", "text"):
            raise BadRequest(f"Invalid value for 'response_format': '{shape[:80]}'.")
        text = await transcribe_by_chat(gateway, request, entry, lease, upstream, fields, task)
        if shape == "text":
            request.text(200, text)
        else:
            request.json(200, Transcription(text))

    await with_lease(gateway, request, entry.bundle, wanted, None, use, size=size_context)


def find_path(traits: Traits, task: str) -> str | None:
    """Return the engine's own route for a task."""
    return traits.transcription_path if task == "transcribe" else traits.translation_path


async def transcribe_by_chat(
    gateway: Gateway,
    request: Request,
    entry: Entry,
    lease: Lease,
    upstream: Upstream,
    fields: Mapping[str, FormPart],
    task: str,
) -> str:
    """Ask a model that hears for the words of a recording."""
    system = _TASKS[task]
    if "language" in fields:
        system += f" The language is {fields['language'].text}."
    if "prompt" in fields:
        system += f" What it is about: {fields['prompt'].text}"
    file = fields["file"]
    form = "mp3" if (file.filename or "").lower().endswith(".mp3") else "wav"
    sound = {"data": base64.b64encode(file.data).decode(), "format": form}
    body = {
        "model": fields["model"].text,
        "temperature": 0,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": [{"type": "input_audio", "input_audio": sound}]},
        ],
    }
    checked = check_request(entry, read_chat(body, truncate=False), "chat")
    choice, _ = await ask_whole(gateway, request, checked, lease, upstream)
    text: str = choice["message"]["content"]
    return text.strip()


class TranscriptionForm(Struct, kw_only=True):
    """An audio recording."""

    model: Model
    file: Annotated[str, says("recording; at most 25 MB", **BINARY)]
    language: Annotated[str, says("spoken language")] = ""
    prompt: Annotated[str, says("subject of the recording")] = ""
    response_format: Literal["json", "text"] = "json"


class SpeechBody(Struct, kw_only=True):
    """`POST /v1/audio/speech`."""

    model: Model
    input: Annotated[str, says("text to read aloud", minLength=1)]
    voice: Any = None
    response_format: Annotated[str | None, says(enum=[*_SOUNDS, "", None])] = None


class ImageBody(Struct):
    """`POST /v1/images/generations`."""

    model: Model
    prompt: Annotated[str, says(minLength=1)]


class ImageEditForm(Struct):
    """An image to edit."""

    model: Model
    image: Annotated[str, says("image file", **BINARY)]
    prompt: str


_hears = partial(
    openai_route,
    kind=RouteKind.MODEL,
    body=TranscriptionForm,
    form=True,
    answer=Transcription,
    media={"text/plain": TEXT},
)
_makes = partial(openai_route, kind=RouteKind.MODEL)
ROUTES = (
    _hears("POST /v1/audio/transcriptions", transcriptions),
    _hears("POST /v1/audio/translations", translations),
    _makes(
        "POST /v1/audio/speech",
        speech,
        body=SpeechBody,
        media={name.decode(): {} for name in _SOUNDS.values()},
    ),
    _makes(
        "POST /v1/images/generations",
        generate_images,
        body=ImageBody,
        media={"application/json": {}},
    ),
    _makes(
        "POST /v1/images/edits",
        edit_images,
        body=ImageEditForm,
        form=True,
        media={"application/json": {}},
    ),
)
