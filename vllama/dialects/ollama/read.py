"""Ollama's requests: bytes to frozen values, or BadRequest.

`request_types` has what a body is decoded into, `options` the types of options. An empty model
name is left to the routes, which answer it differently.

See docs/reference/ollama-api.md#generate, #chat, #failures, #keep-alive, #thinking,
#images-and-audio.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from vllama.base.errors import BadRequest
from vllama.chat.bodies import Body, decode_struct, encode_json
from vllama.chat.engine.request_fields import check_code, take_tools
from vllama.chat.inspect import read_inspect
from vllama.chat.logprobs import check_top_logprobs
from vllama.chat.parsers.call_values import ToolCall
from vllama.chat.request import ChatRequest, Message, Think
from vllama.dialects.ollama.request_types import (
    THINK_LEVELS,
    ChatBody,
    GenerateBody,
    Images,
    InferenceBody,
    OllamaCall,
    OllamaMessage,
)

T = TypeVar("T", bound=Body)
_UNKNOWN = "unknown"


def decode_request(body: bytes, python_type: type[T]) -> T:
    """Decode a body. Raises BadRequest, and Forbidden for a field that may be code."""
    return decode_struct(body, python_type, check_code)


def parse_chat(body: bytes) -> ChatRequest:
    """Parse the body of `POST /api/chat`. Raises BadRequest."""
    given = decode_request(body, ChatBody)
    passed_over: list[str] = []
    tools = take_tools([_read_tool(item) for item in given.tools if item is not None], passed_over)
    return ChatRequest(
        messages=tuple([_read_message(item) for item in given.messages]),
        tools=tuple(tools),
        passed_over=tuple(passed_over),
        **_read_common(given),
    )


def parse_generate(body: bytes) -> ChatRequest:
    """Parse the body of `POST /api/generate`: a text, or a conversation of one turn.

    Raises BadRequest.
    """
    given = decode_request(body, GenerateBody)
    prompt, raw, images = given.prompt, given.raw, _read_images(given.images)
    messages: tuple[Message, ...] = ()
    if given.system and (raw or prompt or images):
        messages = (Message(role="system", content=given.system),)
    if not raw and not given.suffix and (prompt or images):
        messages = (*messages, Message(role="user", content=prompt, images=images))
        prompt = ""
    return ChatRequest(
        messages=messages,
        prompt=prompt,
        suffix=given.suffix,
        template=given.template or None,
        context=tuple([token or 0 for token in given.context]),
        raw=raw,
        images=images if raw else (),
        **_read_common(given),
    )


def check_raw(request: ChatRequest) -> None:
    """Refuse fields that have no place in a raw prompt (after the model was found)."""
    if request.raw and (request.messages or request.template or request.context):
        raise BadRequest("raw mode does not support template, system, or context")


def _read_common(given: InferenceBody) -> dict[str, Any]:
    """Read the fields that chats and prompts share."""
    think = read_think(given.think)
    check_top_logprobs(given.top_logprobs)
    return {
        "model": given.model,
        "stream": given.stream,
        "response_format": _response_format(given.format),
        "options": given.options,
        "keep_alive": given.keep_alive,
        "think": think,
        "truncate": given.truncate,
        "shift": given.shift,
        "debug_render_only": given.debug_render_only,
        "logprobs": given.logprobs,
        "top_logprobs": given.top_logprobs if given.logprobs else 0,
        "inspect": read_inspect(given.inspect),
    }


def read_think(value: object) -> Think:
    """Return whether the model thinks, or how much. Raises BadRequest."""
    if value is None or isinstance(value, bool) or value in THINK_LEVELS:
        return value
    raise BadRequest(
        f'invalid think value: "{str(value)[:80]}" '
        '(must be "high", "medium", "low", "max", true, or false)'
    )


def _response_format(value: object) -> dict[str, object] | None:
    """Return `format` in OpenAI's form; what is none of them is refused by `check_format`."""
    match value:
        case None | "":
            return None
        case "json":
            return {"type": "json_object"}
        case dict():
            return {"type": "json_schema", "json_schema": {"name": "response", "schema": value}}
        case _:
            return {"type": _UNKNOWN, "given": value}


def check_format(asked: ChatRequest) -> ChatRequest:
    """Refuse an unknown format, or leave it out where nothing is generated, as Ollama does."""
    wanted = asked.response_format
    if wanted is None or wanted.get("type") != _UNKNOWN:
        return asked
    if asked.is_empty or asked.debug_render_only:
        return msgspec.structs.replace(asked, response_format=None)
    raise make_format_error(wanted.get("given"))


def make_format_error(value: object) -> BadRequest:
    """Return the error for a `format` that is no JSON schema."""
    shown = encode_json(encode_json(value).decode()).decode()
    return BadRequest(f'invalid format: {shown}; expected "json" or a valid JSON Schema object')


def _read_message(item: OllamaMessage | None) -> Message:
    if item is None:
        return Message(role="")
    return Message(
        role=item.role.lower(),
        content=item.content,
        thinking=item.thinking or None,
        images=_read_images(item.images) if item.images else (),
        tool_calls=_read_calls(item.tool_calls) if item.tool_calls else (),
        tool_name=item.tool_name or None,
        tool_call_id=item.tool_call_id or None,
    )


def _read_calls(calls: Sequence[OllamaCall | None]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(
            id=call.id,
            name=call.function.name,
            arguments=call.function.arguments,
            index=position if call.function.index is None else call.function.index,
        )
        for position, call in enumerate(calls)
        if call is not None
    )


def _read_tool(item: dict[str, Any]) -> dict[str, Any]:
    """Return a tool; one with a function is of the one type that Ollama knows."""
    tool = {name: value for name, value in item.items() if value is not None}
    return tool | {"type": "function"} if "function" in tool else tool


def _read_images(images: Images | None) -> tuple[str, ...]:
    return tuple([image for image in images or () if image is not None])
