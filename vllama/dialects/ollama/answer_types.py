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
    """The function that a model calls."""

    name: str
    arguments: dict[str, Any]
    index: int | UnsetType = UNSET


class ToolCall(Struct):
    """A call of a tool."""

    function: CalledFunction
    id: str | UnsetType = UNSET


class AnswerMessage(Struct):
    """Message of the model; in a stream, its next piece."""

    role: Annotated[str, says("always `assistant`")]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class TokenLogprob(Struct):
    """A token with its log probability, and its bytes in UTF-8."""

    token: str
    logprob: float
    bytes: Annotated[list[int] | UnsetType | None, says("the token in UTF-8")] = UNSET


class GeneratedToken(TokenLogprob):
    """A token of the response, and the likeliest ones in its place."""

    top_logprobs: Annotated[
        list[TokenLogprob] | UnsetType, says("the likeliest tokens in its place")
    ] = UNSET


class DebugInfo(Struct):
    """Result of `_debug_render_only`."""

    rendered_template: Annotated[str, says("the prompt as the model would read it")]
    image_count: Annotated[int | UnsetType, says("how many images it has")] = UNSET


class Generated(Struct, kw_only=True):
    """Fields of all objects of a response; counts and durations are in the last one only."""

    model: str
    created_at: str
    done: Annotated[bool, says("whether this is the last object")]
    done_reason: Annotated[
        Literal["stop", "length", "content_filter", "load", "unload"] | UnsetType,
        says("why the response ends"),
    ] = UNSET
    total_duration: Annotated[int | UnsetType, says("in nanoseconds")] = UNSET
    load_duration: Annotated[int | UnsetType, says("in nanoseconds")] = UNSET
    prompt_eval_count: Annotated[int | UnsetType, says("tokens of the prompt")] = UNSET
    prompt_eval_cached_count: Annotated[int | UnsetType, says("tokens from a cache")] = UNSET
    prompt_eval_duration: Annotated[int | UnsetType, says("in nanoseconds")] = UNSET
    eval_count: Annotated[int | UnsetType, says("tokens of the response")] = UNSET
    eval_duration: Annotated[int | UnsetType, says("in nanoseconds")] = UNSET
    logprobs: Annotated[
        list[GeneratedToken] | UnsetType, says("the log probabilities of the tokens")
    ] = UNSET
    inspect: MaybeInspected = UNSET
    _debug_info: Annotated[DebugInfo | UnsetType, says("what `_debug_render_only` asks for")] = (
        UNSET
    )


class ChatAnswer(Generated, kw_only=True):
    """A response of `/api/chat`, or a line of it."""

    message: Annotated[AnswerMessage, says("what the model says")]


class GenerateAnswer(Generated, kw_only=True):
    """A response of `/api/generate`, or a line of it."""

    response: Annotated[str, says("the text")]
    thinking: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    context: Annotated[
        list[int] | UnsetType, says("the tokens so far, with which a later request goes on")
    ] = UNSET


NUMBERS = {"type": "array", "items": {"type": "number"}}
Vector = Annotated[Raw, Meta(extra_json_schema=NUMBERS)]


class EmbedAnswer(Struct, omit_defaults=True):
    """One vector of length 1 for each input."""

    model: str
    embeddings: Annotated[Sequence[Vector], says("a vector for each input")]
    total_duration: Annotated[int, says("in nanoseconds")] = 0
    load_duration: Annotated[int, says("in nanoseconds")] = 0
    prompt_eval_count: Annotated[int, says("tokens of the prompt")] = 0


class LegacyEmbedAnswer(Struct):
    """The vector of a prompt, as the model made it."""

    embedding: Annotated[Vector, says("the vector")]


class ModelDetails(Struct, omit_defaults=True):
    """Format, family, size and quantization of a model."""

    parent_model: Annotated[str, says("the model that it was made of")]
    format: Annotated[str, says("the format of its files")]
    family: Annotated[str, says("its architecture")]
    families: Annotated[list[str] | None, says("its architectures, with those of its projector")]
    parameter_size: Annotated[str, says("how many parameters it has, such as `8.2B`")]
    quantization_level: Annotated[str, says("the quantization, such as `Q4_K_M`")]
    context_length: Annotated[int, says("the longest context in tokens")] = 0
    embedding_length: Annotated[int, says("how many numbers a vector has")] = 0


class LocalModel(Struct, omit_defaults=True):
    """A model on this machine."""

    name: str
    model: str
    modified_at: Annotated[str, says("when the model last changed")]
    size: Annotated[int, says("in bytes")]
    digest: str
    details: ModelDetails
    capabilities: Annotated[list[str] | UnsetType, says("such as `tools` and `vision`")] = UNSET
    store: Annotated[str | UnsetType, says("where it was found")] = UNSET
    problem: Annotated[str, says("why its files cannot be read, if they are damaged")] = ""


class Tags(Struct):
    """The models of this machine, the newest first."""

    models: Annotated[list[LocalModel], says("the models")]


class LoadProgress(Struct, frozen=True):
    """Progress of a load."""

    started_at: Annotated[str, says("when its engine was started")]
    completed: Annotated[int, says("the bytes of its files read so far; 0 if nothing tells them")]
    total: Annotated[int, says("all bytes of its files")]


class KeptConversations(Struct, kw_only=True):
    """A model's conversations that are kept on disk."""

    count: Annotated[int, says("how many they are")]
    size: Annotated[int, says("in bytes")]
    hits: Annotated[int, says("how often one was restored")]


