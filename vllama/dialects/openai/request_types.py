"""OpenAI's requests, as far as Ollama reads them (its `openai/openai.go`).

Bodies of these types are checked, and stay as they are: fields that only vllama reads are checked
where they are read, the others are for engines.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct, field

from vllama.chat.bodies import Body
from vllama.chat.request import MAX_MESSAGES, MAX_TOOLS
from vllama.dialects.ollama.request_types import Float32, Int, Tool


class StreamOptions(Struct):
    """What a stream has beside its text."""

    include_usage: bool | None = None


class OpenAICalledFunction(Struct):
    """The call of a function."""

    name: str | None = None
    arguments: str | None = None


class OpenAICall(Struct):
    """A call that the model made."""

    id: str | None = None
    index: Int | None = None
    type: str | None = None
    function: OpenAICalledFunction | None = None


class OpenAIMessage(Struct):
    """A turn of the conversation."""

    role: str | None = None
    content: Any = None
    reasoning: str | None = None
    tool_calls: list[OpenAICall | None] | None = None
    name: str | None = None
    tool_call_id: str | None = None


Messages: TypeAlias = Annotated[list[OpenAIMessage | None], Meta(max_length=MAX_MESSAGES)] | None


class JsonSchema(Struct):
    """A JSON schema with a name."""

    schema: Any = None


class ResponseFormat(Struct):
    """The form of the answer."""

    type: str | None = None
    json_schema: JsonSchema | None = None


class ReasoningOptions(Struct):
    """How the model thinks."""

    effort: str | None = None


class OpenAIBody(Body):
    """A body of which only the model is read here."""

    model: str | None = None


class ChatCompletionBody(OpenAIBody):
    """`POST /v1/chat/completions`."""

    messages: Messages = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Int | None = None
    seed: Int | None = None
    stop: Any = None
    temperature: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_p: float | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool | None], Meta(max_length=MAX_TOOLS)] | None = None
    reasoning: ReasoningOptions | None = None
    reasoning_effort: str | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    debug_render_only: bool | None = field(name="_debug_render_only", default=None)


class CompletionBody(OpenAIBody):
    """`POST /v1/completions`. Ollama refuses all lists of prompts."""

    prompt: str | Annotated[list[str], Meta(min_length=1)] | None = None
    frequency_penalty: Float32 | None = None
    max_tokens: Int | None = None
    presence_penalty: Float32 | None = None
    seed: Int | None = None
    stop: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Float32 | None = None
    top_p: Float32 | None = None
    suffix: str | None = None
    logprobs: Int | None = None
    debug_render_only: bool | None = field(name="_debug_render_only", default=None)


class EmbeddingBody(OpenAIBody):
    """`POST /v1/embeddings`."""

    input: Any = None
    dimensions: Int | None = None
    encoding_format: str | None = None
