"""Rerank and score: how well texts fit a query, by engines that have such a route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vllama.chat.engine.request_fields import pass_fields
from vllama.chat.go_json import encode_json
from vllama.chat.request import Call, guess_tokens
from vllama.dialects.openai.answer_types import RankedText, Ranking, Scores
from vllama.dialects.openai.extras import Extras, take_extras
from vllama.dialects.openai.read import parse_openai
from vllama.dialects.rerank import parse_rerank, parse_score, read_scores, write_rerank_body
from vllama.engines.base import Mode
from vllama.models.types import Format
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import ClientGone, Request
from vllama.net.upstream.pool import Upstream
from vllama.routes.catalog import Entry
from vllama.routes.inference.engine_routes import fetch_or_refuse, list_traits
from vllama.routes.inference.lease import NotSupported, count_inputs, make_need, with_lease
from vllama.routes.inference.reservation import size_inputs
from vllama.routes.openai import score_bodies
from vllama.routes.openai.common import find_v1_model, make_seed, name_ignored
from vllama.routes.route import RouteKind, openai_route
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

Comparison = tuple[str, Sequence[Any]]
"""A query and the documents to score for it."""


async def rerank(gateway: Gateway, request: Request) -> None:
    """Order documents by how well they fit a query.

    With `texts` in place of `documents` the answer is a bare array.
    """
    body, extras = take_extras(parse_openai(await request.body()))
    entry = await find_v1_model(gateway, body.get("model"))
    name, asked = str(body["model"]), parse_rerank(body)
    comparison = (asked.query, asked.documents)
    scores, tokens = await score_all(
        gateway, request, entry, name, [comparison], asked.fields, extras, "rerank"
    )
    identity = f"rerank-{make_seed(request)}"
    reply = asked.write(scores, model=name, identity=identity, tokens=tokens)
    request.respond(200, encode_json(reply))


async def score(gateway: Gateway, request: Request) -> None:
    """Compare pairs of texts."""
    body, extras = take_extras(parse_openai(await request.body()))
    entry = await find_v1_model(gateway, body.get("model"))
    name, asked = str(body["model"]), parse_score(body)
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
        f"cannot {verb} with '{name}': no engine here can",
        hint="compare vectors of /v1/embeddings instead",
    )
    if not any(traits.rerank_path for traits in list_traits(gateway, entry.bundle, mode)):
        raise refusal
    if entry.bundle.format is Format.GGUF and not entry.info.ranks:
        raise NotSupported(
            f"cannot {verb} with '{name}': it is not a reranker",
            hint="use a model made for it, such as bge-reranker, or compare vectors of "
            "/v1/embeddings",
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
        passed, ignored = pass_fields(fields, lease.traits.passed_fields)
        name_ignored(request, ignored)
        scores.clear()
        tokens = 0
        for query, documents in comparisons:
            sent = write_rerank_body(query, documents, passed, lease.traits.model_name or name)
            call = Call(path=path, body=encode_json(sent))
            fetching = fetch_or_refuse(upstream, call, f"{verb} with '{name}'")
            try:
                answer = await unless_gone(request, fetching)
            except ClientGone:
                count_inputs(gateway, request, entry.bundle, guess_tokens(call.body.decode()))
                raise
            found, taken = read_scores(answer, len(documents))
            scores.extend(found)
            tokens += taken
            count_inputs(gateway, request, entry.bundle, taken)

    _, load = entry.options(extras.options)
    need = make_need(load, mode)
    await with_lease(gateway, request, entry.bundle, need, extras.keep_alive, use, size=size)
    return scores, tokens


_scores = partial(openai_route, kind=RouteKind.MODEL)
ROUTES = (
    _scores(
        "POST /v1/rerank /v1/reranking /v2/rerank /rerank /reranking",
        rerank,
        body=score_bodies.RERANK,
        answer=(Ranking, list[RankedText]),
    ),
    _scores("POST /v1/score /score", score, body=score_bodies.SCORE, answer=Scores),
)
