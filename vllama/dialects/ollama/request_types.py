"""The fields of Ollama's requests and their types (`api/types.go`).

See docs/reference/ollama-api.md#conventions.
"""

from __future__ import annotations

from vllama.dialects.go_types import (
    ANY_MAP,
    STRINGS,
    GoError,
    Struct,
    Walk,
    anything,
    boolean,
    decodes_itself,
    image_data,
    integer,
    list_of,
    map_of,
    messages_of,
    one_of,
    ordered_map_of,
    string,
)
from vllama.units import parse_keep_alive

THINK_LEVELS = ("high", "medium", "low", "max")


def think(value: object, walk: Walk) -> None:
    """Check an `api.ThinkValue`."""
    if value is None or isinstance(value, bool) or value in THINK_LEVELS:
        return
    if isinstance(value, str):
        raise GoError(
            f'invalid think value: "{value}" '
            '(must be "high", "medium", "low", "max", true, or false)'
        )
    raise GoError(
        'think must be a boolean or string ("high", "medium", "low", "max", true, or false)'
    )


def keep_alive(value: object, walk: Walk) -> None:
    """Check an `api.Duration`."""
    try:
        parse_keep_alive(value)
    except ValueError as error:
        raise GoError(str(error)) from None


STRING_MAP = map_of(string, "map[string]string")
IMAGES = list_of(image_data, "[]api.ImageData")

PROPERTY = Struct(
    "api.ToolProperty",
    {
        "type": one_of(string, STRINGS),
        "items": anything,
        "description": string,
        "enum": list_of(anything, "[]interface {}"),
        "required": STRINGS,
    },
)
PROPERTY.add("anyOf", list_of(PROPERTY, "[]api.ToolProperty"))
PROPERTY.add("properties", ordered_map_of(PROPERTY))
PARAMETERS = Struct(
    "api.ToolFunctionParameters",
    {
        "type": string,
        "$defs": anything,
        "items": anything,
        "required": STRINGS,
        "properties": ordered_map_of(PROPERTY),
    },
)
FUNCTION = Struct(
    "api.ToolFunction", {"name": string, "description": string, "parameters": PARAMETERS}
)
TOOL = Struct("api.Tool", {"type": string, "items": anything, "function": FUNCTION})

ARGUMENTS = ordered_map_of(anything)
CALLED_FUNCTION = Struct(
    "api.ToolCallFunction", {"index": integer, "name": string, "arguments": ARGUMENTS}
)
TOOL_CALL = Struct("api.ToolCall", {"id": string, "function": CALLED_FUNCTION})
MESSAGE_FIELDS = {
    "role": string,
    "content": string,
    "thinking": string,
    "images": IMAGES,
    "tool_calls": list_of(TOOL_CALL, "[]api.ToolCall"),
    "tool_name": string,
    "tool_call_id": string,
}
MESSAGE = decodes_itself(Struct("api.Alias", MESSAGE_FIELDS))
MESSAGES = messages_of(MESSAGE, "[]api.Message")

_INFERENCE = {
    "model": string,
    "stream": boolean,
    "format": anything,
    "keep_alive": keep_alive,
    "options": ANY_MAP,
    "think": think,
    "truncate": boolean,
    "shift": boolean,
    "_debug_render_only": boolean,
    "logprobs": boolean,
    "top_logprobs": integer,
}
CHAT = Struct(
    "api.ChatRequest",
    {**_INFERENCE, "messages": MESSAGES, "tools": list_of(TOOL, "api.Tools")},
)
GENERATE = Struct(
    "api.GenerateRequest",
    {
        **_INFERENCE,
        "prompt": string,
        "suffix": string,
        "system": string,
        "template": string,
        "context": list_of(integer, "[]int"),
        "raw": boolean,
        "images": IMAGES,
    },
)
EMBED = Struct(
    "api.EmbedRequest",
    {
        "model": string,
        "input": anything,
        "keep_alive": keep_alive,
        "truncate": boolean,
        "dimensions": integer,
        "options": ANY_MAP,
    },
)
LEGACY_EMBED = Struct(
    "api.EmbeddingRequest",
    {"model": string, "prompt": string, "keep_alive": keep_alive, "options": ANY_MAP},
)
CREATE = Struct(
    "api.CreateRequest",
    {
        "model": string,
        "name": string,
        "stream": boolean,
        "quantize": string,
        "quantization": string,
        "draft_quantize": string,
        "from": string,
        "remote_host": string,
        "files": STRING_MAP,
        "draft_files": STRING_MAP,
        "adapters": STRING_MAP,
        "template": string,
        "license": anything,
        "system": string,
        "parameters": ANY_MAP,
        "messages": MESSAGES,
        "renderer": string,
        "parser": string,
        "requires": string,
        "info": ANY_MAP,
    },
)
SHOW = Struct(
    "api.ShowRequest",
    {
        "model": string,
        "name": string,
        "system": string,
        "template": string,
        "verbose": boolean,
        "options": ANY_MAP,
        "plan": boolean,  # our own: the plan by which the model is or would be loaded
    },
)
COPY = Struct("api.CopyRequest", {"source": string, "destination": string})
DELETE = Struct(
    "api.DeleteRequest",
    {"model": string, "name": string, "force": boolean},  # `force` is our own
)
_TRANSFER = {
    "model": string,
    "name": string,
    "insecure": boolean,
    "username": string,
    "password": string,
    "stream": boolean,
}
PULL = Struct("api.PullRequest", _TRANSFER)
PUSH = Struct("api.PushRequest", _TRANSFER)
TOKENIZE = Struct(
    "TokenizeRequest",  # our own: Ollama has no such route
    {
        "model": string,
        "name": string,
        "text": string,
        "content": string,
        "prompt": string,
        "tokens": list_of(integer, "[]int"),
        "keep_alive": keep_alive,
    },
)
