"""Ollama's requests: what bodies are decoded into (`api/types.go`).

See docs/reference/ollama-api.md#conventions.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec

from vllama.base.errors import MAX_MESSAGE
from vllama.base.units import parse_keep_alive
from vllama.chat.engine.request_fields import check_code
from vllama.chat.go_json import MAX_MESSAGES, MAX_TOOLS, check_messages, check_tools
from vllama.dialects.go_structs import GoStruct, find_struct, list_of, make_struct
from vllama.dialects.go_types import GoError, GoType, Walk, make_enum
from vllama.dialects.go_values import (
    ANY_MAP,
    STRINGS,
    DecodesItself,
    Int,
    Kept,
    LimitedList,
    ListOf,
    OneOf,
    OrderedMapOf,
    anything,
    described,
    image_data,
    string,
)
from vllama.dialects.ollama.options import describe_options

THINK_LEVELS = ("high", "medium", "low", "max")
_PARTS = "|".join(
    rf"([0-9]{{1,{digits}}}(\.[0-9]*)?|\.[0-9]+){unit}"
    for digits, unit in ((12, "(ns|us|µs|μs|ms)"), (9, "s"), (7, "m"), (5, "h"))
)
DURATION = f"^[+-]?(0|({_PARTS}){{1,9}})$"
"""Go's durations, such as `1h30m`; more digits or parts may be more than 292 years."""


@described(make_enum(True, *THINK_LEVELS, None))
def think(value: object, walk: Walk) -> object:
    """Check an `api.ThinkValue`."""
    if value is None or isinstance(value, bool) or value in THINK_LEVELS:
        return value
    if isinstance(value, str):
        raise GoError(
            f'invalid think value: "{value[:MAX_MESSAGE]}" '
            '(must be "high", "medium", "low", "max", true, or false)'
        )
    raise GoError(
        'think must be a boolean or string ("high", "medium", "low", "max", true, or false)'
    )


@described({"anyOf": [{"type": "number"}, {"type": "string", "pattern": DURATION}]})
def keep_alive(value: object, walk: Walk) -> object:
    """Decode an `api.Duration` to seconds."""
    try:
        return parse_keep_alive(value)
    except ValueError as error:
        raise GoError(str(error)) from None


Think: TypeAlias = Annotated[bool | Literal["high", "medium", "low", "max"] | None, think]


class Duration(float):
    """Seconds; `math.inf` is forever."""

    go_type: ClassVar[GoType] = keep_alive


class Images(list[str | None]):
    """Pictures or sounds in base64."""

    go_type: ClassVar[GoType] = ListOf(image_data, "[]api.ImageData")


@described(ANY_MAP.describe({}) | describe_options())
def _check_options(value: object, walk: Walk) -> object:
    """Check a map. Raises Forbidden for what may be code."""
    check_code({"options": value})
    return value if isinstance(value, dict) else ANY_MAP(value, walk)


class Options(dict[str, Any]):
    """Parameters of a model."""

    go_type: ClassVar[GoType] = _check_options


# -- tools -----------------------------------------------------------------------------------


class ToolProperty(GoStruct):
    """A parameter of a function."""

    go_name = "api.ToolProperty"
    type: Annotated[str | list[str | None] | None, OneOf(string, STRINGS)] = None
    items: Any = None
    description: str = ""
    enum: list[Any] = []
    required: list[str | None] = []
    any_of: list[ToolProperty | None] = msgspec.field(name="anyOf", default_factory=list)
    properties: Annotated[
        dict[str, ToolProperty | None], OrderedMapOf(find_struct(ToolProperty))
    ] = {}


_Properties = Annotated[dict[str, ToolProperty | None], OrderedMapOf(find_struct(ToolProperty))]
_DEFINITIONS: dict[str, Any] = {"$defs": Any}
ToolParameters = make_struct(
    "api.ToolFunctionParameters",
    "The arguments of a function, as a JSON schema.",
    type=str,
    items=Any,
    required=list_of(str),
    properties=_Properties,
    **_DEFINITIONS,
)
ToolFunction = make_struct(
    "api.ToolFunction",
    "A function that the model may call.",
    name=str,
    description=str,
    parameters=ToolParameters,
)
Tool = make_struct(
    "api.Tool", "A tool that the model may use.", type=str, items=Any, function=ToolFunction
)


class Tools(list[dict[str, Any] | None]):
    """Tools as the client wrote them: their schemas have more fields than Ollama reads."""

    go_type: ClassVar[GoType] = Kept(
        LimitedList(find_struct(Tool), "api.Tools", check_tools),
        Annotated[list_of(Tool), msgspec.Meta(max_length=MAX_TOOLS)],
    )


# -- chats and prompts -----------------------------------------------------------------------


class CalledFunction(GoStruct):
    """The call of a function."""

    go_name = "api.ToolCallFunction"
    index: Int | None = None
    name: str = ""
    arguments: Annotated[dict[str, Any], OrderedMapOf(anything)] = {}


class CallStruct(GoStruct):
    """A call."""

    go_name = "api.ToolCall"
    id: str = ""
    function: CalledFunction = msgspec.field(default_factory=CalledFunction)


