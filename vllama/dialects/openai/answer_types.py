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
Logprobs = Annotated[dict[str, Any] | UnsetType | None, says("the log probabilities of its tokens")]


class Usage(Struct):
    """Tokens of the prompt and of the response."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: Annotated[int | UnsetType, says("the tokens of the response")] = UNSET
    prompt_tokens_details: Annotated[
        dict[str, Any] | UnsetType | None, says("how many tokens of the prompt needed no work")
    ] = UNSET
    completion_tokens_details: Annotated[
        dict[str, Any] | UnsetType | None, says("how many tokens were thinking")
    ] = UNSET


class ChatFunction(Struct):
    """A called function; its arguments are JSON in a text, of which a chunk has a piece."""

    name: str | UnsetType | None = UNSET
    arguments: str | UnsetType | None = UNSET


class ChatToolCall(Struct):
    """A call of a tool; the later chunks of a stream have only its index and more arguments."""

    function: ChatFunction | UnsetType = UNSET
    custom: Annotated[dict[str, str] | UnsetType, says("name and input of a custom tool")] = UNSET
    id: str | UnsetType | None = UNSET
    index: int | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType | None = UNSET


class ChatMessage(Struct):
    """Message of the model."""

    role: str
    content: str | None
    reasoning: Annotated[str | UnsetType, says("the thinking before the response")] = UNSET
    refusal: Annotated[str | UnsetType, says("why the model refuses")] = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET


class ChatChoice(Struct):
    """One of several responses."""

    index: int
    message: Annotated[ChatMessage, says("the response")]
    finish_reason: Reason | None
    logprobs: Logprobs = UNSET


class ChatCompletion(Struct):
    """A whole response of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: Annotated[int, says("in Unix seconds")]
    model: str
    choices: Annotated[list[ChatChoice], says("the responses")]
    usage: Usage
    system_fingerprint: Annotated[str | UnsetType | None, says("the build of the engine")] = UNSET
    inspect: MaybeInspected = UNSET


class ChatDelta(Struct):
    """Addition of a chunk to a response."""

    role: str | UnsetType | None = UNSET
    content: Annotated[str | UnsetType | None, says("more text")] = UNSET
    reasoning: Annotated[str | UnsetType | None, says("more thinking")] = UNSET
    refusal: Annotated[str | UnsetType | None, says("more of a refusal")] = UNSET
    tool_calls: list[ChatToolCall] | UnsetType | None = UNSET


class ChatChunkChoice(Struct):
    """One of several responses, which a chunk adds to."""

    index: int
    delta: Annotated[ChatDelta, says("what is added")]
    finish_reason: Reason | UnsetType | None = UNSET
    logprobs: Logprobs = UNSET


class ChatChunk(Struct):
    """A piece of a streamed response; the last may have the usage, and no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Annotated[int, says("in Unix seconds")]
    model: str
    choices: Annotated[list[ChatChunkChoice], says("the responses that it adds to")]
    usage: Usage | UnsetType | None = UNSET
    timings: Annotated[dict[str, Any] | UnsetType, says("llama-server's own measurements")] = UNSET
    system_fingerprint: Annotated[str | UnsetType | None, says("the build of the engine")] = UNSET
    inspect: MaybeInspected = UNSET


class TextChoice(Struct):
    """One of several completions, or a piece of one."""

    text: Annotated[str, says("the text")]
    index: int
    finish_reason: Reason | None
    logprobs: Logprobs = UNSET


class TextCompletion(Struct):
    """A whole response of `/v1/completions`, or a piece of a streamed one."""

    id: str
    object: Literal["text_completion"]
    created: Annotated[int, says("in Unix seconds")]
    model: str
    choices: Annotated[list[TextChoice], says("the completions")]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: Annotated[str | UnsetType | None, says("the build of the engine")] = UNSET
    inspect: MaybeInspected = UNSET


class Embedding(Struct):
    """A vector: numbers, or 32-bit floats in base64."""

    object: Literal["embedding"]
    embedding: Annotated[
        Annotated[Raw, Meta(extra_json_schema={"anyOf": [NUMBERS, {"type": "string"}]})],
        says("numbers, or 32-bit floats in base64"),
    ]
    index: int


class Embeddings(Struct):
    """A vector for each input."""

    object: Literal["list"]
    data: Annotated[list[Embedding], says("the vectors")]
    model: str
    usage: Usage


class OpenAIModel(Struct, omit_defaults=True):
    """A model. The fields after `owned_by` are vllama's own."""

    id: str
    object: Literal["model"]
    created: Annotated[int, says("in Unix seconds")]
    owned_by: Annotated[str, says("the namespace of its name, or `library`")]
    state: Annotated[str | UnsetType, says("as `vllama ps` shows it")] = UNSET
    capabilities: Annotated[list[str] | UnsetType, says("such as `tools` and `vision`")] = UNSET
    context_length: Annotated[int, says("the longest context in tokens")] = 0
    loaded_context_length: Annotated[int, says("the context that it is loaded with")] = 0
    max_model_len: Annotated[int, says("the same as vLLM names it")] = 0


class OpenAIModels(Struct):
    """The models of this machine, the newest first."""

    object: Literal["list"]
    data: Annotated[list[OpenAIModel], says("the models")]


class RankedDocument(Struct):
    """A document, by its place in the request."""

    index: int
    relevance_score: Annotated[float, says("how well it fits the query")]
    document: Annotated[dict[str, Any] | UnsetType, says("the document, if `return_documents`")] = (
        UNSET
    )


class Ranking(Struct):
    """The documents, the best first."""

    id: str
    object: Literal["list"]
    model: str
    usage: Usage
    results: Annotated[list[RankedDocument], says("the documents")]


class RankedText(Struct):
    """A text, by its place in the request, for clients of text-embeddings-inference."""

    index: int
    score: Annotated[float, says("how well it fits the query")]
    text: Annotated[str | UnsetType, says("the text, if `return_text`")] = UNSET


class PairScore(Struct):
    """Score of two texts' relevance."""

    index: int
    object: Literal["score"]
    score: Annotated[float, says("how well the texts fit")]


class Scores(Struct):
    """The scores, in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: Annotated[int, says("in Unix seconds")]
    model: str
    data: Annotated[list[PairScore], says("the scores")]
    usage: Usage


class Transcription(Struct):
    """The words of a recording; an engine may add more."""

    text: Annotated[str, says("the words")]


class Decisions(Struct):
    """The answers to typed questions, as probabilities."""

    model: str
    answers: Annotated[list[dict[str, Any]], says("the answers, in the order of the questions")]
    usage: dict[str, Any]


class SystemOneAnswers(Struct):
    """The answers to typed questions, by their names."""

    model: str
    answers: Annotated[
        dict[str, dict[str, Any]], says("the answers, by the names of the questions")
    ]
    usage: dict[str, Any]
