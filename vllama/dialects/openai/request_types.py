"""OpenAI's requests as Ollama declares them (`openai/openai.go`).

Fields of any type, which Ollama does not know, are checked where they are read.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Struct

from vllama.base.meaning import TEXT, Schema, make_array, make_integer, make_object, make_word, says
from vllama.chat.request import MAX_MESSAGES, MAX_TOOLS
from vllama.dialects.ollama.embeddings import ENCODINGS
from vllama.dialects.ollama.request_types import (
    BASE64,
    RENDER_ONLY,
    TOP_LOGPROBS,
    Float32,
    Int,
    Model,
    OwnFields,
    TextFields,
    Tool,
)
from vllama.dialects.openai.choices import MAX_CHOICES
from vllama.dialects.openai.extras import EFFORTS

IMAGE_URI = "data:(image/(jpeg|jpg|png|webp|gif))?;base64,"
"""How the only URLs of images begin that are taken."""
IMAGE_URL: Schema = {
    "type": "string",
    "description": "a data URI in base64; no other URL is fetched",
    "pattern": f"^{IMAGE_URI}{BASE64.removeprefix('^')}",
}
_TOOL_CHOICE: Schema = {
    "anyOf": [
        make_word("auto", "none", "required", "any", ""),
        make_object(type=make_word("function"), function=make_object(name=TEXT)),
        make_object(
            type=make_word("allowed_tools"),
            allowed_tools=make_object(tools={"type": "array", "items": {}}),
        ),
    ]
}
_PART: Schema = {
    "anyOf": [
        TEXT,
        make_object(type=make_word("text"), text=TEXT),
        make_object(type=make_word("image_url"), image_url=make_object(url=IMAGE_URL)),
        make_object(type=make_word("input_audio"), input_audio=make_object(data=TEXT)),
    ]
}
_CONTENT: Schema = {"anyOf": [TEXT, {"type": "array", "items": _PART}]}
_TOKENS = make_array(make_integer(0))
_INPUT: Schema = {"anyOf": [TEXT, make_array(TEXT), _TOKENS, make_array(_TOKENS)]}


class StreamOptions(Struct):
    """The options of a stream."""

    include_usage: Annotated[bool | None, says("the last event counts the tokens")] = None


class OpenAICalledFunction(Struct):
    """The call of a function."""

    name: Annotated[str | None, says(required=True)] = None
    arguments: Annotated[
        Any, says("an object, as JSON in a text, or as it is", anyOf=[TEXT, {"type": "object"}])
    ] = None


class OpenAICall(Struct):
    """A call that the model made."""

    id: str | int | None = None
    index: Int | None = None
    type: str | None = None
    function: OpenAICalledFunction | None = None
    custom: Annotated[dict[str, Any] | None, says("the call of a custom tool")] = None


class OpenAIMessage(Struct):
    """A turn of the conversation."""

    role: Annotated[str | None, says("`system`, `user`, `assistant` or `tool`", required=True)] = (
        None
    )
    content: Annotated[Any, says("a text, or parts; a response may have none", **_CONTENT)] = None
    reasoning: Annotated[Any, says("earlier thinking", **TEXT)] = None
    tool_calls: list[OpenAICall | None] | None = None
    name: str | None = None
    tool_call_id: Annotated[str | int | None, says("the call with this result")] = None


class JsonSchema(Struct):
    """A JSON schema with a name."""

    schema: Any = None


class ResponseFormat(Struct):
    """The form of the response."""

    type: Annotated[str | None, says("`text`, `json_object`, `json_schema` or another")] = None
    json_schema: JsonSchema | None = None


class ReasoningOptions(Struct):
    """Options of thinking."""

    effort: Annotated[str | None, says("as in `reasoning_effort`")] = None


class OpenAIBody(OwnFields):
    """A body of which only the model and Ollama's fields are checked."""

    model: str | None = None


class SamplingFields(TextFields, kw_only=True):
    """The fields that chats and completions share."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Int | None = None
    max_completion_tokens: Annotated[Int | None, says("newer than `max_tokens`")] = None
    min_tokens: Annotated[Int | None, says("the response does not end before")] = None
    seed: Int | None = None
    n: (
        Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES), says("how many choices to make")] | None
    ) = None
    top_k: Annotated[Int | None, says("the next token is one of so many")] = None
    min_p: Annotated[float | None, says("the lowest probability, relatively")] = None
    typical_p: Annotated[float | None, says("locally typical sampling; 1: off")] = None
    repeat_penalty: Annotated[float | None, says("1: no penalty")] = None
    repetition_penalty: Annotated[float | None, says("another name of `repeat_penalty`")] = None
    repeat_last_n: Annotated[Int | None, says("how many tokens back it looks")] = None
    num_keep: Annotated[Int | None, says("tokens kept of a prompt that is cut")] = None
    logit_bias: Annotated[dict[str, Any] | None, says("how much likelier tokens become")] = None
    debug_render_only: Annotated[bool | None, RENDER_ONLY] = msgspec.field(
        name="_debug_render_only", default=None
    )


class ChatCompletionBody(SamplingFields):
    """`POST /v1/chat/completions`."""

    model: Model = ""
    messages: Annotated[
        list[OpenAIMessage | None],
        says("the conversation so far, the oldest message first", minItems=1, required=True),
        msgspec.Meta(max_length=MAX_MESSAGES),
    ] = []
    stop: Annotated[Any, says("texts that end the response")] = None
    temperature: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_p: float | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[
        Annotated[list[Tool | None], msgspec.Meta(max_length=MAX_TOOLS)] | None,
        says("functions that the model may call"),
    ] = None
    tool_choice: Annotated[
        Any, says("whether the model may or must call a function, and which", **_TOOL_CHOICE)
    ] = None
    parallel_tool_calls: Any = None
    reasoning: ReasoningOptions | None = None
    reasoning_effort: Annotated[str | None, says(enum=["none", *EFFORTS, ""])] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, TOP_LOGPROBS] = None


_Ids: TypeAlias = Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)]
Prompts: TypeAlias = Annotated[list[str | int | _Ids], msgspec.Meta(min_length=1)]


class CompletionBody(SamplingFields):
    """`POST /v1/completions`."""

    model: Model = ""
    prompt: Annotated[
        str | Prompts | None, says("a text, or several; with vLLM also token ids, or lists of them")
    ] = None
    frequency_penalty: Float32 | None = None
    presence_penalty: Float32 | None = None
    # what is no list is ignored, as with Ollama
    stop: Annotated[Any, says("texts that end the response", items=TEXT)] = None
    temperature: Float32 | None = None
    top_p: Float32 | None = None
    suffix: Annotated[str | None, says("the text after the response")] = None
    logprobs: Annotated[int | None, TOP_LOGPROBS] = None
    echo: Annotated[Any, says("the response begins with the prompt", type="boolean")] = None
    raw: Annotated[bool | None, says("send the prompt without a template")] = None


class EmbeddingBody(OwnFields):
    """`POST /v1/embeddings`."""

    model: Model = ""
    input: Annotated[
        Any, says("a text, texts, tokens, or lists of tokens", required=True, **_INPUT)
    ] = None
    dimensions: Annotated[Int | None, says("how many numbers of each vector are kept")] = None
    encoding_format: Annotated[str | None, says(enum=[*ENCODINGS, ""])] = None
