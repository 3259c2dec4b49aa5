"""Ollama's requests: what bodies are decoded into (its `api/types.go`).

See docs/reference/ollama-api.md#conventions.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Self, TypeAlias

import msgspec

from vllama.base.units import parse_keep_alive
from vllama.chat.bodies import Body, convert
from vllama.chat.engine.request_fields import check_code
from vllama.chat.request import MAX_MESSAGES, MAX_TOOLS
from vllama.dialects.ollama.options import describe_options

THINK_LEVELS = ("high", "medium", "low", "max")
_PARTS = "|".join(
    rf"([0-9]{{1,{digits}}}(\.[0-9]*)?|\.[0-9]+){unit}"
    for digits, unit in ((12, "(ns|us|µs|μs|ms)"), (9, "s"), (7, "m"), (5, "h"))
)
DURATION = f"^[+-]?(0|({_PARTS}){{1,9}})$"
"""Go's durations, such as `1h30m`; more digits or parts may be more than 292 years."""
BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_BASE64 = re.compile(r"[A-Za-z0-9+/]*+={0,2}")
MAX_INT = 2**63 - 1
_MAX_FLOAT32 = 3.4028235677973366e38  # what rounds to more is no float32

Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-MAX_INT, le=MAX_INT)]
Float32: TypeAlias = Annotated[float, msgspec.Meta(gt=-_MAX_FLOAT32, lt=_MAX_FLOAT32)]


def is_base64(text: str) -> bool:
    """Tell whether a text is a file, and not where one is: no path has this form by chance."""
    return len(text) % 4 == 0 and _BASE64.fullmatch(text) is not None


class Duration(float):
    """Seconds; `math.inf` is forever."""

    schema: ClassVar[dict[str, Any]] = {
        "anyOf": [{"type": "number"}, {"type": "string", "pattern": DURATION}]
    }

    @classmethod
    def read(cls, value: object) -> Self:
        """Read a number of seconds, or a duration such as `5m`."""
        return cls(parse_keep_alive(value) or 0.0)


class Images(list[str | None]):
    """Pictures or sounds in base64, which may have line breaks."""

    schema: ClassVar[dict[str, Any]] = {
        "type": "array",
        "items": {"type": ["string", "null"], "contentEncoding": "base64", "pattern": BASE64},
    }

    @classmethod
    def read(cls, value: object) -> Self:
        """Read a list of texts, without their line breaks."""
        images = cls()
        for number, image in enumerate(convert(value, list[str | None])):
            text = (image or "").replace("\n", "").replace("\r", "")
            if not is_base64(text):
                raise ValueError(f"Expected base64 - at `$[{number}]`")
            images.append(image and text)
        return images


class Options(dict[str, Any]):
    """Parameters of a model."""

    schema: ClassVar[dict[str, Any]] = {"additionalProperties": {}, **describe_options()}

    @classmethod
    def read(cls, value: object) -> Self:
        """Read a map. Raises Forbidden for what may be code."""
        check_code({"options": value})
        return cls(value if isinstance(value, dict) else convert(value, dict[str, Any]))


# -- tools -----------------------------------------------------------------------------------


class ToolProperty(msgspec.Struct):
    """A parameter of a function."""

    type: str | list[str | None] | None = None
    items: Any = None
    description: str | None = None
    enum: list[Any] | None = None
    required: list[str | None] | None = None
    any_of: list[ToolProperty | None] | None = msgspec.field(name="anyOf", default=None)
    properties: dict[str, ToolProperty | None] | None = None


class ToolParameters(msgspec.Struct):
    """The arguments of a function, as a JSON schema."""

    type: str | None = None
    items: Any = None
    required: list[str | None] | None = None
    properties: dict[str, ToolProperty | None] | None = None
    definitions: Any = msgspec.field(name="$defs", default=None)


class ToolFunction(msgspec.Struct):
    """A function that the model may call."""

    name: str | None = None
    description: str | None = None
    parameters: ToolParameters | None = None


class Tool(msgspec.Struct):
    """A tool that the model may use."""

    type: str | None = None
    items: Any = None
    function: ToolFunction | None = None


_CHECKED_TOOLS = Annotated[list[Tool | None], msgspec.Meta(max_length=MAX_TOOLS)]


