"""The fields of Ollama's responses and their types.

Chats and completions are written by hand, because each token is a line; the tests compare these
with their types. All other answers are these structs. What has a default may be missing. Durations
are in nanoseconds, sizes in bytes, times as in RFC 3339.

See docs/reference/ollama-api.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from vllama.base.meaning import says
from vllama.chat.inspect import MaybeInspected


class CalledFunction(Struct):
    """A called function."""

    name: str
    arguments: dict[str, Any]
    index: int | UnsetType = UNSET


class ToolCall(Struct):
    """A tool call."""

    function: CalledFunction
    id: str | UnsetType = UNSET


class AnswerMessage(Struct):
    """A message of the model; in a stream, its next chunk."""

    role: Annotated[str, says("always `assistant`")]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class TokenLogprob(Struct):
    """A token with its log probability and UTF-8 bytes."""

    token: str
    logprob: float
    bytes: Annotated[list[int] | UnsetType | None, says("UTF-8 bytes of the token")] = UNSET


class GeneratedToken(TokenLogprob):
    """A generated token and its most likely alternatives."""

    top_logprobs: Annotated[
        list[TokenLogprob] | UnsetType, says("most likely tokens at this position")
    ] = UNSET


class DebugInfo(Struct):
    """The result of `_debug_render_only`."""

    rendered_template: Annotated[str, says("rendered prompt")]
    image_count: Annotated[int | UnsetType, says("number of images in the prompt")] = UNSET


class Generated(Struct, kw_only=True):
    """Fields of every response object. Only the last object has counts and durations."""

    model: str
    created_at: str
    done: Annotated[bool, says("true in the last object")]
    done_reason: Annotated[
        Literal["stop", "length", "content_filter", "load", "unload"] | UnsetType,
        says("reason for the end of the response"),
    ] = UNSET
    total_duration: Annotated[int | UnsetType, says("duration, in nanoseconds")] = UNSET
    load_duration: Annotated[int | UnsetType, says("duration, in nanoseconds")] = UNSET
    prompt_eval_count: Annotated[int | UnsetType, says("prompt tokens")] = UNSET
    prompt_eval_cached_count: Annotated[int | UnsetType, says("cached prompt tokens")] = UNSET
    prompt_eval_duration: Annotated[int | UnsetType, says("duration, in nanoseconds")] = UNSET
    eval_count: Annotated[int | UnsetType, says("generated tokens")] = UNSET
    eval_duration: Annotated[int | UnsetType, says("duration, in nanoseconds")] = UNSET
    logprobs: Annotated[
        list[GeneratedToken] | UnsetType, says("log probabilities of the tokens")
    ] = UNSET
    inspect: MaybeInspected = UNSET
    _debug_info: Annotated[DebugInfo | UnsetType, says("result of `_debug_render_only`")] = UNSET


class ChatAnswer(Generated, kw_only=True):
    """A response of `/api/chat`, or one line of it."""

    message: Annotated[AnswerMessage, says("the model's message")]


class GenerateAnswer(Generated, kw_only=True):
    """A response of `/api/generate`, or one line of it."""

    response: Annotated[str, says("generated text")]
    thinking: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    context: Annotated[
        list[int] | UnsetType, says("token IDs of the conversation; send them to continue it")
    ] = UNSET


NUMBERS = {"type": "array", "items": {"type": "number"}}
Vector = Annotated[Raw, Meta(extra_json_schema=NUMBERS)]


class EmbedAnswer(Struct, omit_defaults=True):
    """One unit-length embedding per input."""

    model: str
    embeddings: Annotated[Sequence[Vector], says("one embedding per input")]
    total_duration: Annotated[int, says("duration, in nanoseconds")] = 0
    load_duration: Annotated[int, says("duration, in nanoseconds")] = 0
    prompt_eval_count: Annotated[int, says("prompt tokens")] = 0


class LegacyEmbedAnswer(Struct):
    """The embedding of a prompt, as returned by the model."""

    embedding: Annotated[Vector, says("the embedding")]


class ModelDetails(Struct, omit_defaults=True):
    """Format, family, size and quantization of a model."""

    parent_model: Annotated[str, says("parent model")]
    format: Annotated[str, says("file format")]
    family: Annotated[str, says("architecture")]
    families: Annotated[list[str] | None, says("architectures of the model and its projector")]
    parameter_size: Annotated[str, says("parameter count, such as `8.2B`")]
    quantization_level: Annotated[str, says("quantization, such as `Q4_K_M`")]
    context_length: Annotated[int, says("maximum context length, in tokens")] = 0
    embedding_length: Annotated[int, says("number of embedding dimensions")] = 0


class LocalModel(Struct, omit_defaults=True):
    """An installed model."""

    name: str
    model: str
    modified_at: Annotated[str, says("modification time")]
    size: Annotated[int, says("size in bytes")]
    digest: str
    details: ModelDetails
    capabilities: Annotated[list[str] | UnsetType, says("for example `tools` and `vision`")] = UNSET
    store: Annotated[str | UnsetType, says("store with the model")] = UNSET
    problem: Annotated[str, says("reason why the files cannot be read; else empty")] = ""


class Tags(Struct):
    """The installed models, newest first."""

    models: Annotated[list[LocalModel], says("installed models")]


class LoadProgress(Struct, frozen=True):
    """Progress of a load."""

    started_at: Annotated[str, says("start time of the engine")]
    completed: Annotated[int, says("bytes of the model files read so far; 0 if unknown")]
    total: Annotated[int, says("total size of the model files, in bytes")]


class KeptConversations(Struct, kw_only=True):
    """A model's conversations stored on disk."""

    count: Annotated[int, says("number of conversations")]
    size: Annotated[int, says("size in bytes")]
    hits: Annotated[int, says("number of restored conversations")]


