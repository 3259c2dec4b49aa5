"""Scores by a model: texts for a query (rerank, score), and options of typed questions.

Engines that have such a route rerank. Each typed question is a prompt of its own that ends within
an answer, "Answer: (", and one token is asked for; nothing is written. All begin with the same
conversation, which engines keep in their cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vllama.chat.bodies import encode_json
from vllama.chat.engine.context import check_text
from vllama.chat.engine.request_fields import pass_fields
from vllama.chat.logprobs import convert_logprobs
from vllama.chat.request import Call, guess_tokens
from vllama.dialects.decisions.forms import (
    DecisionsBody,
    SystemOneBody,
    parse_decisions,
    parse_systemone,
    write_decisions,
    write_systemone,
)
from vllama.dialects.decisions.questions import Counts, Distribution, Questions, read_distribution
from vllama.dialects.openai.answer_types import (
    Decisions,
    RankedText,
    Ranking,
    Scores,
    SystemOneAnswers,
)
from vllama.dialects.openai.extras import Extras, take_extras
from vllama.dialects.openai.read import parse_openai, read_chat
from vllama.dialects.rerank import (
    RerankBody,
    ScoreBody,
    parse_rerank,
    parse_score,
    read_scores,
    write_rerank_body,
)
from vllama.engines.base import Mode
from vllama.models.lookup import Entry
from vllama.models.types import Capability, Format
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import ClientGone, Request
from vllama.net.upstream.pool import Upstream
from vllama.plan.types import Need
from vllama.routes.inference.demand import size_answers, size_inputs
from vllama.routes.inference.lease import with_lease
from vllama.routes.inference.offers import NotSupported, fetch_or_refuse, list_traits
from vllama.routes.inference.relay import count_inputs, name_ignored
from vllama.routes.openai.common import ask_whole, find_v1_model, make_seed
from vllama.routes.prompts.prepare import check_request
from vllama.routes.route import RouteKind, Tag, ollama_route, openai_route
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


Comparison = tuple[str, Sequence[Any]]
"""A query and the documents to score for it."""


async def rerank(gateway: Gateway, request: Request) -> None:
    """Rank documents by relevance to a query.

    With `texts` in place of `documents` the response is a bare array.
    """
    body, extras = take_extras(parse_openai(await request.body(), RerankBody))
    entry = await find_v1_model(gateway, body.get("model"))
    name, asked = body["model"], parse_rerank(body)
    comparison = (asked.query, asked.documents)
    scores, tokens = await score_all(
        gateway, request, entry, name, [comparison], asked.fields, extras, "rerank"
    )
    identity = f"rerank-{make_seed(request)}"
    reply = asked.write(scores, model=name, identity=identity, tokens=tokens)
    request.respond(200, encode_json(reply))


async def score(gateway: Gateway, request: Request) -> None:
    """Score the similarity of text pairs."""
    body, extras = take_extras(parse_openai(await request.body()))
    entry = await find_v1_model(gateway, body.get("model"))
    name, asked = body["model"], parse_score(body)
    scores, tokens = await score_all(
        gateway, request, entry, name, list(asked.comparisons()), asked.fields, extras, "score"
    )
    reply = asked.write(
        scores,
        model=name,
        identity=f"score-{make_seed(request)}",
        created_s=request.started_ns // 1_000_000_000,
        tokens=tokens,
    )
    request.respond(200, encode_json(reply))


async def score_all(
    gateway: Gateway,
    request: Request,
    entry: Entry,
    name: str,
    comparisons: Sequence[Comparison],
    fields: Mapping[str, Any],
    extras: Extras,
    verb: str,
) -> tuple[list[float], int]:
    """Return the scores of all comparisons, one after the other, and the tokens they took.

    No model is loaded to say that it cannot. Raises NotSupported.
    """
    remote = entry.bundle.format is Format.REMOTE
    mode = Mode.CHAT if remote else Mode.EMBED
    refusal = NotSupported(
        f"cannot {verb} with '{name}': no installed engine supports it",
        hint="compare embeddings from /v1/embeddings instead",
    )
    if not any(traits.rerank_path for traits in list_traits(gateway, entry.bundle, mode)):
        raise refusal
    if entry.bundle.format is Format.GGUF and not entry.info.ranks:
        raise NotSupported(
            f"cannot {verb} with '{name}': it is not a reranker",
            hint="use a reranker such as bge-reranker, or compare embeddings from /v1/embeddings",
        )
    scores: list[float] = []
    tokens = 0
    # each document is read with its query
    pairs = [f"{query}{one}" for query, documents in comparisons for one in documents]
    size = size_inputs(pairs)

    async def use(lease: Lease, upstream: Upstream) -> None:
        nonlocal tokens
        path = lease.traits.rerank_path
        if path is None:
            raise refusal
        for pair in pairs:
            check_text(pair, lease.traits)
        passed, ignored = pass_fields(fields, lease.traits.passed_fields)
        name_ignored(request, ignored)
        scores.clear()
        tokens = 0
        for query, documents in comparisons:
            sent = write_rerank_body(query, documents, passed, lease.traits.model_name or name)
            call = Call(path=path, fields=sent)
            what, limit_s = f"{verb} with '{name}'", lease.patience_s
            fetching = fetch_or_refuse(upstream, call, what, limit_s=limit_s)
            try:
                answer = await unless_gone(request, fetching)
            except ClientGone:
                count_inputs(gateway, request, entry.bundle, guess_tokens(call.encode().decode()))
                raise
            found, taken = read_scores(answer, len(documents))
            scores.extend(found)
            tokens += taken
            count_inputs(gateway, request, entry.bundle, taken)

    _, load = entry.options(extras.options)
    need = Need(mode=mode, load=load)
    await with_lease(gateway, request, entry.bundle, need, extras.keep_alive, use, size=size)
    return scores, tokens


LIKELIEST = 20
"""Next tokens whose probabilities are asked for: the most that every engine gives."""


async def systemone(gateway: Gateway, request: Request) -> None:
    """Answer typed questions about a state, in System One's format."""
    body, extras = take_extras(parse_openai(await request.body()))
    name = body.get("model") or ""
    entry, asked = await find_v1_model(gateway, name), parse_systemone(body)
    found, counts = await decide(gateway, request, entry, name, asked, extras)
    request.json(200, write_systemone(asked, found, model=name, counts=counts))