class MessageStruct(GoStruct):
    """A turn of a conversation."""

    go_name = "api.Alias"
    api_name = "api.Message"
    role: str = ""
    content: str = ""
    thinking: str = ""
    images: Images | None = None
    tool_calls: list[CallStruct | None] = []
    tool_name: str = ""
    tool_call_id: str = ""


MESSAGE = DecodesItself(find_struct(MessageStruct))
Messages: TypeAlias = Annotated[
    list[MessageStruct | None],
    msgspec.Meta(max_length=MAX_MESSAGES),
    LimitedList(MESSAGE, "[]api.Message", check_messages),
]


class InferenceBody(GoStruct):
    """What chats and prompts share."""

    model: str = ""
    stream: bool = True
    format: Any = None
    keep_alive: Duration | None = None
    options: Options = msgspec.field(default_factory=Options)
    think: Think = None
    truncate: bool = True
    shift: bool = True
    debug_render_only: bool = msgspec.field(name="_debug_render_only", default=False)
    logprobs: bool = False
    top_logprobs: Int = 0
    inspect: Any = None


class ChatBody(InferenceBody):
    """`POST /api/chat`."""

    go_name = "api.ChatRequest"
    messages: Messages = []
    tools: Tools = msgspec.field(default_factory=Tools)


class GenerateBody(InferenceBody):
    """`POST /api/generate`."""

    go_name = "api.GenerateRequest"
    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    context: list[Int | None] = []
    raw: bool = False
    images: Images | None = None


class EmbedBody(GoStruct):
    """`POST /api/embed`."""

    go_name = "api.EmbedRequest"
    model: str = ""
    input: Any = None
    keep_alive: Duration | None = None
    truncate: bool = True
    dimensions: Int = 0
    options: Options = msgspec.field(default_factory=Options)


class LegacyEmbedBody(GoStruct):
    """`POST /api/embeddings`."""

    go_name = "api.EmbeddingRequest"
    model: str = ""
    prompt: str = ""
    keep_alive: Duration | None = None
    options: Options = msgspec.field(default_factory=Options)


# -- models ----------------------------------------------------------------------------------


class CreateBody(GoStruct):
    """`POST /api/create`."""

    go_name = "api.CreateRequest"
    model: str = ""
    name: str = ""
    stream: bool = True
    quantize: str = ""
    quantization: str = ""
    draft_quantize: str = ""
    source: str = msgspec.field(name="from", default="")
    remote_host: str = ""
    files: dict[str, str | None] | None = None
    draft_files: dict[str, str | None] = {}
    adapters: dict[str, str | None] = {}
    template: str = ""
    license: Any = None
    system: str = ""
    parameters: dict[str, Any] = {}
    messages: Messages = []
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    info: dict[str, Any] = {}


class ShowBody(GoStruct):
    """`POST /api/show`; `plan` is our own."""

    go_name = "api.ShowRequest"
    model: str = ""
    name: str = ""
    system: str = ""
    template: str = ""
    verbose: bool = False
    options: Options = msgspec.field(default_factory=Options)
    plan: bool = False


class CopyBody(GoStruct):
    """`POST /api/copy`."""

    go_name = "api.CopyRequest"
    source: str = ""
    destination: str = ""


class DeleteBody(GoStruct):
    """`DELETE /api/delete`; `force` is our own."""

    go_name = "api.DeleteRequest"
    model: str = ""
    name: str = ""
    force: bool = False


class PushBody(GoStruct):
    """`POST /api/push`."""

    go_name = "api.PushRequest"
    model: str = ""
    name: str = ""
    insecure: bool = False
    username: str = ""
    password: str = ""
    stream: bool = True


class PullBody(PushBody):
    """`POST /api/pull`; `background` is our own."""

    go_name = "api.PullRequest"
    background: bool = False


# -- routes that Ollama does not have, or not in this form -------------------------------------


class PlanBody(GoStruct):
    """`POST /api/plan`."""

    go_name = "PlanRequest"
    model: str = ""
    name: str = ""
    engine: str = ""
    context_length: Int | None = None
    gpu_layers: Int | None = None
    strict: bool | None = None


class TokenizeBody(GoStruct):
    """`POST /api/tokenize` and `/api/detokenize`; a text has one of three names."""

    go_name = "TokenizeRequest"
    model: str = ""
    name: str = ""
    text: str | None = None
    content: str | None = None
    prompt: str | None = None
    tokens: list[Int | None] | None = None
    keep_alive: Duration | None = None


PARAMETERS = find_struct(ToolParameters)
CHAT = find_struct(ChatBody)
GENERATE = find_struct(GenerateBody)
EMBED = find_struct(EmbedBody)
LEGACY_EMBED = find_struct(LegacyEmbedBody)
CREATE = find_struct(CreateBody)
SHOW = find_struct(ShowBody)
COPY = find_struct(CopyBody)
DELETE = find_struct(DeleteBody)
PUSH = find_struct(PushBody)
PULL = find_struct(PullBody)
PLAN = find_struct(PlanBody)
TOKENIZE = find_struct(TokenizeBody)
