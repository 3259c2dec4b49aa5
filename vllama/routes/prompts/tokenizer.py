"""An engine's tokenizer: its routes, spelled as its traits say."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence

import msgspec

from vllama.chat.engine.traits import Traits
from vllama.chat.request import Call
from vllama.dialects.errors import clean_engine_error
from vllama.errors import BadRequest, CapabilityMissing, UpstreamError, VllamaError
from vllama.models.info import control_tokens
from vllama.models.types import ModelInfo
from vllama.upstream.connection import ConnectionLost
from vllama.upstream.pool import Upstream

log = logging.getLogger(__name__)

NO_ROUTE = frozenset({404, 405, 501})
MAX_TEXT = 6_000_000
"""Characters that are given to a tokenizer: more than a million tokens, as a list 36 bytes each."""


async def fetch_json(upstream: Upstream, path: str, body: object) -> dict[str, object]:
    """POST JSON to an engine and return its JSON object.

    Raises CapabilityMissing if it has no such route, UpstreamError and kin.
    """
    answer = await upstream.fetch(Call(path=path, body=msgspec.json.encode(body)))
    if answer.status in NO_ROUTE:
        raise CapabilityMissing(f"the engine has no route {path}")
    if answer.status != 200:
        raise clean_engine_error(answer.status, answer.body)
    value = msgspec.json.decode(answer.body)
    if not isinstance(value, dict):
        raise clean_engine_error(502, answer.body)
    return value


def check_length(characters: int) -> None:
    """Raise BadRequest for a text that is longer than any context."""
    if characters > MAX_TEXT:
        raise BadRequest(
            f"the input is too long: it has {characters} characters, {MAX_TEXT} are the most"
        )


async def tokenize(
    upstream: Upstream, traits: Traits, text: str, *, special: bool = False
) -> list[int] | None:
    """Return the engine's tokens of `text`, None if it has no tokenizer route.

    `special`: with those that the model puts around an input, where the route leaves them out.
    Raises BadRequest for a text that is longer than any context.
    """
    route = traits.tokenizer
    if route is None:
        return None
    check_length(len(text))
    body: dict[str, object] = {route.input_field: text}
    if special and route.special_field:
        body[route.special_field] = True
    if traits.model_name:
        body["model"] = traits.model_name
    try:
        tokens = (await fetch_json(upstream, route.tokenize_path, body)).get("tokens")
    except CapabilityMissing:  # a server elsewhere may be behind a proxy that hides it
        return None
    except ConnectionLost as error:
        # splitting a text cannot have ended the engine: asking the next one is safe
        raise ConnectionLost(error.message, unsent=True) from error
    return tokens if isinstance(tokens, list) else None


async def count_conversation(
    upstream: Upstream, traits: Traits, asked: Mapping[str, object], chat: Mapping[str, object]
) -> int | None:
    """Return the tokens of a conversation that the engine itself renders, None if it cannot count.

    `asked` is the request in Anthropic's form, `chat` in OpenAI's.
    """
    named: dict[str, object] = {"model": traits.model_name} if traits.model_name else {}
    route = traits.tokenizer
    tries: list[tuple[str, str, dict[str, object]]] = []
    if traits.count_tokens_path is not None:
        tries.append((traits.count_tokens_path, "input_tokens", {**asked, **named}))
    if route is not None and route.messages_field is not None:
        kept = {name: chat[name] for name in ("tools", "chat_template_kwargs") if name in chat}
        messages = {route.messages_field: chat["messages"]}
        tries.append((route.tokenize_path, "count", {**kept, **messages, **named}))
    for path, answer, body in tries:
        try:
            count = (await fetch_json(upstream, path, body)).get(answer)
        except (CapabilityMissing, UpstreamError, BadRequest) as error:
            log.info("cannot count by %s: %s", path, error.message)
            continue
        if isinstance(count, int):
            return count
    return None


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


async def decode_tokens(
    info: ModelInfo, upstream: Upstream, traits: Traits, tokens: Sequence[int]
) -> str:
    """Return the text that `tokens` are, their marks of turns included. Raises BadRequest."""
    if traits.tokenizer is None or not traits.tokenizer.drops_control:
        return await detokenize(upstream, traits, tokens)
    control = await asyncio.to_thread(control_tokens, info)
    parts: list[str] = []
    for is_control, group in itertools.groupby(tokens, lambda token: token in control):
        some = list(group)
        if is_control:
            parts += [control[token] for token in some]
        else:
            parts.append(await detokenize(upstream, traits, some))
    return "".join(parts)
