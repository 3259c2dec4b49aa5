"""The fields of Ollama's requests and their types (`api/types.go`).

See docs/reference/ollama-api.md#conventions.
"""

from __future__ import annotations

from vllama.dialects.go_types import GoError, GoType, Struct, Walk
from vllama.dialects.go_values import (
    ANY_MAP,
    STRINGS,
    DecodesItself,
    ListOf,
    MapOf,
    MessagesOf,
    OneOf,
    OrderedMapOf,
    anything,
    boolean,
    described,
    image_data,
    integer,
    string,
)
from vllama.units import parse_keep_alive

THINK_LEVELS = ("high", "medium", "low", "max")
_PARTS = "|".join(
    rf"([0-9]{{1,{digits}}}(\.[0-9]*)?|\.[0-9]+){unit}"
    for digits, unit in ((12, "(ns|us|µs|μs|ms)"), (9, "s"), (7, "m"), (5, "h"))
)
DURATION = f"^[+-]?(0|({_PARTS}){{1,9}})$"
"""Go's durations, such as `1h30m`; more digits or parts may be more than 292 years."""


@described({"enum": [True, False, None, *THINK_LEVELS]})
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


@described({"anyOf": [{"type": "number"}, {"type": "string", "pattern": DURATION}]})
def keep_alive(value: object, walk: Walk) -> None:
    """Check an `api.Duration`."""
    try:
        parse_keep_alive(value)
    except ValueError as error:
        raise GoError(str(error)) from None


STRING_MAP = MapOf(string, "map[string]string")
IMAGES = ListOf(image_data, "[]api.ImageData")

PROPERTY = Struct(
    "api.ToolProperty",
    {
        "type": OneOf(string, STRINGS),
        "items": anything,
        "description": string,
        "enum": ListOf(anything, "[]interface {}"),
        "required": STRINGS,
    },
)
PROPERTY.add("anyOf", ListOf(PROPERTY, "[]api.ToolProperty"))
PROPERTY.add("properties", OrderedMapOf(PROPERTY))
PARAMETERS = Struct(
    "api.ToolFunctionParameters",
    {
        "type": string,
        "$defs": anything,
        "items": anything,
        "required": STRINGS,
        "properties": OrderedMapOf(PROPERTY),
    },
)
FUNCTION = Struct(
    "api.ToolFunction", {"name": string, "description": string, "parameters": PARAMETERS}
)
TOOL = Struct("api.Tool", {"type": string, "items": anything, "function": FUNCTION})

ARGUMENTS = OrderedMapOf(anything)
CALLED_FUNCTION = Struct(
    "api.ToolCallFunction", {"index": integer, "name": string, "arguments": ARGUMENTS}
)
TOOL_CALL = Struct("api.ToolCall", {"id": string, "function": CALLED_FUNCTION})
MESSAGE_FIELDS: dict[str, GoType] = {
    "role": string,
    "content": string,
    "thinking": string,
    "images": IMAGES,
    "tool_calls": ListOf(TOOL_CALL, "[]api.ToolCall"),
    "tool_name": string,
    "tool_call_id": string,
}
MESSAGE = DecodesItself(Struct("api.Alias", MESSAGE_FIELDS))
MESSAGES = MessagesOf(MESSAGE, "[]api.Message")

_INFERENCE: dict[str, GoType] = {
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
    {**_INFERENCE, "messages": MESSAGES, "tools": ListOf(TOOL, "api.Tools")},
)
GENERATE = Struct(
    "api.GenerateRequest",
    {
        **_INFERENCE,
        "prompt": string,
        "suffix": string,
        "system": string,
        "template": string,
        "context": ListOf(integer, "[]int"),
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
_TRANSFER: dict[str, GoType] = {
    "model": string,
    "name": string,
    "insecure": boolean,
    "username": string,
    "password": string,
    "stream": boolean,
}
PULL = Struct("api.PullRequest", _TRANSFER | {"background": boolean})  # our own: `background`
PLAN = Struct(
    "PlanRequest",  # our own: Ollama has no such route
    {
        "model": string,
        "name": string,
        "engine": string,
        "context_length": integer,
        "gpu_layers": integer,
        "strict": boolean,
    },
)
PUSH = Struct("api.PushRequest", _TRANSFER)
TOKENIZE = Struct(
    "TokenizeRequest",  # our own: Ollama has no such route
    {
        "model": string,
        "name": string,
        "text": string,
        "content": string,
        "prompt": string,
        "tokens": ListOf(integer, "[]int"),
        "keep_alive": keep_alive,
    },
)
