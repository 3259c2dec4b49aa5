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
    """Pictures or sounds in base64, which may have line breaks."""

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
IMAGES = says("pictures or sounds in base64", type="array", items=_IMAGE)


class Options(dict[str, Any]):
    """Parameters of a model."""

    @classmethod
    def read(cls, value: object) -> Self:
        """Read a map. Raises Forbidden for what may be code."""
        check_code({"options": value})
        return cls(value if isinstance(value, dict) else convert(value, dict[str, Any]))


# -- tools -----------------------------------------------------------------------------------


class ToolProperty(msgspec.Struct):
    """A parameter of a function, as a JSON schema."""

    type: str | list[str | None] | None = None
    items: Any = None
    description: str | None = None
    enum: list[Any] | None = None
    required: list[str | None] | None = None
    any_of: list[ToolProperty | bool | None] | None = msgspec.field(name="anyOf", default=None)
    properties: dict[str, ToolProperty | bool | None] | None = None


class ToolParameters(msgspec.Struct):
    """The arguments of a function, as a JSON schema."""

    type: str | None = None
    items: Any = None
    required: list[str | None] | None = None
    properties: dict[str, ToolProperty | bool | None] | None = None
    definitions: Any = msgspec.field(name="$defs", default=None)


class ToolFunction(msgspec.Struct):
    """A function that the model may call."""

    name: str | None = None
    description: Annotated[str | None, says("the purpose of the function, for the model")] = None
    parameters: ToolParameters | None = None


class Tool(msgspec.Struct):
    """A tool that the model may use."""

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
    """The call of a function."""

    index: Int | None = None
    name: str = ""
    arguments: dict[str, Any] = {}


class OllamaCall(Body):
    """A call that the model made."""

    id: str = ""
    function: OllamaCalledFunction = msgspec.field(default_factory=OllamaCalledFunction)


class OllamaMessage(Body):
    """A turn of a conversation."""

    role: Annotated[str, says("`system`, `user`, `assistant` or `tool`")] = ""
    content: str = ""
    thinking: str = ""
    images: Annotated[Images, IMAGES] | None = None
    tool_calls: list[OllamaCall | None] = []
    tool_name: Annotated[str, says("the function with this result")] = ""
    tool_call_id: Annotated[str, says("the call with this result")] = ""


Messages: TypeAlias = Annotated[
    list[OllamaMessage | None],
    says("the conversation so far, the oldest message first"),
    msgspec.Meta(max_length=MAX_MESSAGES),
]
TOOLS = says(
    "functions that the model may call",
    type="array",
    items={"anyOf": [{"$ref": "#/components/schemas/Tool"}, {"type": "null"}]},
)
OPTIONS = says("parameters of the model", type="object", properties=OPTION_SCHEMAS)
KEEP_ALIVE = says(
    "how long the model stays loaded: `10m`, seconds, `-1` forever, `0` not at all",
    anyOf=[{"type": "number"}, {"type": "string", "pattern": DURATION}],
)
Think: TypeAlias = Annotated[
    bool | Annotated[str, says(enum=[*THINK_LEVELS])] | None,
    says("whether the model thinks first, or how much"),
]
TRUNCATE = says("false: a prompt longer than the context is refused, not cut")
SHIFT = says("false: the response ends when the context is full")
INSPECT = says(
    "what to collect inside the model, and how to steer it",
    **{"$ref": "#/components/schemas/Inspect"},
)
RENDER_ONLY = says("respond with the rendered prompt")
TOP_LOGPROBS = says("alternatives to each token", **make_integer(0, MAX_LOGPROBS))
_FORMAT: Schema = {"anyOf": [{"type": "object"}, make_word("json", "")]}
_TEXTS: Schema = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}


class OwnFields(Body, kw_only=True):
    """Ollama's fields in requests of the other APIs; `kw_only` has them listed last."""

    options: Annotated[Options, OPTIONS] | None = None
    num_ctx: Annotated[float | None, says("the context length in tokens")] = None
    keep_alive: Annotated[Duration, KEEP_ALIVE] | None = None
    think: Think = None
    truncate: Annotated[bool | None, TRUNCATE] = None
    shift: Annotated[bool | None, SHIFT] = None


class TextFields(OwnFields, kw_only=True):
    """Those of requests for text, with ours."""

    inspect: Annotated[Any, INSPECT] = None


class InferenceBody(Body):
    """Fields that chats and prompts share."""

    model: Model = ""
    stream: Annotated[bool, says("false: one object at the end")] = True
    format: Annotated[Any, says("`json`, or a JSON schema of the response", **_FORMAT)] = None
    keep_alive: Annotated[Duration, KEEP_ALIVE] | None = None
    options: Annotated[Options, OPTIONS] = msgspec.field(default_factory=Options)
    think: Think = None
    truncate: Annotated[bool, TRUNCATE] = True
    shift: Annotated[bool, SHIFT] = True
    debug_render_only: Annotated[bool, RENDER_ONLY] = msgspec.field(
        name="_debug_render_only", default=False
    )
    logprobs: Annotated[bool, says("whether log probabilities of tokens are returned")] = False
    top_logprobs: Annotated[int, TOP_LOGPROBS] = 0
    inspect: Annotated[Any, INSPECT] = None


