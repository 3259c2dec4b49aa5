"""Ollama's requests: what bodies are decoded into (its `api/types.go`).

See docs/reference/ollama-api.md#conventions.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Self, TypeAlias

import msgspec

from vllama.base.meaning import TEXT, Schema, make_integer, make_word, says
from vllama.base.units import parse_keep_alive
from vllama.chat.bodies import Body, convert
from vllama.chat.engine.request_fields import check_code
from vllama.chat.logprobs import MAX_LOGPROBS
from vllama.chat.request import MAX_MESSAGES, MAX_TOOLS
from vllama.dialects.ollama.options import OPTION_SCHEMAS

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

Model: TypeAlias = Annotated[str, says(format="model", required=True)]
PulledModel: TypeAlias = Annotated[str, says(format="pulled-model", required=True)]
NewModel: TypeAlias = Annotated[str, says(format="new-model", required=True)]
"""Names of models: `routes.describe.schemas` has the pattern and the sentence of each format."""
AT_MOST = msgspec.Meta(le=MAX_INT)
"""The limit of integers of which the least is checked later."""
Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-MAX_INT, le=MAX_INT)]
Float32: TypeAlias = Annotated[float, msgspec.Meta(gt=-_MAX_FLOAT32, lt=_MAX_FLOAT32)]


def is_base64(text: str) -> bool:
    """Tell whether a text is a file, and not where one is: no path has this form by chance."""
    return len(text) % 4 == 0 and _BASE64.fullmatch(text) is not None


class Duration(float):
    """Seconds; `math.inf` is forever."""

    @classmethod
    def read(cls, value: object) -> Self:
        """Read a number of seconds, or a duration such as `5m`."""
        return cls(parse_keep_alive(value) or 0.0)


class Images(list[str | None]):
    """Images or audio, base64-encoded; line breaks are allowed."""

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


_IMAGE: Schema = {"type": ["string", "null"], "contentEncoding": "base64", "pattern": BASE64}
IMAGES = says("images or audio, base64-encoded", type="array", items=_IMAGE)


class Options(dict[str, Any]):
    """Model options."""

    @classmethod
    def read(cls, value: object) -> Self:
        """Read a map. Raises Forbidden for what may be code."""
        check_code({"options": value})
        return cls(value if isinstance(value, dict) else convert(value, dict[str, Any]))


# -- tools -----------------------------------------------------------------------------------


class ToolProperty(msgspec.Struct):
    """A function parameter, as a JSON schema."""

    type: str | list[str | None] | None = None
    items: Any = None
    description: str | None = None
    enum: list[Any] | None = None
    required: list[str | None] | None = None
    any_of: list[ToolProperty | bool | None] | None = msgspec.field(name="anyOf", default=None)
    properties: dict[str, ToolProperty | bool | None] | None = None


class ToolParameters(msgspec.Struct):
    """A function's parameters, as a JSON schema."""

    type: str | None = None
    items: Any = None
    required: list[str | None] | None = None
    properties: dict[str, ToolProperty | bool | None] | None = None
    definitions: Any = msgspec.field(name="$defs", default=None)


class ToolFunction(msgspec.Struct):
    """A function that the model can call."""

    name: str | None = None
    description: Annotated[str | None, says("description of the function for the model")] = None
    parameters: ToolParameters | None = None


class Tool(msgspec.Struct):
    """A tool that the model can call."""

    type: str | None = None
    items: Any = None
    function: ToolFunction | None = None


_CHECKED_TOOLS = Annotated[list[Tool | None], msgspec.Meta(max_length=MAX_TOOLS)]


class Tools(list[dict[str, Any] | None]):
    """Tools as the client wrote them: their schemas have more fields than Ollama reads."""

    @classmethod
    def read(cls, value: Any) -> Self:
        """Check tools, and keep them as they are."""
        convert(value, _CHECKED_TOOLS)
        return cls(value)


# -- chats and prompts -----------------------------------------------------------------------


class OllamaCalledFunction(Body):
    """A called function."""

    index: Int | None = None
    name: str = ""
    arguments: dict[str, Any] = {}


class OllamaCall(Body):
    """A tool call of the model."""

    id: str = ""
    function: OllamaCalledFunction = msgspec.field(default_factory=OllamaCalledFunction)


