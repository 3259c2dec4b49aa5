"""What every inference route does alike: find, lease, count, relay.

A lease is asked for while the client is watched, so that one who leaves while queued takes its
place in the queue along. A request that cannot have reached the engine is sent again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import msgspec

from vllama.errors import BadRequest, ContextOverflow, VllamaError
from vllama.gateway.http import ClientGone, Request
from vllama.gateway.relay import Relay
from vllama.gateway.upstream import ConnectionLost, Upstream
from vllama.models.types import Bundle, ModelInfo
from vllama.plan.types import Need
from vllama.scheduler.instance import Lease
from vllama.translate.faults import clean_engine_error
from vllama.translate.prompt import ChatTemplate, fit_messages
from vllama.translate.traits import Traits
from vllama.translate.types import Call, Message

if TYPE_CHECKING:
    from vllama.gateway.app import Gateway

log = logging.getLogger(__name__)

T = TypeVar("T")
DROPPED_HEADER = "x-vllama-truncated"
# a killed engine is noticed within some 20 ms; the pauses leave it time to be
RETRY_PAUSES_S = (0.05, 0.2, 0.5)


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Return what `work` returns; if the client leaves first, cancel it and raise ClientGone."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(request.gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})


async def leased(
    gateway: Gateway,
    request: Request,
    bundle: Bundle,
    need: Need,
    keep_alive_s: float | None,
    use: Callable[[Lease, Upstream], Awaitable[None]],
) -> None:
    """Run `use` with a lease on an instance of `bundle`; what it raises comes through.

    If the engine could not be reached at all (it has just ended and its supervisor is about to
    notice), the request waits its turn for the next one.
    """
    scheduler = gateway.scheduler
    for pause_s in (*RETRY_PAUSES_S, None):
        lease = scheduler.try_acquire(bundle, need, keep_alive_s)
        if lease is None:
            lease = await unless_gone(request, scheduler.acquire(bundle, need, keep_alive_s))
        try:
            await use(lease, gateway.upstreams.to(lease.endpoint))
            return
        except ConnectionLost as error:
            scheduler.suspect(lease)
            if not error.unsent or request.status or pause_s is None:
                raise
        finally:
            scheduler.release(lease)
        await asyncio.sleep(pause_s)


async def relayed(
    gateway: Gateway,
    request: Request,
    bundle: Bundle,
    relay: Relay,
    upstream: Upstream,
    call: Call,
    before_finish: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run a relay and count its tokens, also those of an answer that nobody waited for."""
    try:
        await relay.run(upstream, call, before_finish)
    finally:
        usage = relay.reply.usage
        gateway.metrics.tokens(bundle.name, usage.prompt_tokens, usage.completion_tokens)


async def fetch_json(upstream: Upstream, path: str, body: object) -> dict[str, object]:
    """POST JSON to an engine and return its JSON object. Raises UpstreamError and kin."""
    answer = await upstream.fetch(Call(path=path, body=msgspec.json.encode(body)))
    if answer.status != 200:
        raise clean_engine_error(answer.status, answer.body)
    value = msgspec.json.decode(answer.body)
    if not isinstance(value, dict):
        raise clean_engine_error(502, answer.body)
    return value


async def tokenize(upstream: Upstream, traits: Traits, text: str) -> list[int] | None:
    """Return the engine's tokens of `text`, None if it has no tokenizer route."""
    route = traits.tokenizer
    if route is None:
        return None
    body = {route.input_field: text}
    if traits.model_name:
        body["model"] = traits.model_name
    try:
        tokens = (await fetch_json(upstream, route.tokenize_path, body)).get("tokens")
    except ConnectionLost as error:
        # splitting a text cannot have ended the engine: asking the next one is safe
        raise ConnectionLost(error.message, unsent=True) from error
    return tokens if isinstance(tokens, list) else None