async def decisions(gateway: Gateway, request: Request) -> None:
    """Answer typed questions with probabilities."""
    body, extras = take_extras(parse_openai(await request.body(), DecisionsBody))
    name = body.get("model") or ""
    entry, asked = await find_v1_model(gateway, name), parse_decisions(body)
    found, counts = await decide(gateway, request, entry, name, asked, extras)
    request.json(200, write_decisions(asked, found, model=name, counts=counts))


async def decide(
    gateway: Gateway,
    request: Request,
    entry: Entry,
    name: str,
    asked: Questions,
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
            choice, usage = await ask_whole(gateway, request, prompt, lease, upstream)
            tokens = convert_logprobs(choice.get("logprobs"))
            if not tokens:
                raise NotSupported(
                    f"cannot decide with '{name}': its engine does not return log probabilities"
                )
            found.append(read_distribution(question, tokens[0].get("top_logprobs", tokens[:1])))
            counts = Counts(
                prompt=counts.prompt + usage.prompt_tokens,
                completion=counts.completion + usage.completion_tokens,
                cached=counts.cached + (usage.cached_tokens or 0),
            )

    need = Need(load=prompts[0].load, logprobs=True)
    size = size_answers(prompts)
    await with_lease(gateway, request, entry.bundle, need, extras.keep_alive, use, size=size)
    return found, counts


_scores = partial(openai_route, kind=RouteKind.MODEL)
ROUTES = (
    openai_route(
        "POST /v1/decisions",
        decisions,
        RouteKind.MODEL,
        body=DecisionsBody,
        answer=Decisions,
    ),
    # its errors have Ollama's form, as those of System One have
    ollama_route(
        "POST /v1/systemone",
        systemone,
        RouteKind.MODEL,
        tag=Tag.OPENAI,
        body=SystemOneBody,
        answer=SystemOneAnswers,
    ),
    _scores(
        "POST /v1/rerank /v1/reranking /v2/rerank /rerank /reranking",
        rerank,
        body=RerankBody,
        answer=(Ranking, list[RankedText]),
    ),
    _scores("POST /v1/score /score", score, body=ScoreBody, answer=Scores),
)
