"""Decisions: typed questions that a chat model answers by the probabilities of its next token.

Each question is a prompt of its own that ends within an answer, "Answer: (", and one token is asked
for; nothing is written. All begin with the same conversation, which engines keep in their cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from vllama.chat.logprobs import convert_logprobs
from vllama.dialects.decisions.openai import parse_decisions, write_decisions
from vllama.dialects.decisions.questions import (
    Counts,
    Decision,
    Distribution,
    read_distribution,
)
from vllama.dialects.decisions.systemone import parse_systemone, write_systemone
from vllama.dialects.openai.answer_types import Decisions, SystemOneAnswers
from vllama.dialects.openai.extras import Extras, take_extras
from vllama.dialects.openai.read import parse_openai, read_chat
from vllama.dialects.openai.whole import WholeWriter
from vllama.dialects.responses.request_types import DECISIONS
from vllama.engines.base import Mode
from vllama.models.types import Capability
from vllama.net.http.request import Request
from vllama.net.relay import Relay
from vllama.net.upstream.pool import Upstream
from vllama.routes.catalog import Entry
from vllama.routes.inference.lease import NotSupported, make_need, run_relay, with_lease
from vllama.routes.inference.reservation import size_answers
from vllama.routes.openai import score_bodies
from vllama.routes.openai.common import find_v1_model, make_options
from vllama.routes.operation import Tag
from vllama.routes.prompts.prepare import check_request, prepare
from vllama.routes.route import RouteKind, ollama_route, openai_route
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

LIKELIEST = 20
"""Next tokens whose probabilities are asked for: the most that every engine gives."""


async def systemone(gateway: Gateway, request: Request) -> None:
    """Answer typed questions about a state, in System One's form."""
    body, extras = take_extras(parse_openai(await request.body()))
    name = read_model(body)
    entry, asked = await find_v1_model(gateway, name), parse_systemone(body)
    found, counts = await decide(gateway, request, entry, name, asked, extras)
    request.json(200, write_systemone(asked, found, model=name, counts=counts))


async def decisions(gateway: Gateway, request: Request) -> None:
    """Answer typed questions with probabilities."""
    body, extras = take_extras(parse_openai(await request.body(), DECISIONS))
    name = read_model(body)
    entry, asked = await find_v1_model(gateway, name), parse_decisions(body)
    found, counts = await decide(gateway, request, entry, name, asked, extras)
    request.json(200, write_decisions(asked, found, model=name, counts=counts))


def read_model(body: Mapping[str, Any]) -> str:
    """Return the model's name; "" is none, which `find_v1_model` refuses."""
    name = body.get("model")
    return name if isinstance(name, str) else ""


async def decide(
    gateway: Gateway,
    request: Request,
    entry: Entry,
    name: str,
    asked: Decision,
    extras: Extras,
) -> tuple[Sequence[Distribution], Counts]:
    """Return the probabilities of each question's options, and the tokens they took.

    Raises NotSupported if the engine tells no log probabilities, BadRequest if the model would
    answer with something else.
    """
    found: list[Distribution] = []
    counts = Counts()
    common: dict[str, Any] = {
        "model": name, "max_tokens": 1, "temperature": 0, "logprobs": True,
        "top_logprobs": LIKELIEST,
    }  # fmt: skip
    if Capability.THINKING in entry.info.capabilities:
        common["reasoning_effort"] = "none"
    prompts = [
        check_request(
            entry,
            read_chat(
                common | {"messages": asked.write_messages(question)}, extras, truncate=False
            ),
            "chat",
        )
        for question in asked.questions
    ]

    async def use(lease: Lease, upstream: Upstream) -> None:
        nonlocal counts
        found.clear()
        counts = Counts()
        for question, prompt in zip(asked.questions, prompts, strict=True):
            turn = await prepare(prompt, lease.traits, gateway.renderer, upstream)
            kept: list[bytes] = []
            reply = turn.make_reply(WholeWriter(make_options(prompt.asked)))
            relay = Relay(request, reply, whole=True, headers={}, deliver=kept.append)
            await run_relay(gateway, request, entry.bundle, relay, upstream, turn.make_call())
            tokens = convert_logprobs(msgspec.json.decode(kept[0])["choices"][0].get("logprobs"))
            if not tokens:
                raise NotSupported(
                    f"cannot decide with '{name}': its engine tells no log probabilities"
                )
            found.append(read_distribution(question, tokens[0].get("top_logprobs", tokens[:1])))
            usage = reply.tally.usage
            counts = Counts(
                prompt=counts.prompt + usage.prompt_tokens,
                completion=counts.completion + usage.completion_tokens,
                cached=counts.cached + (usage.cached_tokens or 0),
            )

    need = make_need(prompts[0].load, Mode.CHAT, logprobs=True)
    size = size_answers(prompts)
    await with_lease(gateway, request, entry.bundle, need, extras.keep_alive, use, size=size)
    return found, counts


ROUTES = (
    openai_route(
        "POST /v1/decisions",
        decisions,
        RouteKind.MODEL,
        body=score_bodies.DECISIONS,
        answer=Decisions,
    ),
    # its errors have Ollama's form, as those of System One have
    ollama_route(
        "POST /v1/systemone",
        systemone,
        RouteKind.MODEL,
        tag=Tag.OPENAI,
        body=score_bodies.SYSTEM_ONE,
        answer=SystemOneAnswers,
    ),
)
