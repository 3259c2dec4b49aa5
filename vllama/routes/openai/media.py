"""Speech and images made by an engine that has such routes: `/v1/audio/speech`, `/v1/images/…`.

None of the engines that vllama starts has them; a server behind `--upstream` may. Requests and
answers are passed on but for the model's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vllama.base.errors import BadRequest
from vllama.chat.engine.request_fields import pass_fields
from vllama.chat.engine.traits import Traits
from vllama.chat.go_json import encode_json
from vllama.chat.request import Call
from vllama.dialects.go_types import make_enum
from vllama.dialects.openai.multipart import FormReader, Part, pass_form
from vllama.dialects.openai.read import parse_openai
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import JSON, Request
from vllama.net.upstream.pool import Upstream
from vllama.routes.fields import BINARY, NON_EMPTY, TEXT
from vllama.routes.inference.engine_routes import fetch_or_refuse, list_traits, make_need_of_entry
from vllama.routes.inference.lease import NotSupported, with_lease
from vllama.routes.openai.audio import MAX_FORM_BYTES
from vllama.routes.openai.common import find_v1_model, name_ignored
from vllama.routes.operation import Body
from vllama.routes.route import RouteKind, openai_route
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

_SOUNDS: Mapping[str, bytes] = {
    "mp3": b"audio/mpeg", "opus": b"audio/ogg", "aac": b"audio/aac", "flac": b"audio/flac",
    "wav": b"audio/wav", "pcm": b"audio/pcm",
}  # fmt: skip


async def speech(gateway: Gateway, request: Request) -> None:
    """Read a text aloud, by a server behind this one."""
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
    """Draw what a text describes, by a server behind this one."""
    body: dict[str, Any] = parse_openai(await request.body())
    if not isinstance(body.get("prompt"), str) or not body["prompt"]:
        raise BadRequest("Missing required parameter: 'prompt'.")
    await pass_on(
        gateway, request, body.get("model"), "make images", lambda traits: traits.images_path, body
    )


async def edit_images(gateway: Gateway, request: Request) -> None:
    """Change an image as a text describes, by a server behind this one."""
    form = FormReader(request.header(b"content-type"))
    async for piece in request.pieces(MAX_FORM_BYTES):
        form.feed(piece)
    parts = form.parts()
    model = next((part.text for part in parts if part.name == "model"), None)
    await pass_on(
        gateway, request, model, "edit images", lambda traits: traits.image_edits_path, parts
    )


async def pass_on(
    gateway: Gateway,
    request: Request,
    model: object,
    what: str,
    find_path: Callable[[Traits], str | None],
    given: Mapping[str, Any] | Sequence[Part],
    kind: bytes = JSON,
) -> None:
    """Send a request to the engine of `model` and its answer, of type `kind`, to the client.

    `given` are its fields, or the parts of its form. Raises NotSupported.
    """
    entry = await find_v1_model(gateway, model)
    refusal = NotSupported(
        f"cannot {what} with '{model}': no engine here can",
        hint="put vllama in front of a server that can: --upstream URL",
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
            call = Call(path=path, body=encode_json({**fields, "model": name}))
        else:
            call, ignored = pass_form(path, given, passed, model=name, seed=request.number)
        name_ignored(request, ignored)
        fetching = fetch_or_refuse(upstream, call, f"{what} with '{model}'")
        request.respond(200, await unless_gone(request, fetching), kind)

    await with_lease(gateway, request, entry.bundle, need, None, use)


_makes = partial(openai_route, kind=RouteKind.MODEL)
ROUTES = (
    _makes(
        "POST /v1/audio/speech",
        speech,
        body=Body(
            name="SpeechRequest",
            required=("input",),
            fields={
                "input": NON_EMPTY,
                "voice": {},
                "response_format": make_enum("mp3", "opus", "aac", "flac", "wav", "pcm", "", None),
            },
        ),
        media={f"audio/{name}": {} for name in ("mpeg", "ogg", "aac", "flac", "wav", "pcm")},
    ),
    _makes(
        "POST /v1/images/generations",
        generate_images,
        body=Body(name="ImageRequest", required=("prompt",), fields={"prompt": NON_EMPTY}),
        media={"application/json": {}},
    ),
    _makes(
        "POST /v1/images/edits",
        edit_images,
        body=Body(
            name="ImageEditForm",
            form=True,
            required=("image", "prompt"),
            fields={"image": BINARY, "prompt": TEXT},
        ),
        media={"application/json": {}},
    ),
)
