"""An engine's tokenizer: its routes, spelled as its traits say."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from vllama.base import executors
from vllama.base.errors import BadRequest, CapabilityMissing, UpstreamError, VllamaError
from vllama.chat.bodies import MAX_TEXT
from vllama.chat.engine.claims import read_count
from vllama.chat.engine.context import check_text
from vllama.chat.engine.refusals import clean_engine_error
from vllama.chat.engine.traits import Traits, remember_for_traits
from vllama.chat.request import Call
from vllama.models.headers.info import control_tokens
from vllama.models.types import ModelInfo
from vllama.net.upstream.connection import ConnectionLost
from vllama.net.upstream.pool import Upstream

log = logging.getLogger(__name__)

NO_ROUTE = frozenset({404, 405, 501})
COUNTED = ("model", "messages", "system", "tools", "tool_choice", "thinking")
"""What of Anthropic's requests has tokens, or chooses the template's way."""
MAX_ANSWER_BYTES = 8 * MAX_TEXT  # a token a character

_ANCHOR = "a"
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_MOST_CUT = 4
"""The bytes of a character in UTF-8, and so the tokens that it may be cut into."""
_AT_ONCE = 16
"""Questions to a tokenizer."""

_T = TypeVar("_T")


async def fetch_field(
    upstream: Upstream, path: str, body: Mapping[str, Any], name: str, kind: type[_T]
) -> _T | None:
    """POST JSON to an engine and return a field of its JSON object; None if it is missing.

    Raises CapabilityMissing if it has no such route, UpstreamError and kin.
    """
    answer = await upstream.fetch(Call(path=path, fields=body))
    if answer.status in NO_ROUTE:
        raise CapabilityMissing(f"the engine has no {path} route")
    if answer.status != 200:
        raise clean_engine_error(answer.status, answer.body, answer.headers)
    try:
        if len(answer.body) > MAX_ANSWER_BYTES:
            raise ValueError
        field = msgspec.json.decode(answer.body, type=dict[str, msgspec.Raw]).get(name, b"null")
        return msgspec.json.decode(field, type=kind | None)
    except (ValueError, RecursionError):
        raise clean_engine_error(502, answer.body) from None


def find_unknown(tokens: Iterable[int], vocab_size: int | None) -> int | None:
    """Return a token that the model does not have: an engine might die of it."""
    most = math.inf if vocab_size is None else vocab_size
    return next((token for token in tokens if not 0 <= token < most), None)


async def tokenize(
    upstream: Upstream, traits: Traits, text: str, *, special: bool = False
) -> list[int] | None:
    """Return the engine's tokens of `text`, None if it has no tokenizer route.

    `special`: with those that the model puts around an input, where the route leaves them out.
    Raises BadRequest for a text that is longer than any context.
    """
    check_text(text, traits)
    route = traits.tokenizer
    if route is None:
        return None
    body: dict[str, object] = {route.input_field: text}
    if special and route.special_field:
        body[route.special_field] = True
    if traits.model_name:
        body["model"] = traits.model_name
    try:
        tokens = await fetch_field(upstream, route.tokenize_path, body, "tokens", list[int])
    except CapabilityMissing:  # a server elsewhere may be behind a proxy that hides it
        return None
    except ConnectionLost as error:
        # splitting a text cannot have ended the engine: asking the next one is safe
        raise ConnectionLost(error.message, unsent=True) from error
    return tokens


async def count_conversation(
    upstream: Upstream,
    traits: Traits,
    asked: Mapping[str, object] | None,
    chat: Mapping[str, object],
) -> int | None:
    """Return the tokens of a conversation that the engine itself renders, None if it cannot count.

    `asked` is the request in Anthropic's form, if it came so, `chat` in OpenAI's.
    """
    named: dict[str, object] = {"model": traits.model_name} if traits.model_name else {}
    route = traits.tokenizer
    tries: list[tuple[str, str, dict[str, object]]] = []
    if traits.count_tokens_path is not None and asked is not None:
        told = {name: asked[name] for name in COUNTED if name in asked}
        tries.append((traits.count_tokens_path, "input_tokens", {**told, **named}))
    if route is not None and route.messages_field is not None:
        kept = {name: chat[name] for name in ("tools", "chat_template_kwargs") if name in chat}
        messages = {route.messages_field: chat["messages"]}
        tries.append((route.tokenize_path, "count", {**kept, **messages, **named}))
    for path, answer, body in tries:
        try:
            counted = await fetch_field(upstream, path, body, answer, int)
        except (CapabilityMissing, UpstreamError, BadRequest) as error:
            log.info("cannot count tokens with %s: %s", path, error.message)
            continue
        if (count := read_count(counted, f"the response of {path}")) is not None:
            return count
    return None


@remember_for_traits
def _pieces(traits: Traits) -> dict[int, str]:
    """Return where the texts of an engine's tokens are kept."""
    return {}


async def name_tokens(upstream: Upstream, traits: Traits, tokens: Sequence[int]) -> list[str]:
    """Return the text of each token; together they are the whole text.

    A character that is cut into several tokens stands at the last of them. Raises BadRequest if
    the engine cannot.
    """
    known = _pieces(traits)
    before = await tokenize(upstream, traits, _ANCHOR) or []
    anchor = before[-1:]  # without one, some tokenizers take away the space before a word
    start = len(await detokenize(upstream, traits, anchor)) if anchor else 0

    async def read(part: Sequence[int]) -> str:
        return (await detokenize(upstream, traits, [*anchor, *part]))[start:]

    new = [token for token in dict.fromkeys(tokens) if token not in known]
    for first in range(0, len(new), _AT_ONCE):
        batch = new[first : first + _AT_ONCE]
        texts = await asyncio.gather(*(read([token]) for token in batch))
        known.update(zip(batch, texts, strict=True))
    pieces: list[str] = []
    cut: list[int] = []  # tokens of a character that is not whole yet
    for token in tokens:
        piece = known[token]
        if cut or _BROKEN in piece:
            cut.append(token)
            piece = await read(cut)
            if piece.endswith(_BROKEN) and len(cut) < _MOST_CUT:
                piece = ""
            else:
                cut = []
        pieces.append(piece)
    if cut:  # the text ends inside a character
        pieces[-1] = await read(cut)
    return pieces


async def detokenize(upstream: Upstream, traits: Traits, tokens: Sequence[int]) -> str:
    """Return the text of `tokens`. Raises BadRequest if the engine cannot."""
    route = traits.tokenizer
    if route is None:
        raise BadRequest("cannot use 'context': the engine has no tokenizer route")
    body: dict[str, object] = {"tokens": list(tokens)}
    if traits.model_name:
        body["model"] = traits.model_name
    try:
        text = await fetch_field(upstream, route.detokenize_path, body, route.text_field, str)
    except ConnectionLost:
        raise
    except VllamaError as error:
        raise BadRequest("cannot use 'context': it has tokens of another model") from error
    return text or ""


async def decode_tokens(
    info: ModelInfo, upstream: Upstream, traits: Traits, tokens: Sequence[int]
) -> str:
    """Return the text that `tokens` are, their marks of turns included. Raises BadRequest."""
    if traits.tokenizer is None or not traits.tokenizer.drops_control:
        return await detokenize(upstream, traits, tokens)
    control = await executors.disk.run(control_tokens, info)
    parts: list[str] = []
    for is_control, group in itertools.groupby(tokens, lambda token: token in control):
        some = list(group)
        if is_control:
            parts += [control[token] for token in some]
        else:
            parts.append(await detokenize(upstream, traits, some))
    return "".join(parts)
