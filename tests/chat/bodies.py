"""What an engine is sent for a request, without its prompt being rendered or counted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from vllama.chat.bodies import Body
from vllama.chat.engine.fields import make_schema_format
from vllama.chat.engine.request import make_chat_call, make_completion_call
from vllama.chat.engine.traits import Traits
from vllama.chat.prepare import prepare_chat
from vllama.chat.request import Call, ChatRequest, Message, PreparedChat, Sampling
from vllama.chat.templates.template_style import Style
from vllama.dialects.openai.completions import parse_completion
from vllama.dialects.openai.read import parse_openai, read_chat
from vllama.dialects.openai.request_types import ChatCompletionBody, CompletionBody


def parse(body: Mapping[str, Any], python_type: type[Body]) -> dict[str, Any]:
    """Return a body as it comes to its reader: its fields have their types."""
    return parse_openai(json.dumps({"model": "m", **body}).encode(), python_type)


def adapt_chat(
    body: Mapping[str, Any],
    traits: Traits,
    *,
    defaults: Sampling | None = None,
    style: Style | None = None,
) -> tuple[Any, PreparedChat]:
    """Return the engine's body for a chat in OpenAI's form, and the chat that it is made of."""
    asked = read_chat(parse(body, ChatCompletionBody))
    chat = prepare_chat(asked, traits, style)
    sampling = replace(defaults or Sampling(), **{**asked.assumed, **asked.parameters})
    return json.loads(make_chat_call(chat, sampling, traits).encode()), chat


def adapt_completion(
    body: Mapping[str, Any], traits: Traits, *, defaults: Sampling | None = None
) -> Any:
    """Return the engine's body for an OpenAI client's completion of a finished text."""
    asked = parse_completion(parse(body, CompletionBody))
    request = asked.read_prompt(asked.prompts[0], truncate=True)
    chat = prepare_chat(replace(request, messages=()), traits, None)
    sampling = replace(defaults or Sampling(), **{**request.assumed, **request.parameters})
    return json.loads(make_completion_call(chat, asked.prompts[0], sampling, traits).encode())


def prepared(
    traits: Traits,
    messages: Sequence[Message] = (),
    *,
    format: object = None,
    **fields: Any,
) -> PreparedChat:
    """Return a chat as `traits` take it; `format` is Ollama's."""
    wanted = make_schema_format(format) if isinstance(format, dict) else None
    asked = ChatRequest(
        model="m",
        messages=tuple(messages),
        response_format={"type": "json_object"} if format == "json" else wanted,
        **fields,
    )
    return prepare_chat(asked, traits, None)


def chat_call(
    messages: Sequence[Message], sampling: Sampling, traits: Traits, **fields: Any
) -> Call:
    """Return the call for a chat of our own values."""
    return make_chat_call(prepared(traits, messages, **fields), sampling, traits)


def completion_call(
    prompt: str | list[int], sampling: Sampling, traits: Traits, **fields: Any
) -> Call:
    """Return the call for a finished prompt."""
    return make_completion_call(prepared(traits, **fields), prompt, sampling, traits)
