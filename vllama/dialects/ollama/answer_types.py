"""The fields of Ollama's answers and their types.

Chats and completions are written by hand, because each token is a line; the tests compare these
with their types. All other answers are these structs. What has a default may be missing. Durations
are in nanoseconds, sizes in bytes, times as in RFC 3339.

See docs/reference/ollama-api.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType


class CalledFunction(Struct):
    """The function that a model calls."""

    name: str
    arguments: dict[str, Any]
    index: int | UnsetType = UNSET


class ToolCall(Struct):
    """A call of a tool."""

    function: CalledFunction
    id: str | UnsetType = UNSET


class AnswerMessage(Struct):
    """What the model says: in a stream the next piece of it."""

    role: str
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class TokenLogprob(Struct):
    """A token with its log probability, and its bytes in UTF-8."""

    token: str
    logprob: float
    bytes: list[int] | UnsetType | None = UNSET


class GeneratedToken(TokenLogprob):
    """A token of the answer, and the likeliest ones in its place."""

    top_logprobs: list[TokenLogprob] | UnsetType = UNSET


class DebugInfo(Struct):
    """What `_debug_render_only` asks for."""

    rendered_template: str
    image_count: int | UnsetType = UNSET


class Generated(Struct, kw_only=True):
    """What all objects of an answer have; counts and durations are in the last one only."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_cached_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[GeneratedToken] | UnsetType = UNSET
    _debug_info: DebugInfo | UnsetType = UNSET


class ChatAnswer(Generated, kw_only=True):
    """An answer of `/api/chat`, or a line of it."""

    message: AnswerMessage


class GenerateAnswer(Generated, kw_only=True):
    """An answer of `/api/generate`, or a line of it."""

    response: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET


NUMBERS = {"type": "array", "items": {"type": "number"}}
Vector = Annotated[Raw, Meta(extra_json_schema=NUMBERS)]


class EmbedAnswer(Struct, omit_defaults=True):
    """One vector of length 1 for each input."""

    model: str
    embeddings: Sequence[Vector]
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0


class LegacyEmbedAnswer(Struct):
    """The vector of a prompt, as the model made it."""

    embedding: Vector


class ModelDetails(Struct, omit_defaults=True):
    """What a model is made of."""

    parent_model: str
    format: str
    family: str
    families: list[str] | None
    parameter_size: str
    quantization_level: str
    context_length: int = 0
    embedding_length: int = 0


class LocalModel(Struct, omit_defaults=True):
    """A model on this machine. `store` says where it was found.

    `problem` says why its files cannot be read, if they are damaged.
    """

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails
    capabilities: list[str] | UnsetType = UNSET
    store: str | UnsetType = UNSET
    problem: str = ""


class Tags(Struct):
    """The models of this machine, the newest first."""

    models: list[LocalModel]


class LoadedModel(Struct, kw_only=True, omit_defaults=True):
    """A model that is loaded, or on its way. The fields after `context_length` are vllama's own."""

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: int
    context_length: int
    state: str | UnsetType = UNSET
    engine: str | UnsetType = UNSET
    engine_version: str | UnsetType | None = UNSET
    requests: int | UnsetType = UNSET
    slots: int | UnsetType = UNSET
    queued: int | UnsetType = UNSET
    replicas: int | UnsetType = UNSET
    restarts: int | UnsetType = UNSET
    pid: int | UnsetType | None = UNSET
    other_names: list[str] = []
    ending: int = 0
    cause: str = ""


class FailedModel(Struct):
    """A model that could not be loaded, why, and in how many seconds it is tried again."""

    name: str
    state: Literal["failed"]
    cause: str
    hint: str | None
    since: str
    retry_after: float


class LoadedModels(Struct, omit_defaults=True):
    """The loaded models, the one that is unloaded last first."""

    models: list[LoadedModel]
    failed: list[FailedModel] = []


class Tensor(Struct):
    """A tensor of a model's file."""

    name: str
    type: str
    shape: list[int]


class ShownModel(Struct, kw_only=True):
    """All that is known of a model; what is empty is left out."""

    license: str | UnsetType = UNSET
    modelfile: str | UnsetType = UNSET
    parameters: str | UnsetType = UNSET
    template: str | UnsetType = UNSET
    system: str | UnsetType = UNSET
    renderer: str | UnsetType = UNSET
    parser: str | UnsetType = UNSET
    details: ModelDetails
    messages: list[dict[str, Any]] | UnsetType = UNSET
    model_info: dict[str, Any]
    projector_info: dict[str, Any] | UnsetType = UNSET
    tensors: list[Tensor] | UnsetType = UNSET
    capabilities: list[str] | UnsetType = UNSET
    modified_at: str
    requires: str | UnsetType = UNSET
    vllama: dict[str, Any] | UnsetType = UNSET


class Progress(Struct, omit_defaults=True):
    """A step of a download, or of the making of a model. The last one is `success`."""

    status: str
    digest: str = ""
    total: int | UnsetType = UNSET
    completed: int = 0


class Success(Struct):
    """All that is answered without a stream."""

    status: Literal["success"]


class Cloud(Struct):
    """The cloud of ollama.com, which vllama does not use."""

    disabled: bool
    source: str


class CloudStatus(Struct):
    """Whether ollama.com is used."""

    cloud: Cloud


class Recommendations(Struct):
    """The models that are recommended: none."""

    recommendations: list[dict[str, Any]]


class SearchResult(Struct, kw_only=True):
    """One result, in Ollama's form, which is also SearXNG's."""

    title: str = ""
    url: str = ""
    content: str | None = ""


class SearchResults(Struct):
    """Pages of the web, the best first."""

    results: list[SearchResult]