async def detokenize(upstream: Upstream, traits: Traits, tokens: Sequence[int]) -> str:
    """Return the text of `tokens`. Raises BadRequest if the engine cannot."""
    route = traits.tokenizer
    if route is None:
        raise BadRequest("cannot use 'context': the engine has no tokenizer route")
    body: dict[str, object] = {route.tokens_field: list(tokens)}
    if traits.model_name:
        body["model"] = traits.model_name
    try:
        text = (await fetch_json(upstream, route.detokenize_path, body)).get(route.text_field)
    except ConnectionLost:
        raise
    except VllamaError as error:
        raise BadRequest("cannot use 'context': it holds tokens of another model") from error
    return text if isinstance(text, str) else ""


@lru_cache(maxsize=64)
def compiled(source: str, bos: str, eos: str) -> ChatTemplate:
    """Compile a chat template once."""
    return ChatTemplate(source, bos, eos)


def template_of(info: ModelInfo) -> ChatTemplate | None:
    """Return the model's own chat template, compiled, or None if it has none."""
    if not info.chat_template:
        return None
    return compiled(info.chat_template, info.bos_token or "", info.eos_token or "")


def dropped_header(prompt: Prompt) -> dict[str, str]:
    """Return the header that says how many messages were cut, which Ollama does in silence."""
    return {DROPPED_HEADER: str(prompt.dropped)} if prompt.dropped else {}


class Prompt:
    """A conversation as the engine will see it, counted with the engine's own tokenizer."""

    def __init__(self, info: ModelInfo, upstream: Upstream, traits: Traits) -> None:
        self._info = info
        self._upstream = upstream
        self._traits = traits
        self._template = template_of(info)
        self.text: str | None = None
        self.tokens: int | None = None
        self.dropped = 0

    async def fit(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, object]],
        *,
        truncate: bool,
        think: bool | None,
    ) -> Sequence[Message]:
        """Return the messages that fit into the context; count them on the way.

        Oldest messages go first, system messages and the last one stay (contract §3.6).
        Nothing is counted for an engine that counts by itself. Raises ContextOverflow.
        """
        if self._template is None or self._traits.usage_in_stream:
            return messages
        kwargs = {} if think is None else {"enable_thinking": think}
        try:
            text = self._render(messages, tools, kwargs)
        except BadRequest as error:
            # the engine renders for itself; only our count is missing then
            log.info("cannot count the prompt: %s", error.message)
            return messages
        await self.count(text)
        limit = self._traits.context_length - 1
        kept = messages
        while self.tokens is not None and self.tokens > limit:
            # each round removes the share that is over, so that two rounds are the rule
            spare = max(1, round(len(kept) * (1 - limit / self.tokens)))
            kept, dropped = fit_messages(kept, len, len(kept) - spare)
            if not truncate or not dropped:
                self.check()
            self.dropped += dropped
            await self.count(self._render(kept, tools, kwargs))
        return kept

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, object]],
        kwargs: dict[str, bool],
    ) -> str:
        assert self._template is not None
        plain = [replace(message, images=()) for message in messages]
        return self._template.render(plain, tools=tools, now=time.time(), **kwargs)

    async def count(self, text: str) -> None:
        """Count a finished prompt."""
        self.text = text
        tokens = await tokenize(self._upstream, self._traits, text)
        if tokens is None:
            return
        self.tokens = len(tokens)
        bos = self._info.bos_token
        if bos and self._info.adds_bos and text.startswith(bos):
            self.tokens -= 1  # the tokenizer route puts one more before the template's own

    def check(self) -> None:
        """Raise ContextOverflow if the counted prompt leaves no room for an answer."""
        if self.tokens is not None and self.tokens >= self._traits.context_length:
            raise ContextOverflow(
                f"the prompt is longer than the available context length: it has {self.tokens} "
                f"tokens, the context {self._traits.context_length}",
                hint="shorten it, or load the model with a larger num_ctx",
            )

    async def context(self, answer: str) -> list[int] | None:
        """Return the tokens of prompt and answer together, for `context`."""
        if self.text is None:
            return None
        return await tokenize(self._upstream, self._traits, self.text + answer)
