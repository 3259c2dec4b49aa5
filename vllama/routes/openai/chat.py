"""The OpenAI routes, passed through to the engine's own.

What a client sends is only changed where the engine could not take it (`Traits`); the engine is
always asked to stream, so that a client who leaves stops the generation.

See docs/reference/ollama-api.md#openai-chat-completions, #openai-completions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from vllama.chat.engine.fields import effort_of, parse_effort
from vllama.chat.request import Fitting, Sampling
from vllama.dialects.ollama.embeddings import (
    base64s,
    embeddings_reply,
    finished,
    float32s,
    parse_embeddings,
)
from vllama.dialects.openai.choices import Part, parse_n, reseeded
from vllama.dialects.openai.extras import Extras, take_extras, with_effort
from vllama.dialects.openai.read import parse_openai
from vllama.dialects.openai.whole import WholeWriter
from vllama.dialects.openai.write import StreamWriter
from vllama.engines.base import Mode
from vllama.errors import BadRequest, CapabilityMissing, ModelNotFound
from vllama.http.request import Request
from vllama.models.types import Bundle, Capability
from vllama.routes.affinity import of_messages
from vllama.routes.catalog import Entry
from vllama.routes.chat_pipeline import turn_of, with_own
from vllama.routes.inference import leased, unless_gone
from vllama.routes.ollama.common import need_of
from vllama.routes.ollama.embed import check_inputs, embed_all
from vllama.routes.openai.multi_choice import Choice, relay_choices
from vllama.routes.prompt import dropped_header
from vllama.scheduler.instance import Lease
from vllama.upstream.pool import Upstream

if TYPE_CHECKING:
    from vllama.routes.app import Gateway

IGNORED_HEADER = "x-vllama-ignored"
TRUNCATE_HEADER = b"x-vllama-truncate"
MAX_NAMED = 10

_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")


async def model_of(gateway: Gateway, name: object) -> Entry:
    """Return the model that a body names. Raises BadRequest, ModelNotFound."""
    if not isinstance(name, str) or not name:
        raise BadRequest("you must provide a model parameter")
    try:
        return await gateway.catalog.find(name)
    except ModelNotFound as error:
        raise ModelNotFound(name, message=f"model '{name}' not found") from error


def row(bundle: Bundle) -> dict[str, object]:
    """Return a model as OpenAI lists it."""
    return {
        "id": bundle.name,
        "object": "model",
        "created": int(bundle.modified_s),
        "owned_by": owner_of(bundle.name),
    }


def owner_of(name: str) -> str:
    """Return the namespace of a name: the part before the last one, `library` if there is none."""
    parts = name.split("/")
    return parts[-2] if len(parts) > 1 else "library"


async def models(gateway: Gateway, request: Request) -> None:
    """Serve `GET /v1/models`: list local models."""
    rows = [row(bundle) for bundle, _ in await gateway.catalog.all()]
    request.json(200, {"object": "list", "data": rows})


async def model(gateway: Gateway, request: Request) -> None:
    """Serve `GET /v1/models/{id}`: describe one model; an id may contain slashes."""
    name = unquote(request.path.removeprefix("/v1/models/"))
    entry = await model_of(gateway, name)
    request.json(200, row(entry.bundle) | {"id": name})


async def chat(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/chat/completions`: continue a conversation."""
    body, extras = take_extras(parse_openai(await request.body()))
    entry = await model_of(gateway, body.get("model"))
    model = str(body["model"])
    if Capability.COMPLETION not in entry.info.capabilities:
        raise CapabilityMissing(f'"{model}" does not support chat')
    thinks = Capability.THINKING in entry.info.capabilities
    if not thinks and (extras.think or parse_effort(effort_of(body))):
        raise CapabilityMissing(f'"{model}" does not support thinking')
    n = parse_n(body.get("n"))
    body = with_own(with_effort(body, extras.think), entry.bundle)
    defaults, load = entry.options(extras.options)
    need = need_of(load, Mode.CHAT, logprobs=bool(body.get("logprobs")))
    fitting = fitting_of(request, extras, defaults)

    async def use(lease: Lease, upstream: Upstream) -> None:
        traits = lease.traits
        # without sampling they are alike, and engines refuse to make several of them
        together = traits.takes_n and body.get("temperature") != 0
        given = body | {"n": n if together and n > 1 else None}
        turn = await turn_of(
            entry, given, gateway.renderer, upstream, traits, defaults=defaults, fitting=fitting
        )
        options = turn.options
        choices = [
            Choice(
                call=reseeded(turn.call, traits, number),
                reply=turn.reply(
                    StreamWriter(options, part) if options.stream else WholeWriter(options)
                ),
                new_prompt=number == 0,
            )
            for number, part in enumerate(Part.several([1 if together else n]))
        ]
        headers = dropped_header(turn.prompt)
        await relay_choices(
            gateway,
            request,
            entry.bundle,
            upstream,
            choices,
            whole=not options.stream,
            headers=headers,
        )

    prefix = of_messages(body.get("messages"))
    await leased(gateway, request, entry.bundle, need, extras.keep_alive, use, prefix)


def fitting_of(
    request: Request, extras: Extras, sampling: Sampling, *, truncate: bool = True
) -> Fitting:
    """Return what may be done so that a request fits its context; `truncate` is the default."""
    return Fitting(
        truncate=may_truncate(request, extras, default=truncate),
        shift=extras.shift,
        num_keep=sampling.num_keep,
    )


def may_truncate(request: Request, extras: Extras, *, default: bool) -> bool:
    """Tell whether what is too long may be cut: the body's word, else the header's, else `default`.

    The header is for clients that cannot add a field. Raises BadRequest.
    """
    if extras.truncate is not None:
        return extras.truncate
    if TRUNCATE_HEADER not in request.headers:
        return default
    said = request.header(TRUNCATE_HEADER).strip().lower()
    if said not in ("", "true", "false"):
        raise BadRequest(f"cannot read header 'x-vllama-truncate: {said[:80]}': not true or false")
    return said == "true" if said else default


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """Return the header that names what had no effect: a few, with nothing that ends a line."""
    shown = ", ".join(_UNSAFE.sub("_", name) for name in names[:MAX_NAMED])
    return {IGNORED_HEADER: shown} if names else {}


async def embeddings(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/embeddings`: make embeddings, normalised, in base64 if requested."""
    body, extras = take_extras(parse_openai(await request.body()))
    asked = parse_embeddings(body)
    entry = await model_of(gateway, asked.model)
    name = str(asked.model)
    check_inputs(asked.inputs, name, entry.info.vocab_size)
    _, load = entry.options(extras.options)
    truncate = may_truncate(request, extras, default=True)

    async def use(lease: Lease, upstream: Upstream) -> None:
        work = embed_all(
            upstream,
            lease.traits,
            asked.inputs,
            model=name,
            finish=partial(
                finished,
                dimensions=asked.dimensions,
                form=base64s if asked.encoding == "base64" else float32s,
            ),
            truncate=truncate,
            limit=min(
                load.num_ctx or math.inf,
                lease.traits.context_length,
                entry.info.context_length or math.inf,
            ),
        )
        made = await unless_gone(request, work)
        reply = embeddings_reply(name, made.vectors, made.tokens)
        request.respond(200, reply, headers=made.headers)

    need = need_of(load, Mode.EMBED)
    await leased(gateway, request, entry.bundle, need, extras.keep_alive, use)
