"""Ollama's requests: bytes to frozen values, or BadRequest with Ollama's text.

The types of options are checked in `options`. An empty model name is left to the routes, which
answer it differently.

See docs/reference/ollama-api.md#generate, #chat, #failures, #keep-alive, #thinking,
#images-and-audio.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from vllama.chat.go_json import Fields, check_messages, encode_json, fold, kind
from vllama.chat.request import ChatRequest, Message, Think
from vllama.dialects.go_types import decode_request, find_error
from vllama.dialects.ollama.request_types import CHAT, GENERATE, keep_alive, think
from vllama.errors import BadRequest
from vllama.parsers.call_values import ToolCall
from vllama.units import parse_keep_alive

_COMMON = (
    "model", "stream", "format", "keep_alive", "options", "think", "truncate", "shift",
    "logprobs", "top_logprobs", "_debug_render_only",
)  # fmt: skip
_CHAT = frozenset((*_COMMON, "messages", "tools"))
_GENERATE = frozenset(
    (*_COMMON, "prompt", "suffix", "system", "template", "context", "raw", "images")
)
_UNKNOWN = "unknown"
_MESSAGE = frozenset(
    ("role", "content", "thinking", "images", "tool_calls", "tool_name", "tool_call_id")
)
_TOOL_CALL = frozenset(("id", "function"))
_FUNCTION = frozenset(("index", "name", "arguments"))

MAX_PLAIN_BYTES = 1024 * 1024  # of what is not first looked at for how much it holds

_THINK_LEVELS = ("high", "medium", "low", "max")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=\r\n]")


class _PlainMessage(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str


class _PlainChat(msgspec.Struct, forbid_unknown_fields=True):
    """The body that most clients send."""

    model: str
    messages: list[_PlainMessage]
    stream: bool = True
    options: dict[str, str | int | float | bool | list[str] | None] = {}
    keep_alive: str | int | float | None = None
    think: bool | str | None = None
    truncate: bool = True


_decode_plain = msgspec.json.Decoder(_PlainChat).decode


def _plain_chat(body: bytes) -> ChatRequest | None:
    """Parse the usual body, whose types are right; None for any other."""
    try:
        found = _decode_plain(body)
    except ValueError:
        return None
    check_messages(found.messages)
    messages = [
        Message(role=message.role.lower(), content=message.content) for message in found.messages
    ]
    if find_error(found.think, think) or find_error(found.keep_alive, keep_alive):
        return None  # the body tells which comes first
    return ChatRequest(
        model=found.model,
        messages=tuple(messages),
        stream=found.stream,
        options=found.options,
        keep_alive=None if found.keep_alive is None else _seconds(found.keep_alive),
        think=None if found.think is None else _think(found.think),
        truncate=found.truncate,
    )


def parse_chat(body: bytes) -> ChatRequest:
    """Parse the body of `POST /api/chat`. Raises BadRequest."""
    if len(body) <= MAX_PLAIN_BYTES and (plain := _plain_chat(body)) is not None:
        return plain
    fields = Fields(decode_request(body, CHAT), "ChatRequest")
    model = fields.text("model")
    messages = fields.items("messages", "[]api.Message")
    check_messages(messages)
    return ChatRequest(
        model=model,
        messages=tuple(_message({} if item is None else item) for item in messages),
        tools=tuple(_tool(item) for item in fields.items("tools", "api.Tools") if item is not None),
        **_common(fields),
    )


def parse_generate(body: bytes) -> ChatRequest:
    """Parse the body of `POST /api/generate`: a text, or a conversation of one turn.

    Raises BadRequest.
    """
    fields = Fields(decode_request(body, GENERATE), "GenerateRequest")
    prompt, suffix, images = fields.text("prompt"), fields.text("suffix"), _images(fields)
    raw = fields.flag("raw", False)
    system = fields.text("system")
    messages: tuple[Message, ...] = ()
    if system and (raw or prompt or images):
        messages = (Message(role="system", content=system),)
    if not raw and not suffix and (prompt or images):
        messages = (*messages, Message(role="user", content=prompt, images=images))
        prompt = ""
    return ChatRequest(
        model=fields.text("model"),
        messages=messages,
        prompt=prompt,
        suffix=suffix,
        template=fields.text("template") or None,
        context=tuple(fields.integers("context")),
        raw=raw,
        **_common(fields),
    )


def check_raw(request: ChatRequest) -> None:
    """Refuse what a raw prompt leaves no place for (after the model was found)."""
    if request.raw and (request.messages or request.template or request.context):
        raise BadRequest("raw mode does not support template, system, or context")


def _common(fields: Fields) -> dict[str, Any]:
    """Read what was given of the fields that chats and prompts share; most give two or three."""
    given = {_READ[name][0]: _READ[name][1](fields) for name in fields if name in _READ}
    if "top_logprobs" in given and not given.get("logprobs"):
        del given["top_logprobs"]  # has no effect alone
    return given


def _top_logprobs(fields: Fields) -> int:
    number = fields.integer("top_logprobs")
    if not 0 <= number <= 20:
        raise BadRequest("top_logprobs must be between 0 and 20")
    return number


def _keep_alive(fields: Fields) -> float | None:
    return _seconds(fields.raw("keep_alive"))


def _seconds(keep_alive: object) -> float | None:
    try:
        return parse_keep_alive(keep_alive)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def _think(value: object) -> Think:
    match value:
        case None | bool():
            return value
        case str() if value in _THINK_LEVELS:
            return value
        case str():
            raise BadRequest(
                f'invalid think value: "{value}" '
                '(must be "high", "medium", "low", "max", true, or false)'
            )
        case _:
            raise BadRequest(
                'think must be a boolean or string ("high", "medium", "low", "max", true, or false)'
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


# how fields are called with us, and how they are read
_READ: dict[str, tuple[str, Callable[[Fields], object]]] = {
    "stream": ("stream", lambda fields: fields.flag("stream", True)),
    "format": ("response_format", lambda fields: _response_format(fields.raw("format"))),
    "options": ("options", lambda fields: fields.mapping("options", "map[string]interface {}")),
    "keep_alive": ("keep_alive", _keep_alive),
    "think": ("think", lambda fields: _think(fields.raw("think"))),
    "truncate": ("truncate", lambda fields: fields.flag("truncate", True)),
    "shift": ("shift", lambda fields: fields.flag("shift", True)),
    "logprobs": ("logprobs", lambda fields: fields.flag("logprobs", False)),
    "top_logprobs": ("top_logprobs", _top_logprobs),
    "_debug_render_only": (
        "debug_render_only",
        lambda fields: fields.flag("_debug_render_only", False),
    ),
}


def _message(item: object) -> Message:
    if not isinstance(item, dict):
        raise BadRequest(
            f"json: cannot unmarshal {kind(item)} into Go struct field "
            "ChatRequest.messages of type api.Message"
        )
    given = fold(item, _MESSAGE)
    fields = Fields(given, "ChatRequest.messages")
    if len(given) == 2 and "role" in given and "content" in given:  # as nearly all have it
        return Message(role=fields.text("role").lower(), content=fields.text("content"))
    calls = fields.items("tool_calls", "[]api.ToolCall")
    return Message(
        role=fields.text("role").lower(),
        content=fields.text("content"),
        thinking=fields.text("thinking") or None,
        images=_images(fields),
        tool_calls=tuple(_tool_call(n, call) for n, call in enumerate(calls) if call is not None),
        tool_name=fields.text("tool_name") or None,
        tool_call_id=fields.text("tool_call_id") or None,
    )


def _tool_call(position: int, item: object) -> ToolCall:
    if not isinstance(item, dict):
        raise BadRequest(
            f"json: cannot unmarshal {kind(item)} into Go struct field "
            "Message.tool_calls of type api.ToolCall"
        )
    outer = Fields(fold(item, _TOOL_CALL), "ChatRequest.messages.tool_calls")
    inner = fold(outer.mapping("function", "api.ToolCallFunction"), _FUNCTION)
    fields = Fields(inner, "ChatRequest.messages.tool_calls.function")
    return ToolCall(
        id=outer.text("id"),
        name=fields.text("name"),
        arguments=fields.mapping("arguments", "api.ToolCallFunctionArguments"),
        index=fields.integer("index", position),
    )


def _tool(item: object) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise BadRequest(
            f"json: cannot unmarshal {kind(item)} into Go struct field "
            "ChatRequest.tools of type api.Tool"
        )
    fields = Fields(fold(item, frozenset(("type", "function"))), "ChatRequest.tools")
    function: Mapping[str, object] = fields.mapping("function", "api.ToolFunction")
    Fields(fold(function, frozenset(("name", "description"))), "ChatRequest.tools.function").text(
        "name"
    )
    return {"type": "function"} | {name: value for name, value in item.items() if value is not None}


def _images(fields: Fields) -> tuple[str, ...]:
    """Check base64 as Go does on decoding: the standard alphabet, padded, no `data:`."""
    images: list[str] = []
    for item in fields.items("images", "[]api.ImageData"):
        if item is None:
            continue
        if not isinstance(item, str):
            fields.refuse("images", item, "api.ImageData")
        text = item
        wrong = _NOT_BASE64.search(text)
        if wrong is not None:
            raise BadRequest(f"illegal base64 data at input byte {wrong.start()}")
        if "\n" in text or "\r" in text:
            text = text.replace("\n", "").replace("\r", "")
        try:
            binascii.a2b_base64(text, strict_mode=True)
        except binascii.Error:
            raise BadRequest(f"illegal base64 data at input byte {len(text)}") from None
        images.append(text)
    return tuple(images)