class LoadedModel(Struct, kw_only=True, omit_defaults=True):
    """A model that is loaded, or on its way. The fields after `context_length` are vllama's own."""

    name: str
    model: str
    size: Annotated[int, says("in bytes")]
    digest: str
    details: ModelDetails
    expires_at: Annotated[str, says("when the model is unloaded")]
    size_vram: Annotated[int, says("the bytes of it that lie on GPUs")]
    context_length: int
    state: Annotated[str | UnsetType, says("as `vllama ps` shows it")] = UNSET
    engine: str | UnsetType = UNSET
    engine_version: Annotated[str | UnsetType | None, says("the engine's version")] = UNSET
    requests: Annotated[int | UnsetType, says("requests that are running")] = UNSET
    slots: Annotated[int | UnsetType, says("max requests that run at once")] = UNSET
    queued: Annotated[int | UnsetType, says("requests that are waiting")] = UNSET
    replicas: Annotated[int | UnsetType, says("how many engines share its requests")] = UNSET
    restarts: Annotated[int | UnsetType, says("how often its engine was restarted")] = UNSET
    pid: Annotated[int | UnsetType | None, says("the engine's process")] = UNSET
    node: Annotated[str | UnsetType, says("the node of a cluster that has it loaded")] = UNSET
    node_reason: Annotated[
        str | UnsetType, says("why the last request of this server went to that node")
    ] = UNSET
    conversations: Annotated[
        KeptConversations | UnsetType, says("its conversations on disk, where they are kept")
    ] = UNSET
    other_names: Annotated[list[str], says("models of the same files, with the same engine")] = []
    ending: Annotated[int, says("requests that the engine before this one still serves")] = 0
    cause: Annotated[str, says("why it waits, is down or has failed")] = ""
    placement: Annotated[str, says("where the engine says that it lies")] = ""
    load: Annotated[LoadProgress | None, says("how far it is, while its engine starts")] = None


class FailedModel(Struct):
    """A model that could not be loaded, why, and in how many seconds it is tried again."""

    name: str
    state: Annotated[Literal["failed"], says("always `failed`")]
    cause: Annotated[str, says("why it waits, is down or has failed")]
    hint: str | None
    since: Annotated[str, says("when it failed")]
    retry_after: Annotated[float, says("in how many seconds it is tried again")]


class LoadedModels(Struct, omit_defaults=True):
    """The loaded models, the one that is unloaded last first."""

    models: Annotated[list[LoadedModel], says("the loaded models")]
    failed: Annotated[list[FailedModel], says("the models that could not be loaded")] = []


class Tensor(Struct):
    """A tensor of a model's file."""

    name: Annotated[str, says("the tensor's name")]
    type: Annotated[str, says("the type of its numbers")]
    shape: Annotated[list[int], says("its dimensions")]


class ShownModel(Struct, kw_only=True):
    """All that is known of a model; what is empty is left out."""

    license: Annotated[str | UnsetType, says("the license")] = UNSET
    modelfile: Annotated[str | UnsetType, says("the Modelfile")] = UNSET
    parameters: Annotated[str | UnsetType, says("default options, one a line")] = UNSET
    template: Annotated[str | UnsetType, says("the template of its prompts")] = UNSET
    system: Annotated[str | UnsetType, says("its system message")] = UNSET
    renderer: Annotated[str | UnsetType, says("Ollama's renderer for its prompts")] = UNSET
    parser: Annotated[str | UnsetType, says("Ollama's parser for its responses")] = UNSET
    details: ModelDetails
    messages: Annotated[
        list[dict[str, Any]] | UnsetType, says("messages that every chat begins with")
    ] = UNSET
    model_info: Annotated[dict[str, Any], says("the metadata of its file")]
    projector_info: Annotated[dict[str, Any] | UnsetType, says("the metadata of its projector")] = (
        UNSET
    )
    tensors: Annotated[list[Tensor] | UnsetType, says("the tensors of its file")] = UNSET
    capabilities: Annotated[list[str] | UnsetType, says("such as `tools` and `vision`")] = UNSET
    modified_at: Annotated[str, says("when the model last changed")]
    requires: Annotated[str | UnsetType, says("the version of Ollama that is needed")] = UNSET
    vllama: Annotated[dict[str, Any] | UnsetType, says("what vllama adds, such as the plan")] = (
        UNSET
    )


class Progress(Struct, omit_defaults=True):
    """A step of a download, or of the making of a model. The last one is `success`."""

    status: Annotated[str, says("the step; `success` is the last")]
    digest: str = ""
    total: Annotated[int | UnsetType, says("all bytes")] = UNSET
    completed: Annotated[int, says("bytes so far")] = 0


class Success(Struct):
    """Everything that is sent without a stream."""

    status: Annotated[Literal["success"], says("always `success`")]


class Cloud(Struct):
    """The cloud of ollama.com, which vllama does not use."""

    disabled: Annotated[bool, says("whether it is off")]
    source: Annotated[str, says("what turned it off")]


class CloudStatus(Struct):
    """Use of ollama.com."""

    cloud: Annotated[Cloud, says("the cloud")]


class RecommendedModel(Struct, frozen=True, kw_only=True):
    """A model that suits the machine."""

    model: str
    description: Annotated[str, says("what it is good for, and where it would run")]
    context_length: int
    max_output_tokens: int
    vram_bytes: Annotated[int, says("its part of the GPUs' memory")]


class Recommendations(Struct):
    """The models that are recommended."""

    recommendations: Annotated[list[RecommendedModel], says("the models, the largest first")]