class OllamaMessage(Body):
    """A message of the conversation."""

    role: Annotated[str, says("`system`, `user`, `assistant` or `tool`")] = ""
    content: str = ""
    thinking: str = ""
    images: Annotated[Images, IMAGES] | None = None
    tool_calls: list[OllamaCall | None] = []
    tool_name: Annotated[str, says("name of the function with this result")] = ""
    tool_call_id: Annotated[str, says("ID of the tool call with this result")] = ""


Messages: TypeAlias = Annotated[
    list[OllamaMessage | None],
    says("the conversation so far, oldest message first"),
    msgspec.Meta(max_length=MAX_MESSAGES),
]
TOOLS = says(
    "tools that the model can call",
    type="array",
    items={"anyOf": [{"$ref": "#/components/schemas/Tool"}, {"type": "null"}]},
)
OPTIONS = says("model options", type="object", properties=OPTION_SCHEMAS)
KEEP_ALIVE = says(
    "time to keep the model loaded: `10m`, seconds, `-1` (forever), `0` (unload at once)",
    anyOf=[{"type": "number"}, {"type": "string", "pattern": DURATION}],
)
Think: TypeAlias = Annotated[
    bool | Annotated[str, says(enum=[*THINK_LEVELS])] | None,
    says("thinking on or off, or its level"),
]
TRUNCATE = says("false: reject prompts longer than the context instead of truncating them")
SHIFT = says("false: end the response when the context is full")
INSPECT = says(
    "activations to collect, and steering vectors",
    **{"$ref": "#/components/schemas/Inspect"},
)
RENDER_ONLY = says("return the rendered prompt instead of a response")
TOP_LOGPROBS = says("number of alternatives per token", **make_integer(0, MAX_LOGPROBS))
_FORMAT: Schema = {"anyOf": [{"type": "object"}, make_word("json", "")]}
_TEXTS: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}


class OwnFields(Body, kw_only=True):
    """Ollama's fields in requests of the other APIs; `kw_only` has them listed last."""

    options: Annotated[Options, OPTIONS] | None = None
    num_ctx: Annotated[float | None, says("context length, in tokens")] = None
    keep_alive: Annotated[Duration, KEEP_ALIVE] | None = None
    think: Think = None
    truncate: Annotated[bool | None, TRUNCATE] = None
    shift: Annotated[bool | None, SHIFT] = None


class TextFields(OwnFields, kw_only=True):
    """Those of requests for text, with ours."""

    inspect: Annotated[Any, INSPECT] = None


class InferenceBody(Body):
    """Fields of both chat and generate requests."""

    model: Model = ""
    stream: Annotated[bool, says("false: return one object instead of a stream")] = True
    format: Annotated[Any, says("`json`, or a JSON schema for the response", **_FORMAT)] = None
    keep_alive: Annotated[Duration, KEEP_ALIVE] | None = None
    options: Annotated[Options, OPTIONS] = msgspec.field(default_factory=Options)
    think: Think = None
    truncate: Annotated[bool, TRUNCATE] = True
    shift: Annotated[bool, SHIFT] = True
    debug_render_only: Annotated[bool, RENDER_ONLY] = msgspec.field(
        name="_debug_render_only", default=False
    )
    logprobs: Annotated[bool, says("true: return log probabilities")] = False
    top_logprobs: Annotated[int, TOP_LOGPROBS] = 0
    inspect: Annotated[Any, INSPECT] = None


class ChatBody(InferenceBody):
    """`POST /api/chat`."""

    messages: Messages = []
    tools: Annotated[Tools, TOOLS] = msgspec.field(default_factory=Tools)


class GenerateBody(InferenceBody):
    """`POST /api/generate`."""

    prompt: str = ""
    suffix: Annotated[str, says("text after the gap, for fill-in-the-middle")] = ""
    system: Annotated[str, says("system message, in place of the model's own")] = ""
    template: Annotated[str, says("prompt template, in place of the model's own")] = ""
    context: Annotated[
        list[Int | None], says("`context` of an earlier response, to continue it")
    ] = []
    raw: Annotated[bool, says("true: send the prompt without a template")] = False
    images: Annotated[Images, IMAGES] | None = None


class EmbedBody(Body):
    """`POST /api/embed`."""

    model: Model = ""
    input: Annotated[Any, says("text, or several texts", **_TEXTS)] = None
    keep_alive: Annotated[Duration, KEEP_ALIVE] | None = None
    truncate: Annotated[bool | None, TRUNCATE] = None
    dimensions: Annotated[Int, says("number of embedding dimensions to return")] = 0
    options: Annotated[Options, OPTIONS] = msgspec.field(default_factory=Options)