class LoadedModel(Struct, kw_only=True, omit_defaults=True):
    """A loaded or loading model. The fields after `context_length` are vllama extensions."""

    name: str
    model: str
    size: Annotated[int, says("size in bytes")]
    digest: str
    details: ModelDetails
    expires_at: Annotated[str, says("unload time")]
    size_vram: Annotated[int, says("bytes in GPU memory")]
    context_length: int
    state: Annotated[str | UnsetType, says("state, as shown by `vllama ps`")] = UNSET
    engine: str | UnsetType = UNSET
    engine_version: Annotated[str | UnsetType | None, says("engine version")] = UNSET
    requests: Annotated[int | UnsetType, says("running requests")] = UNSET
    slots: Annotated[int | UnsetType, says("maximum parallel requests")] = UNSET
    queued: Annotated[int | UnsetType, says("queued requests")] = UNSET
    replicas: Annotated[int | UnsetType, says("number of engines that share the requests")] = UNSET
    restarts: Annotated[int | UnsetType, says("number of engine restarts")] = UNSET
    pid: Annotated[int | UnsetType | None, says("process ID of the engine")] = UNSET
    node: Annotated[str | UnsetType, says("cluster node with the model")] = UNSET
    node_reason: Annotated[
        str | UnsetType, says("reason for choosing this node for the last request")
    ] = UNSET
    conversations: Annotated[
        KeptConversations | UnsetType, says("conversations stored on disk")
    ] = UNSET
    other_names: Annotated[list[str], says("other models with the same files and engine")] = []
    ending: Annotated[int, says("requests that the previous engine is still serving")] = 0
    cause: Annotated[str, says("reason for the wait or the failure")] = ""
    placement: Annotated[str, says("placement reported by the engine")] = ""
    load: Annotated[LoadProgress | None, says("load progress, while the engine starts")] = None


class FailedModel(Struct):
    """A model that failed to load, with the reason and the time until the next attempt."""

    name: str
    state: Annotated[Literal["failed"], says("always `failed`")]
    cause: Annotated[str, says("reason for the failure")]
    hint: str | None
    since: Annotated[str, says("time of the failure")]
    retry_after: Annotated[float, says("seconds until the next attempt")]


class LoadedModels(Struct, omit_defaults=True):
    """The loaded models, latest unload time first."""

    models: Annotated[list[LoadedModel], says("loaded models")]
    failed: Annotated[list[FailedModel], says("models that failed to load")] = []


class Tensor(Struct):
    """A tensor of a model file."""

    name: Annotated[str, says("tensor name")]
    type: Annotated[str, says("data type")]
    shape: Annotated[list[int], says("tensor dimensions")]


class ShownModel(Struct, kw_only=True):
    """The details of a model. Empty fields are omitted."""

    license: Annotated[str | UnsetType, says("license text")] = UNSET
    modelfile: Annotated[str | UnsetType, says("Modelfile of the model")] = UNSET
    parameters: Annotated[str | UnsetType, says("default options, one per line")] = UNSET
    template: Annotated[str | UnsetType, says("prompt template")] = UNSET
    system: Annotated[str | UnsetType, says("system message")] = UNSET
    renderer: Annotated[str | UnsetType, says("Ollama's renderer for prompts")] = UNSET
    parser: Annotated[str | UnsetType, says("Ollama's parser for responses")] = UNSET
    details: ModelDetails
    messages: Annotated[
        list[dict[str, Any]] | UnsetType, says("initial messages of every chat")
    ] = UNSET
    model_info: Annotated[dict[str, Any], says("metadata of the model file")]
    projector_info: Annotated[dict[str, Any] | UnsetType, says("metadata of the projector")] = UNSET
    tensors: Annotated[list[Tensor] | UnsetType, says("tensors of the model file")] = UNSET
    capabilities: Annotated[list[str] | UnsetType, says("for example `tools` and `vision`")] = UNSET
    modified_at: Annotated[str, says("modification time")]
    requires: Annotated[str | UnsetType, says("required Ollama version")] = UNSET
    vllama: Annotated[dict[str, Any] | UnsetType, says("vllama extensions, such as the plan")] = (
        UNSET
    )


class Progress(Struct, omit_defaults=True):
    """Progress of a download or of model creation. The last status is `success`."""

    status: Annotated[str, says("current step; `success` at the end")]
    digest: str = ""
    total: Annotated[int | UnsetType, says("total bytes")] = UNSET
    completed: Annotated[int, says("bytes processed so far")] = 0


class Success(Struct):
    """The result without streaming."""

    status: Annotated[Literal["success"], says("always `success`")]


class Cloud(Struct):
    """The cloud features of ollama.com, which vllama does not support."""

    disabled: Annotated[bool, says("true if cloud features are off")]
    source: Annotated[str, says("reason why they are off")]


class CloudStatus(Struct):
    """Status of the cloud features."""

    cloud: Annotated[Cloud, says("cloud features")]


class RecommendedModel(Struct, frozen=True, kw_only=True):
    """A model recommended for this machine."""

    model: str
    description: Annotated[str, says("purpose of the model, and where it would run")]
    context_length: int
    max_output_tokens: int
    vram_bytes: Annotated[int, says("required GPU memory, in bytes")]


class Recommendations(Struct):
    """The recommended models."""

    recommendations: Annotated[list[RecommendedModel], says("recommended models, largest first")]
