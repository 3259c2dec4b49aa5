"""The fields of OpenAI's responses and their types.

Chats, completions and vectors are written by hand for speed; the tests compare these with their
types. Engines may add fields of their own to chats and completions, which are passed on. What has a
default may be missing.

See docs/reference/ollama-api.md#openai-chat-completions.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from vllama.base.meaning import says
from vllama.chat.inspect import MaybeInspected
from vllama.dialects.ollama.answer_types import NUMBERS

Reason = Literal["stop", "length", "tool_calls", "content_filter", "load"]
Logprobs = Annotated[dict[str, Any] | UnsetType | None, says("log probabilities of the tokens")]


class Usage(Struct):
    """Token counts of the prompt and the response."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: Annotated[int | UnsetType, says("number of generated tokens")] = UNSET
    prompt_tokens_details: Annotated[
        dict[str, Any] | UnsetType | None, says("prompt tokens read from the cache")
    ] = UNSET
    completion_tokens_details: Annotated[
        dict[str, Any] | UnsetType | None, says("number of reasoning tokens")
    ] = UNSET


class ChatFunction(Struct):
    """A called function. Its arguments are a JSON string; a chunk has a fragment of it."""

    name: str | UnsetType | None = UNSET
    arguments: str | UnsetType | None = UNSET


class ChatToolCall(Struct):
    """A tool call. Later chunks of a stream have only its index and more of its arguments."""

    function: ChatFunction | UnsetType = UNSET
    custom: Annotated[dict[str, str] | UnsetType, says("name and input of a custom tool")] = UNSET
    id: str | UnsetType | None = UNSET
    index: int | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType | None = UNSET


class ChatMessage(Struct):
    """A message of the model."""

    role: str
    content: str | None
    reasoning: Annotated[str | UnsetType, says("reasoning before the response")] = UNSET
    refusal: Annotated[str | UnsetType, says("refusal message")] = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET


class ChatChoice(Struct):
    """A completion choice."""

    index: int
    message: Annotated[ChatMessage, says("generated message")]
    finish_reason: Reason | None
    logprobs: Logprobs = UNSET


class ChatCompletion(Struct):
    """A complete response of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: Annotated[int, says("creation time, in Unix seconds")]
    model: str
    choices: Annotated[list[ChatChoice], says("completion choices")]
    usage: Usage
    system_fingerprint: Annotated[str | UnsetType | None, says("build of the engine")] = UNSET
    inspect: MaybeInspected = UNSET


class ChatDelta(Struct):
    """The delta of a chunk."""

    role: str | UnsetType | None = UNSET
    content: Annotated[str | UnsetType | None, says("text delta")] = UNSET
    reasoning: Annotated[str | UnsetType | None, says("reasoning delta")] = UNSET
    refusal: Annotated[str | UnsetType | None, says("refusal delta")] = UNSET
    tool_calls: list[ChatToolCall] | UnsetType | None = UNSET


class ChatChunkChoice(Struct):
    """A choice of a streamed chunk."""

    index: int
    delta: Annotated[ChatDelta, says("the delta")]
    finish_reason: Reason | UnsetType | None = UNSET
    logprobs: Logprobs = UNSET


class ChatChunk(Struct):
    """A streamed chunk. The last chunk may have the usage and no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Annotated[int, says("creation time, in Unix seconds")]
    model: str
    choices: Annotated[list[ChatChunkChoice], says("choices with their deltas")]
    usage: Usage | UnsetType | None = UNSET
    timings: Annotated[dict[str, Any] | UnsetType, says("timings reported by llama-server")] = UNSET
    system_fingerprint: Annotated[str | UnsetType | None, says("build of the engine")] = UNSET
    inspect: MaybeInspected = UNSET


class TextChoice(Struct):
    """A completion choice, or a streamed chunk of it."""

    text: Annotated[str, says("generated text")]
    index: int
    finish_reason: Reason | None
    logprobs: Logprobs = UNSET


class TextCompletion(Struct):
    """A complete response of `/v1/completions`, or a streamed chunk of it."""

    id: str
    object: Literal["text_completion"]
    created: Annotated[int, says("creation time, in Unix seconds")]
    model: str
    choices: Annotated[list[TextChoice], says("completion choices")]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: Annotated[str | UnsetType | None, says("build of the engine")] = UNSET
    inspect: MaybeInspected = UNSET


class Embedding(Struct):
    """An embedding: an array of numbers, or base64-encoded 32-bit floats."""

    object: Literal["embedding"]
    embedding: Annotated[
        Annotated[Raw, Meta(extra_json_schema={"anyOf": [NUMBERS, {"type": "string"}]})],
        says("numbers, or base64-encoded 32-bit floats"),
    ]
    index: int


class Embeddings(Struct):
    """One embedding per input."""

    object: Literal["list"]
    data: Annotated[list[Embedding], says("one embedding per input")]
    model: str
    usage: Usage


class OpenAIModel(Struct, omit_defaults=True):
    """A model. The fields after `owned_by` are vllama extensions."""

    id: str
    object: Literal["model"]
    created: Annotated[int, says("modification time, in Unix seconds")]
    owned_by: Annotated[str, says("namespace of the model name, or `library`")]
    state: Annotated[str | UnsetType, says("state, as shown by `vllama ps`")] = UNSET
    capabilities: Annotated[list[str] | UnsetType, says("for example `tools` and `vision`")] = UNSET
    context_length: Annotated[int, says("maximum context length, in tokens")] = 0
    loaded_context_length: Annotated[int, says("context length of the loaded model")] = 0
    max_model_len: Annotated[int, says("`loaded_context_length`, as vLLM names it")] = 0


class OpenAIModels(Struct):
    """The installed models, newest first."""

    object: Literal["list"]
    data: Annotated[list[OpenAIModel], says("installed models")]


class RankedDocument(Struct):
    """A ranked document. The index is its position in the request."""

    index: int
    relevance_score: Annotated[float, says("relevance to the query")]
    document: Annotated[dict[str, Any] | UnsetType, says("the document, if `return_documents`")] = (
        UNSET
    )


class Ranking(Struct):
    """The ranked documents, most relevant first."""

    id: str
    object: Literal["list"]
    model: str
    usage: Usage
    results: Annotated[list[RankedDocument], says("ranked documents")]


class RankedText(Struct):
    """A ranked text, for text-embeddings-inference clients. The index is its position."""

    index: int
    score: Annotated[float, says("relevance to the query")]
    text: Annotated[str | UnsetType, says("the text, if `return_text`")] = UNSET


class PairScore(Struct):
    """The similarity score of two texts."""

    index: int
    object: Literal["score"]
    score: Annotated[float, says("similarity of the two texts")]


class Scores(Struct):
    """The scores, in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: Annotated[int, says("creation time, in Unix seconds")]
    model: str
    data: Annotated[list[PairScore], says("one score per pair")]
    usage: Usage


class Transcription(Struct):
    """A transcript. Engines may add fields."""

    text: Annotated[str, says("transcribed text")]


class Decisions(Struct):
    """Answers to typed questions, as probabilities."""

    model: str
    answers: Annotated[list[dict[str, Any]], says("answers, in the order of the questions")]
    usage: dict[str, Any]


class SystemOneAnswers(Struct):
    """Answers to typed questions, by name."""

    model: str
    answers: Annotated[dict[str, dict[str, Any]], says("answers, by question name")]
    usage: dict[str, Any]