class ChatBody(InferenceBody):
    """`POST /api/chat`."""

    messages: Messages = []
    tools: Annotated[Tools, TOOLS] = msgspec.field(default_factory=Tools)


class GenerateBody(InferenceBody):
    """`POST /api/generate`."""

    prompt: str = ""
    suffix: Annotated[str, says("the text after the response, which is inserted before it")] = ""
    system: Annotated[str, says("the system message, in place of the model's own")] = ""
    template: Annotated[str, says("the prompt template, in place of the model's own")] = ""
    context: Annotated[
        list[Int | None], says("`context` of an earlier response, to continue from")
    ] = []
    raw: Annotated[bool, says("send the prompt without a template")] = False
    images: Annotated[Images, IMAGES] | None = None


class EmbedBody(Body):
    """`POST /api/embed`."""

    model: Model = ""
    input: Annotated[Any, says("a text, or several", **_TEXTS)] = None
    keep_alive: Annotated[Duration, KEEP_ALIVE] | None = None
    truncate: Annotated[bool | None, TRUNCATE] = None
    dimensions: Annotated[Int, says("how many numbers of each vector are kept")] = 0
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
        "files that were uploaded to `/api/blobs`: their digests by their names",
        propertyNames={"pattern": f"^{_PART}(/{_PART})*$"},
    ),
]


class NamedBody(Body):
    """A body that names a model."""

    model: Model = ""
    name: Annotated[str, says("the older word for `model`")] = ""


class CreateBody(NamedBody):
    """`POST /api/create`."""

    model: NewModel = ""
    stream: bool = True
    quantize: Annotated[str, says("the quantization to convert to, such as `q4_K_M`")] = ""
    quantization: Annotated[str, says("the older word for `quantize`")] = ""
    draft_quantize: Annotated[str, says("the quantization of the draft model")] = ""
    source: Annotated[str, says("the base model, unless there are `files`", format="model")] = (
        msgspec.field(name="from", default="")
    )
    remote_host: Annotated[str, says("refused: models on other servers are settings")] = ""
    files: Uploads | None = None
    draft_files: Uploads = {}
    adapters: Uploads = {}
    template: str = ""
    license: Annotated[str | list[str | None] | None, says("a text, or several")] = None
    system: str = ""
    parameters: Annotated[dict[str, Any], OPTIONS] = {}
    messages: Messages = []
    renderer: Annotated[str, says("Ollama's renderer for prompts of the model")] = ""
    parser: Annotated[str, says("Ollama's parser for responses of the model")] = ""
    requires: Annotated[str, says("the version of Ollama that is needed")] = ""
    info: Annotated[dict[str, Any], says("metadata for the model file")] = {}


class ShowBody(NamedBody):
    """`POST /api/show`; `plan` is our own."""

    system: str = ""
    template: str = ""
    verbose: Annotated[bool, says("with the long arrays of the model file")] = False
    options: Annotated[Options, OPTIONS] = msgspec.field(default_factory=Options)
    plan: Annotated[bool, says("with the plan that the model is loaded by")] = False


class CopyBody(Body):
    """`POST /api/copy`."""

    source: Model = ""
    destination: NewModel = ""


class DeleteBody(NamedBody):
    """`DELETE /api/delete`; `force` is our own."""

    force: Annotated[bool, says("also delete files that other programs share")] = False


class PushBody(NamedBody):
    """`POST /api/push`."""

    insecure: Annotated[bool, says("allow plain HTTP to a registry")] = False
    username: Annotated[str, says("ignored")] = ""
    password: Annotated[str, says("ignored")] = ""
    stream: bool = True


class PullBody(PushBody):
    """`POST /api/pull`; `background` is our own."""

    model: PulledModel = ""
    background: Annotated[bool, says("go on without a client")] = False


# -- routes that Ollama does not have, or not in this form -------------------------------------


LEAST = {"context_length": 1, "gpu_layers": -1}


class PlanBody(NamedBody):
    """`POST /api/plan`."""

    engine: str = ""
    context_length: Annotated[int, AT_MOST, says(minimum=LEAST["context_length"])] | None = None
    gpu_layers: Annotated[int, AT_MOST, says("-1: all", minimum=LEAST["gpu_layers"])] | None = None
    strict: Annotated[bool, says("false: other plans are tried too")] | None = None
    options: Annotated[Options, OPTIONS] = msgspec.field(default_factory=Options)


Token: TypeAlias = Annotated[int, says(**make_integer(0))]


class TokenizeBody(NamedBody):
    """`POST /api/tokenize`; a text has one of three names."""

    text: Annotated[str | None, says(required=True)] = None
    content: str | None = None
    prompt: str | None = None
    tokens: list[Int | None] | None = None
    keep_alive: Annotated[Duration, KEEP_ALIVE] | None = None


class DetokenizeBody(TokenizeBody):
    """`POST /api/detokenize`."""

    text: str | None = None
    tokens: Annotated[list[Token | None] | None, says(required=True)] = None