class LegacyEmbedBody(Body):
    """`POST /api/embeddings`."""

    model: Model = ""
    prompt: str = ""
    keep_alive: Annotated[Duration, KEEP_ALIVE] | None = None
    options: Annotated[Options, OPTIONS] = msgspec.field(default_factory=Options)


# -- models ----------------------------------------------------------------------------------


_PART = "[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*"
SHA256 = "^sha256[:-][0-9a-fA-F]{64}$"
Uploads: TypeAlias = Annotated[
    dict[str, Annotated[str, says(pattern=SHA256)] | None],
    says(
        "digests of uploaded files (`/api/blobs`), by file name",
        propertyNames={"pattern": f"^{_PART}(/{_PART})*$"},
    ),
]


class NamedBody(Body):
    """A body that names a model."""

    model: Model = ""
    name: Annotated[str, says("deprecated alias for `model`")] = ""


class CreateBody(NamedBody):
    """`POST /api/create`."""

    model: NewModel = ""
    stream: bool = True
    quantize: Annotated[str, says("quantization to convert to, such as `q4_K_M`")] = ""
    quantization: Annotated[str, says("deprecated alias for `quantize`")] = ""
    draft_quantize: Annotated[str, says("quantization of the draft model")] = ""
    source: Annotated[str, says("base model; required without `files`", format="model")] = (
        msgspec.field(name="from", default="")
    )
    remote_host: Annotated[str, says("not supported; configure remote models as upstreams")] = ""
    files: Uploads | None = None
    draft_files: Uploads = {}
    adapters: Uploads = {}
    template: str = ""
    license: Annotated[str | list[str | None] | None, says("license text, or several texts")] = None
    system: str = ""
    parameters: Annotated[dict[str, Any], OPTIONS] = {}
    messages: Messages = []
    renderer: Annotated[str, says("Ollama's renderer for prompts")] = ""
    parser: Annotated[str, says("Ollama's parser for responses")] = ""
    requires: Annotated[str, says("required Ollama version")] = ""
    info: Annotated[dict[str, Any], says("metadata for the model file")] = {}


class ShowBody(NamedBody):
    """`POST /api/show`; `plan` is a vllama extension."""

    system: str = ""
    template: str = ""
    verbose: Annotated[bool, says("true: include the long arrays of the model file")] = False
    options: Annotated[Options, OPTIONS] = msgspec.field(default_factory=Options)
    plan: Annotated[bool, says("true: include the plan")] = False


class CopyBody(Body):
    """`POST /api/copy`."""

    source: Model = ""
    destination: NewModel = ""


class DeleteBody(NamedBody):
    """`DELETE /api/delete`; `force` is a vllama extension."""

    force: Annotated[bool, says("also delete files shared with other programs")] = False


class PushBody(NamedBody):
    """`POST /api/push`."""

    insecure: Annotated[bool, says("allow plain HTTP")] = False
    username: Annotated[str, says("ignored")] = ""
    password: Annotated[str, says("ignored")] = ""
    stream: bool = True


class PullBody(PushBody):
    """`POST /api/pull`; `background` is a vllama extension."""

    model: PulledModel = ""
    background: Annotated[bool, says("continue after the client disconnects")] = False


# -- routes that Ollama does not have, or not in this form -------------------------------------


LEAST = {"context_length": 1, "gpu_layers": -1}


class PlanBody(NamedBody):
    """`POST /api/plan`."""

    engine: str = ""
    context_length: Annotated[int, AT_MOST, says(minimum=LEAST["context_length"])] | None = None
    gpu_layers: Annotated[int, AT_MOST, says("-1: all", minimum=LEAST["gpu_layers"])] | None = None
    strict: Annotated[bool, says("false: also try other plans")] | None = None
    options: Annotated[Options, OPTIONS] = msgspec.field(default_factory=Options)


Token: TypeAlias = Annotated[int, says(**make_integer(0))]


class TokenizeBody(NamedBody):
    """`POST /api/tokenize`; the text has three accepted names."""

    text: Annotated[str | None, says(required=True)] = None
    content: str | None = None
    prompt: str | None = None
    tokens: list[Int | None] | None = None
    keep_alive: Annotated[Duration, KEEP_ALIVE] | None = None


class DetokenizeBody(TokenizeBody):
    """`POST /api/detokenize`."""

    text: str | None = None
    tokens: Annotated[list[Token | None] | None, says(required=True)] = None
