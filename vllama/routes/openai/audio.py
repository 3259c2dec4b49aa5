"""Speech to text: `POST /v1/audio/transcriptions` and `translations`.

An engine that has such a route gets the form as it came. One whose model hears in a chat is asked
there at temperature 0, as Ollama does.

See docs/reference/ollama-api.md#audio-transcriptions.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from vllama.base.errors import BadRequest
from vllama.chat.engine.traits import Traits
from vllama.chat.reply import EVENT_STREAM
from vllama.dialects.openai.answer_types import Transcription
from vllama.dialects.openai.multipart import FormReader, Part, pass_form
from vllama.dialects.openai.read import read_chat
from vllama.dialects.openai.whole import WholeWriter
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import JSON, Request
from vllama.net.relay import Relay
from vllama.net.upstream.pool import Upstream
from vllama.routes.catalog import Entry
from vllama.routes.fields import BINARY, TEXT
from vllama.routes.inference.engine_routes import fetch_or_refuse, list_traits, make_need_of_entry
from vllama.routes.inference.lease import NotSupported, run_relay, with_lease
from vllama.routes.inference.reservation import size_context
from vllama.routes.openai.common import find_v1_model, make_options, name_ignored
from vllama.routes.operation import Body
from vllama.routes.prompts.prepare import check_request, prepare
from vllama.routes.route import RouteKind, openai_route
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

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
    """Turn speech into text."""
    await transcribe(gateway, request, "transcribe")


async def translations(gateway: Gateway, request: Request) -> None:
    """Turn speech into English text."""
    await transcribe(gateway, request, "translate")


async def transcribe(gateway: Gateway, request: Request, task: str) -> None:
    """Find the model, then the way in which its engine hears."""
    form = FormReader(request.header(b"content-type"))
    async for piece in request.pieces(MAX_FORM_BYTES):
        form.feed(piece)
    parts = form.parts()
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
        f"cannot {task} with '{name}': its engine takes no audio",
        hint="choose a model that hears, on an engine that can",
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
    fields: Mapping[str, Part],
    task: str,
) -> str:
    """Ask a model that hears for the words of a recording."""
    system = _TASKS[task]
    if "language" in fields:
        system += f" The language is {fields['language'].text}."
    if "prompt" in fields:
        system += f" What it is about: {fields['prompt'].text}"
    file = fields["file"]
    sound = {"data": base64.b64encode(file.data).decode(), "format": guess_format(file)}
    body = {
        "model": fields["model"].text,
        "temperature": 0,
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": [{"type": "input_audio", "input_audio": sound}]},
        ],
    }
    asked = read_chat(body, truncate=False)
    turn = await prepare(
        check_request(entry, asked, "chat"), lease.traits, gateway.renderer, upstream
    )
    kept: list[bytes] = []
    reply = turn.make_reply(WholeWriter(make_options(asked)))
    relay = Relay(request, reply, whole=True, headers={}, deliver=kept.append)
    await run_relay(gateway, request, entry.bundle, relay, upstream, turn.make_call())
    answer = msgspec.json.decode(kept[0])
    text: str = answer["choices"][0]["message"]["content"]
    return text.strip()


def guess_format(file: Part) -> str:
    """Return the format of a recording as OpenAI names it, by its file's name."""
    return "mp3" if (file.filename or "").lower().endswith(".mp3") else "wav"


_hears = partial(
    openai_route,
    kind=RouteKind.MODEL,
    body=Body(
        name="TranscriptionForm",
        form=True,
        required=("file",),
        fields={
            "file": BINARY | {"description": "the recording; 25 MB at most"},
            "language": TEXT,
            "prompt": TEXT | {"description": "what the recording is about"},
            "response_format": {"type": "string", "enum": ["json", "text"]},
        },
    ),
    answer=Transcription,
    media={"text/plain": TEXT},
)
ROUTES = (
    _hears("POST /v1/audio/transcriptions", transcriptions),
    _hears("POST /v1/audio/translations", translations),
)
