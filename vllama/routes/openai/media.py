"""Speech and images made by an engine that has such routes: `/v1/audio/speech`, `/v1/images/…`.

None of the engines that vllama starts has them; a server behind `--upstream` may. Requests and
answers are passed on but for the model's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from vllama.chat.engine.traits import Traits
from vllama.chat.go_json import encode_json
from vllama.chat.request import Call
from vllama.dialects.openai.multipart import FormReader, Part, build_form
from vllama.dialects.openai.read import parse_openai
from vllama.errors import BadRequest
from vllama.http.departure import unless_gone
from vllama.http.request import JSON, Request
from vllama.routes.engine_routes import fetch_or_refuse, list_traits, make_need_of_entry
from vllama.routes.inference import NotSupported, with_lease
from vllama.routes.openai.audio import MAX_FORM_BYTES
from vllama.routes.openai.common import find_v1_model
from vllama.scheduler.instance import Lease
from vllama.upstream.pool import Upstream

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

_SOUNDS: Mapping[str, bytes] = {
    "mp3": b"audio/mpeg", "opus": b"audio/ogg", "aac": b"audio/aac", "flac": b"audio/flac",
    "wav": b"audio/wav", "pcm": b"audio/pcm",
}  # fmt: skip


async def speech(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/audio/speech`: read a text aloud."""
    body = parse_openai(await request.body())
    form = body.get("response_format") or "mp3"
    if not isinstance(form, str) or form not in _SOUNDS:
        raise BadRequest(f"Invalid value for 'response_format': {str(form)[:80]!r}.")
    if not isinstance(body.get("input"), str) or not body["input"]:
        raise BadRequest("Missing required parameter: 'input'.")
    await pass_on(
        gateway, request, body.get("model"), "make speech", lambda traits: traits.speech_path,
        lambda name: (encode_json(body | {"model": name}), "application/json"), _SOUNDS[form],
    )  # fmt: skip


async def generate_images(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/images/generations`: draw what a text describes."""
    body: dict[str, Any] = parse_openai(await request.body())
    if not isinstance(body.get("prompt"), str) or not body["prompt"]:
        raise BadRequest("Missing required parameter: 'prompt'.")
    await pass_on(
        gateway, request, body.get("model"), "make images", lambda traits: traits.images_path,
        lambda name: (encode_json(body | {"model": name}), "application/json"),
    )  # fmt: skip


async def edit_images(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/images/edits`: change an image, sent as a form, as a text describes."""
    form = FormReader(request.header(b"content-type"))
    async for piece in request.pieces(MAX_FORM_BYTES):
        form.feed(piece)
    parts = form.parts()
    model = next((part.text for part in parts if part.name == "model"), None)
    others = [part for part in parts if part.name != "model"]
    await pass_on(
        gateway, request, model, "edit images", lambda traits: traits.image_edits_path,
        lambda name: build_form(
            [Part(name="model", data=name.encode()), *others], seed=request.number
        ),
    )  # fmt: skip


async def pass_on(
    gateway: Gateway,
    request: Request,
    model: object,
    what: str,
    find_path: Callable[[Traits], str | None],
    write: Callable[[str], tuple[bytes, str]],
    kind: bytes = JSON,
) -> None:
    """Send a request to the engine of `model` and its answer, of type `kind`, to the client.

    `write` makes the body and its type from the name that the engine knows. Raises NotSupported.
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
        body, content_type = write(lease.traits.model_name or str(model))
        call = Call(path=path, body=body, content_type=content_type)
        fetching = fetch_or_refuse(upstream, call, f"{what} with '{model}'")
        request.respond(200, await unless_gone(request, fetching), kind)

    await with_lease(gateway, request, entry.bundle, need, None, use)
