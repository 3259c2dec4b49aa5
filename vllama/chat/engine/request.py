"""Requests to an engine, in OpenAI's dialect as this engine speaks it.

The engine is always asked to stream, so that it stops when its client leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllama.base.errors import BadRequest
from vllama.chat.engine.fields import (
    engine_body,
    need_completions,
    need_logprobs,
    put_completion_format,
    put_max_tokens,
    put_model,
    put_sampling,
    put_think,
)
from vllama.chat.engine.messages import write_messages
from vllama.chat.engine.traits import Traits, VectorStyle
from vllama.chat.go_json import encode_json
from vllama.chat.request import Call, PreparedChat, Sampling
from vllama.chat.schema import check_grammar, check_schema

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
EMBEDDING_PATH = "/v1/embeddings"

# fields that only chat routes know
_OF_CHATS = ("chat_template_kwargs",)


def make_chat_call(chat: PreparedChat, sampling: Sampling, traits: Traits) -> Call:
    """Build a chat request. Raises CapabilityMissing for what the engine lacks, BadRequest."""
    body = _begin(chat, sampling, traits)
    body["messages"] = write_messages(chat.messages, traits, chat.model)
    put_max_tokens(body, sampling.max_tokens, traits, default_is_small=False)
    if chat.response_format is not None:
        body["response_format"] = chat.response_format
    if chat.tools:
        body["tools"] = list(chat.tools)
        body.update(chat.tool_fields)
    put_think(body, chat.think, traits)
    _put_continuation(body, chat, traits)
    if chat.logprobs:
        body["logprobs"] = True
        body["top_logprobs"] = max(1, chat.top_logprobs)  # some engines give none at all for 0
    if chat.n > 1:
        body["n"] = chat.n
    return Call(path=CHAT_PATH, body=engine_body(body, traits))


def make_completion_call(
    chat: PreparedChat, prompt: str | Sequence[int], sampling: Sampling, traits: Traits
) -> Call:
    """Build a completion of a finished prompt; a limit is always sent, the default being 16.

    Raises CapabilityMissing for what the engine lacks.
    """
    need_completions(traits)
    body = _begin(chat, sampling, traits)
    for name in _OF_CHATS:
        body.pop(name, None)
    body["prompt"] = prompt
    put_max_tokens(body, sampling.max_tokens, traits, default_is_small=True)
    put_completion_format(body, chat.response_format, traits)
    if chat.logprobs:
        body["logprobs"] = max(1, chat.top_logprobs)
    if chat.n > 1:
        body["n"] = chat.n
    return Call(path=COMPLETION_PATH, body=engine_body(body, traits))


def make_embed_call(texts: str | Sequence[str], traits: Traits, *, model: str) -> Call:
    """Build an embeddings request for one text or several."""
    given: str | list[str] = texts if isinstance(texts, str) else list(texts)
    if traits.vector_style is VectorStyle.PER_TOKEN:
        # no token, no vector: llama.cpp's Python server fails
        given = (given or " ") if isinstance(given, str) else [text or " " for text in given]
    body = {
        "model": traits.model_name or model,
        "input": given,
        "encoding_format": "float",
    }
    return Call(path=EMBEDDING_PATH, body=encode_json(body))


def _begin(chat: PreparedChat, sampling: Sampling, traits: Traits) -> dict[str, Any]:
    """Return what chats and completions have alike. Raises BadRequest, CapabilityMissing."""
    body: dict[str, Any] = dict(chat.extra)
    for name in traits.refused_fields:
        if name in body:
            raise BadRequest(f"Unrecognized request argument supplied: {name}")
    own = traits.completion_schema or ""
    if isinstance(body.get(own), dict):  # the engine's own word for it
        body[own] = check_schema(body[own])
    if isinstance(grammar := body.get("grammar"), str):
        check_grammar(grammar)
    if chat.logprobs:
        need_logprobs(traits, chat.model)
    put_model(body, traits, chat.model)
    put_sampling(body, sampling, traits)
    return body


def _put_continuation(body: dict[str, Any], chat: PreparedChat, traits: Traits) -> None:
    """Ask the engine to continue the last message, if it is an answer and the engine knows how.

    What the client said about it wins.
    """
    own = "continue_final_message" in body or "add_generation_prompt" in body
    if traits.takes_continue_final_message and not own and chat.continues:
        body["continue_final_message"] = True
        body["add_generation_prompt"] = False
