"""The fields of OpenAI's answers and their types.

Chats, completions and vectors are written by hand for speed; the tests compare these with their
types. Engines may add fields of their own to chats and completions, which are passed on. What has a
default may be missing.

See docs/reference/ollama-api.md#openai-chat-completions.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from vllama.dialects.ollama.answer_types import NUMBERS

Reason = Literal["stop", "length", "tool_calls", "content_filter", "load"]


class Usage(Struct):
    """Tokens of the prompt and of the answer."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int | UnsetType = UNSET
    prompt_tokens_details: dict[str, Any] | UnsetType | None = UNSET
    completion_tokens_details: dict[str, Any] | UnsetType | None = UNSET


class ChatFunction(Struct):
    """A called function; its arguments are JSON in a text, of which a chunk has a piece."""

    name: str | UnsetType | None = UNSET
    arguments: str | UnsetType | None = UNSET


class ChatToolCall(Struct):
    """A call of a tool; the later chunks of a stream have only its index and more arguments."""

    function: ChatFunction
    id: str | UnsetType | None = UNSET
    index: int | UnsetType = UNSET
    type: Literal["function"] | UnsetType | None = UNSET


class ChatMessage(Struct):
    """What the model says."""

    role: str
    content: str | None
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET


class ChatChoice(Struct):
    """One of several answers."""

    index: int
    message: ChatMessage
    finish_reason: Reason | None
    logprobs: dict[str, Any] | UnsetType | None = UNSET


class ChatCompletion(Struct):
    """A whole answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | UnsetType | None = UNSET


class ChatDelta(Struct):
    """What a chunk adds to an answer."""

    role: str | UnsetType | None = UNSET
    content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_calls: list[ChatToolCall] | UnsetType | None = UNSET


class ChatChunkChoice(Struct):
    """One of several answers, which a chunk adds to."""

    index: int
    delta: ChatDelta
    finish_reason: Reason | UnsetType | None = UNSET
    logprobs: dict[str, Any] | UnsetType | None = UNSET


class ChatChunk(Struct):
    """A piece of a streamed answer; the last may have the usage, and no choices.

    `timings` is llama-server's own.
    """

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    timings: dict[str, Any] | UnsetType = UNSET
    system_fingerprint: str | UnsetType | None = UNSET


class TextChoice(Struct):
    """One of several completions, or a piece of one."""

    text: str
    index: int
    finish_reason: Reason | None
    logprobs: dict[str, Any] | UnsetType | None = UNSET


class TextCompletion(Struct):
    """A whole answer of `/v1/completions`, or a piece of a streamed one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType | None = UNSET


class Embedding(Struct):
    """A vector: numbers, or 32-bit floats in base64."""

    object: Literal["embedding"]
    embedding: Annotated[Raw, Meta(extra_json_schema={"anyOf": [NUMBERS, {"type": "string"}]})]
    index: int


class Embeddings(Struct):
    """A vector for each input."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class OpenAIModel(Struct, omit_defaults=True):
    """A model. The fields after `owned_by` are vllama's own."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    state: str | UnsetType = UNSET
    capabilities: list[str] | UnsetType = UNSET
    context_length: int = 0
    loaded_context_length: int = 0
    max_model_len: int = 0


class OpenAIModels(Struct):
    """The models of this machine, the newest first."""

    object: Literal["list"]
    data: list[OpenAIModel]


class RankedDocument(Struct):
    """A document, by its place in the request."""

    index: int
    relevance_score: float
    document: dict[str, Any] | UnsetType = UNSET


class Ranking(Struct):
    """The documents, the best first."""

    id: str
    object: Literal["list"]
    model: str
    usage: Usage
    results: list[RankedDocument]


class RankedText(Struct):
    """A text, by its place in the request, for clients of text-embeddings-inference."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class PairScore(Struct):
    """How well two texts fit."""

    index: int
    object: Literal["score"]
    score: float


class Scores(Struct):
    """The scores, in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PairScore]
    usage: Usage


class Transcription(Struct):
    """The words of a recording; an engine may add more."""

    text: str


class Decisions(Struct):
    """The answers to typed questions, as probabilities."""

    model: str
    answers: list[dict[str, Any]]
    usage: dict[str, Any]


class SystemOneAnswers(Struct):
    """The answers to typed questions, by their names."""

    model: str
    answers: dict[str, dict[str, Any]]
    usage: dict[str, Any]
