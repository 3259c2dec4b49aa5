"""Requests to an engine, in OpenAI's dialect as this engine speaks it.

`make_chat_call`, `make_completion_call` and `make_embed_call` take our own values (Ollama's
routes), `make_rendered_call` the body of a chat that is to be sent as a completion. The engine is
always asked to stream, so that it stops when its client leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from vllama.chat.engine.fields import (
    engine_body,
    make_media_part,
    make_response_format,
    map_role,
    need_completions,
    need_logprobs,
    need_tools,
    put_completion_format,
    put_continuation,
    put_max_tokens,
    put_model,
    put_sampling,
    put_think,
)
from vllama.chat.engine.traits import Traits, VectorStyle
from vllama.chat.go_json import encode_json
from vllama.chat.request import Call, Format, Message, Sampling, Think, ToolCall

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
EMBEDDING_PATH = "/v1/embeddings"


def make_chat_call(
    messages: Sequence[Message],
    sampling: Sampling,
    traits: Traits,
    *,
    model: str,
    format: Format = None,
    tools: Sequence[Mapping[str, object]] = (),
    think: Think = None,
    logprobs: bool = False,
    top_logprobs: int = 0,
) -> Call:
    """Build a chat request. Raises CapabilityMissing for what the engine lacks, BadRequest."""
    body: dict[str, Any] = {"messages": _messages(messages, traits, model)}
    put_model(body, traits, model)
    put_sampling(body, sampling, traits)
    put_max_tokens(body, sampling.max_tokens, traits, default_is_small=False)
    wanted = make_response_format(format, traits)
    if wanted is not None:
        body["response_format"] = wanted
    if tools:
        need_tools(traits)
        body["tools"] = [_tool(tool) for tool in tools]
        if traits.silent_tool_choice is not None and not traits.parses_tools:
            body["tool_choice"] = traits.silent_tool_choice
    # a grammar that holds from the first token on leaves no room for thinking
    constrained = wanted is not None and not traits.splits_reasoning
    put_think(body, False if constrained else think, traits)
    put_continuation(body, traits)
    if logprobs or top_logprobs:
        need_logprobs(traits, model)
        body["logprobs"] = True
        body["top_logprobs"] = max(1, top_logprobs)  # some engines give none at all for 0
    return Call(path=CHAT_PATH, body=engine_body(body, traits))


def make_completion_call(
    prompt: str | Sequence[int],
    sampling: Sampling,
    traits: Traits,
    *,
    model: str,
    suffix: str | None = None,
    format: Format = None,
    logprobs: int = 0,
) -> Call:
    """Build a completion of a finished prompt; a limit is always sent, the default being 16.

    Raises CapabilityMissing for what the engine lacks.
    """
    need_completions(traits)
    body: dict[str, Any] = {"prompt": prompt}
    put_model(body, traits, model)
    put_sampling(body, sampling, traits)
    put_max_tokens(body, sampling.max_tokens, traits, default_is_small=True)
    if suffix:
        body["suffix"] = suffix
    put_completion_format(body, make_response_format(format, traits), traits)
    if logprobs:
        need_logprobs(traits, model)
        body["logprobs"] = logprobs
    return Call(path=COMPLETION_PATH, body=engine_body(body, traits))


def make_embed_call(texts: str | Sequence[str], traits: Traits, *, model: str) -> Call:
    """Build an embeddings request for one text or several."""
    given: str | list[str] = texts if isinstance(texts, str) else list(texts)
    if (
        traits.vector_style is VectorStyle.PER_TOKEN
    ):  # no token, no vector: llama.cpp's Python server fails
        given = (given or " ") if isinstance(given, str) else [text or " " for text in given]
    body = {
        "model": traits.model_name or model,
        "input": given,
        "encoding_format": "float",
    }
    return Call(path=EMBEDDING_PATH, body=encode_json(body))


def _tool(tool: Mapping[str, object]) -> dict[str, object]:
    return {"type": "function"} | {name: v for name, v in tool.items() if v is not None}


def _messages(messages: Sequence[Message], traits: Traits, model: str) -> list[dict[str, Any]]:
    pending: list[tuple[str, str]] = []  # (id, name) of calls that wait for their result
    out = []
    for number, message in enumerate(messages):
        role = map_role(message.role, traits)
        item: dict[str, Any] = {"role": role, "content": message.content}
        if message.images:
            parts: list[dict[str, object]] = []
            if message.content:
                parts.append({"type": "text", "text": message.content})
            parts.extend(make_media_part(image, traits, model) for image in message.images)
            item["content"] = parts
        if message.thinking and traits.reasoning_field and message.role == "assistant":
            item[traits.reasoning_field] = message.thinking
        if message.tool_calls:
            ids = [call.id or f"call_{number}_{n}" for n, call in enumerate(message.tool_calls)]
            item["tool_calls"] = [
                _call(call, call_id) for call, call_id in zip(message.tool_calls, ids, strict=True)
            ]
            names = (call.name for call in message.tool_calls)
            pending.extend(zip(ids, names, strict=True))
        if message.role == "tool":
            call_id, name = _answered(message, pending)
            item["tool_call_id"] = call_id
            if name:
                item["name"] = name
        out.append(item)
    return out


def _call(call: ToolCall, call_id: str) -> dict[str, object]:
    arguments = msgspec.json.encode(call.arguments).decode()
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _answered(message: Message, pending: list[tuple[str, str]]) -> tuple[str, str]:
    """Find the call that a tool's message answers: by id, else by name, else the oldest.

    Ollama's clients name the tool where OpenAI's engines want the call's id.
    """
    found = None
    for entry in pending:
        if message.tool_call_id is not None:
            matches = entry[0] == message.tool_call_id
        else:
            matches = message.tool_name is None or entry[1] == message.tool_name
        if matches:
            found = entry
            break
    if found is None and message.tool_call_id is None and pending:
        found = pending[0]
    if found is None:
        return message.tool_call_id or "call_0", message.tool_name or ""
    pending.remove(found)
    return found[0], message.tool_name or found[1]


_OF_CHATS = (
    "messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs",
    "reasoning_effort", "response_format", "logprobs", "top_logprobs",
)  # fmt: skip


def make_rendered_call(body: bytes, prompt: str | Sequence[int], traits: Traits) -> Call:
    """Return the completion of a finished prompt, with the settings of a chat's `body`.

    Raises CapabilityMissing if the engine has no completions.
    """
    need_completions(traits)
    chat: dict[str, Any] = msgspec.json.decode(body)
    out = {name: value for name, value in chat.items() if name not in _OF_CHATS}
    out["prompt"] = prompt
    put_completion_format(out, chat.get("response_format"), traits)
    if chat.get("logprobs"):
        out["logprobs"] = max(1, chat.get("top_logprobs") or 0)
    if traits.parameters.get("max_tokens", "max_tokens") not in out:
        put_max_tokens(out, None, traits, default_is_small=True)
    return Call(path=COMPLETION_PATH, body=msgspec.json.encode(out))
