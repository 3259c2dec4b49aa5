"""The probe of a target that has failed: a request for a few tokens.

A health check succeeds on many servers that answer no request.
"""

from __future__ import annotations

import asyncio

import msgspec

from vllama.base.errors import EngineError, UpstreamError
from vllama.chat.request import Call
from vllama.dialects.errors import clean_engine_error
from vllama.net.upstream.pool import Upstream

LIMIT_S = 5.0
TOKENS = 4
"""Some servers stall after the first ones."""


async def probe_target(upstream: Upstream, model: str, *, embeds: bool) -> EngineError | None:
    """Return why a target cannot answer for `model`; None if it can, or refuses the request."""
    try:
        async with asyncio.timeout(LIMIT_S):
            answer = await upstream.fetch(make_call(model, embeds=embeds), most_events=TOKENS)
    except TimeoutError:
        return UpstreamError(f"no answer to a probe within {LIMIT_S:g} s", status=504)
    except EngineError as error:
        return error
    if answer.status == 200:
        works = (b'"embedding"' if embeds else b'"choices"') in answer.body
        return None if works else UpstreamError("its answer to a probe is none")
    refusal = clean_engine_error(answer.status, answer.body, answer.headers)
    return refusal if isinstance(refusal, EngineError) else None


def make_call(model: str, *, embeds: bool) -> Call:
    """Return the request of a probe."""
    if embeds:
        body = msgspec.json.encode({"model": model, "input": "ok"})
        return Call(path="/v1/embeddings", body=body)
    talk = [{"role": "user", "content": "ok"}]
    asked = {"model": model, "messages": talk, "max_tokens": TOKENS, "stream": True}
    return Call(path="/v1/chat/completions", body=msgspec.json.encode(asked))
