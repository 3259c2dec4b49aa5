"""Requests to an engine, in OpenAI's dialect as this engine speaks it.

The engine is always asked to stream, so that it stops when its client leaves. Messages: see
docs/reference/engines.md#llama-cpp-python-requests; docs/reference/ollama-api.md#chat.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from vllama.base.errors import BadRequest, CapabilityMissing
from vllama.chat.bodies import encode_json
from vllama.chat.engine.fields import (
    finish_body,
    need_completions,
    need_logprobs,
    put_completion_format,
    put_max_tokens,
    put_model,
    put_sampling,
    put_think,
)
from vllama.chat.engine.traits import Traits, VectorStyle
from vllama.chat.parsers.call_values import ToolCall
from vllama.chat.request import Call, Message, PreparedChat, Sampling

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
EMBEDDING_PATH = "/v1/embeddings"

# fields that only chat routes know
_OF_CHATS = ("chat_template_kwargs",)
FORMS = ("response_format", "json_schema", "grammar", "structured_outputs", "regex", "ebnf")
"""Fields that hold a response to a form."""


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
    return Call(path=CHAT_PATH, fields=finish_body(body, traits), grammar=_find_grammar(body))


IN_ONE = frozenset(
    ("echo", "prompt_logprobs", "return_prompt_text", "return_token_ids", "use_beam_search")
)
"""Fields of a chat that vLLM refuses, or does not answer, in a stream."""


def ask_in_one(call: Call) -> Call:
    """Return a call whose answer comes as one object."""
    left_out = ("stream_options", "stream_interval")
    fields = {name: value for name, value in call.fields.items() if name not in left_out}
    return msgspec.structs.replace(call, fields=fields | {"stream": False})


def make_completion_call(
    chat: PreparedChat,
    prompt: object,
    sampling: Sampling,
    traits: Traits,
    own: Mapping[str, Any] | None = None,
) -> Call:
    """Build a completion of a finished prompt; a limit is always sent, the default being 16.

    `own` are fields that the client wrote, for an engine that takes all of them: nothing is added.
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
    if own is not None:
        left_out = {"max_tokens"} if own["stream"] else {"max_tokens", "stream_options"}
        body = {name: x for name, x in body.items() if name not in left_out}
        body |= {name: x for name, x in own.items() if x is not None}
    fields = finish_body(body, traits)
    return Call(path=COMPLETION_PATH, fields=fields, grammar=_find_grammar(body))


def _find_grammar(body: Mapping[str, Any]) -> bytes:
    found = {name: body[name] for name in FORMS if body.get(name)}
    return encode_json(found) if found else b""


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
    return Call(path=EMBEDDING_PATH, fields=body)


def _begin(chat: PreparedChat, sampling: Sampling, traits: Traits) -> dict[str, Any]:
    """Return the fields that chats and completions share. Raises BadRequest, CapabilityMissing."""
    body: dict[str, Any] = dict(chat.extra)
    for name in traits.refused_fields:
        if name in body:
            raise BadRequest(f"Unrecognized request argument supplied: {name}")
    if chat.logprobs:
        need_logprobs(traits, chat.model)
    put_model(body, traits, chat.model)
    if chat.is_whole:
        body.update(traits.whole_fields)
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


KNOWN_ROLES = frozenset({"system", "user", "assistant", "tool"})
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)


def write_messages(messages: Sequence[Message], traits: Traits, model: str) -> list[dict[str, Any]]:
    """Return the messages in OpenAI's form.

    Raises CapabilityMissing for media that the model does not take, BadRequest for a role that the
    engine refuses and for unreadable media.
    """
    pending: list[tuple[str, str]] = []  # (id, name) of calls that wait for their result
    out = []
    for number, message in enumerate(messages):
        item: dict[str, Any] = {
            "role": map_role(message.role, traits),
            "content": _content(message, traits, model),
        }
        if message.thinking is not None and traits.reasoning_field and message.role == "assistant":
            item[traits.reasoning_field] = message.thinking
        if message.tool_calls:
            ids = [call.id or f"call_{number}_{n}" for n, call in enumerate(message.tool_calls)]
            item["tool_calls"] = list(map(_call, message.tool_calls, ids))
            pending.extend(zip(ids, (call.name for call in message.tool_calls), strict=True))
        name = message.tool_name
        if message.role == "tool":
            item["tool_call_id"], name = _find_call(message, pending)
        if name:
            item["name"] = name
        out.append({**item, **message.extra} if message.extra else item)
    return out


def map_role(role: str, traits: Traits) -> str:
    """Return a message's role as the engine takes it. Raises BadRequest for one that it refuses.

    A role that nobody knows becomes a user's: Ollama, too, answers what comes with any role.
    """
    if traits.roles is None or role in traits.roles:
        return role
    known = "system" if role == "developer" else role
    if role and known not in KNOWN_ROLES:
        return "user"
    if known not in traits.roles:
        raise BadRequest(
            f"invalid role '{role[:40]}': use system, user, assistant or tool"
            if role
            else "a message has no role: use system, user, assistant or tool"
        )
    return known


def _content(message: Message, traits: Traits, model: str) -> object:
    """Return a text, or parts where there is more than text or the client sent parts."""
    parts: list[Mapping[str, Any]] = [_check_part(part, traits, model) for part in message.parts]
    if message.images:
        if message.content:
            parts.append({"type": "text", "text": message.content})
        parts += [_media_part(image, traits, model) for image in message.images]
    elif not traits.takes_content_parts and not message.media:
        parts = []
    if parts:
        return parts
    return message.content if message.has_content or not traits.takes_nulls else None


def _check_part(part: Mapping[str, Any], traits: Traits, model: str) -> Mapping[str, Any]:
    """Refuse media that the model does not take."""
    if part["type"] == "input_audio":
        _need_audio(traits, model)
    elif part["type"] == "image_url":
        _need_images(traits, model)
    return part


def _media_part(data: str, traits: Traits, model: str) -> dict[str, object]:
    """Return the part of one base64 image or wav."""
    kind = _media_type(data)
    if kind == "audio/wav":
        _need_audio(traits, model)
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    _need_images(traits, model)
    if kind is None:
        raise BadRequest("cannot read the image: not PNG, JPEG, WebP or GIF")
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}


def _need_images(traits: Traits, model: str) -> None:
    if not traits.takes_images:
        raise CapabilityMissing(f'"{model}" does not support vision')


def _need_audio(traits: Traits, model: str) -> None:
    if not traits.takes_audio:
        raise CapabilityMissing(f'"{model}" does not support audio')


def _media_type(data: str) -> str | None:
    """Tell the kind of a base64 file by its first bytes."""
    try:
        head = binascii.a2b_base64(data[:24])
    except binascii.Error:
        return None
    if head[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(head[8:12])
    return next((kind for prefix, kind in _SIGNATURES if head.startswith(prefix)), None)


def _call(call: ToolCall, call_id: str) -> dict[str, object]:
    arguments = call.text or msgspec.json.encode(call.arguments).decode()
    function = {"name": call.name, "arguments": arguments}
    return {**call.extra, "id": call_id, "type": "function", "function": function}


def _find_call(message: Message, pending: list[tuple[str, str]]) -> tuple[str, str]:
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