class Tools(list[dict[str, Any] | None]):
    """Tools as the client wrote them: their schemas have more fields than Ollama reads."""

    schema: ClassVar[dict[str, Any]] = {
        "type": "array",
        "items": {"anyOf": [{"$ref": "#/components/schemas/Tool"}, {"type": "null"}]},
    }

    @classmethod
    def read(cls, value: Any) -> Self:
        """Check tools, and keep them as they are."""
        convert(value, _CHECKED_TOOLS)
        return cls(value)


# -- chats and prompts -----------------------------------------------------------------------


class OllamaCalledFunction(Body):
    """The call of a function."""

    index: Int | None = None
    name: str = ""
    arguments: dict[str, Any] = {}


class OllamaCall(Body):
    """A call."""

    id: str = ""
    function: OllamaCalledFunction = msgspec.field(default_factory=OllamaCalledFunction)


class OllamaMessage(Body):
    """A turn of a conversation."""

    role: str = ""
    content: str = ""
    thinking: str = ""
    images: Images | None = None
    tool_calls: list[OllamaCall | None] = []
    tool_name: str = ""
    tool_call_id: str = ""


Messages: TypeAlias = Annotated[list[OllamaMessage | None], msgspec.Meta(max_length=MAX_MESSAGES)]


class InferenceBody(Body):
    """What chats and prompts share."""

    model: str = ""
    stream: bool = True
    format: Any = None
    keep_alive: Duration | None = None
    options: Options = msgspec.field(default_factory=Options)
    think: bool | str | None = None
    truncate: bool = True
    shift: bool = True
    debug_render_only: bool = msgspec.field(name="_debug_render_only", default=False)
    logprobs: bool = False
    top_logprobs: Int = 0
    inspect: Any = None


class ChatBody(InferenceBody):
    """`POST /api/chat`."""

    messages: Messages = []
    tools: Tools = msgspec.field(default_factory=Tools)


class GenerateBody(InferenceBody):
    """`POST /api/generate`."""

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    context: list[Int | None] = []
    raw: bool = False
    images: Images | None = None


class EmbedBody(Body):
    """`POST /api/embed`."""

    model: str = ""
    input: Any = None
    keep_alive: Duration | None = None
    truncate: bool = True
    dimensions: Int = 0
    options: Options = msgspec.field(default_factory=Options)


class LegacyEmbedBody(Body):
    """`POST /api/embeddings`."""

    model: str = ""
    prompt: str = ""
    keep_alive: Duration | None = None
    options: Options = msgspec.field(default_factory=Options)


# -- models ----------------------------------------------------------------------------------


class CreateBody(Body):
    """`POST /api/create`."""

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
    license: str | list[str | None] | None = None
    system: str = ""
    parameters: dict[str, Any] = {}
    messages: Messages = []
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    info: dict[str, Any] = {}


class ShowBody(Body):
    """`POST /api/show`; `plan` is our own."""

    model: str = ""
    name: str = ""
    system: str = ""
    template: str = ""
    verbose: bool = False
    options: Options = msgspec.field(default_factory=Options)
    plan: bool = False


class CopyBody(Body):
    """`POST /api/copy`."""

    source: str = ""
    destination: str = ""


class DeleteBody(Body):
    """`DELETE /api/delete`; `force` is our own."""

    model: str = ""
    name: str = ""
    force: bool = False


class PushBody(Body):
    """`POST /api/push`."""

    model: str = ""
    name: str = ""
    insecure: bool = False
    username: str = ""
    password: str = ""
    stream: bool = True


class PullBody(PushBody):
    """`POST /api/pull`; `background` is our own."""

    background: bool = False


# -- routes that Ollama does not have, or not in this form -------------------------------------


class PlanBody(Body):
    """`POST /api/plan`."""

    model: str = ""
    name: str = ""
    engine: str = ""
    context_length: Int | None = None
    gpu_layers: Int | None = None
    strict: bool | None = None


class TokenizeBody(Body):
    """`POST /api/tokenize` and `/api/detokenize`; a text has one of three names."""

    model: str = ""
    name: str = ""
    text: str | None = None
    content: str | None = None
    prompt: str | None = None
    tokens: list[Int | None] | None = None
    keep_alive: Duration | None = None
