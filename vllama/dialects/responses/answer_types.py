"""The fields of `/v1/responses` and its events.

What has `UNSET` as its default may be missing.

See docs/reference/ollama-api.md#responses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from vllama.base.meaning import says
from vllama.chat.inspect import MaybeInspected


class OutputPart(Struct):
    """Text, a refusal, or a summary of the reasoning."""

    type: Annotated[Literal["output_text", "refusal", "summary_text"], says("content type")]
    text: str | UnsetType = UNSET
    refusal: Annotated[str | UnsetType, says("refusal message")] = UNSET
    annotations: Annotated[list[dict[str, Any]] | UnsetType, says("always empty")] = UNSET
    logprobs: Annotated[
        list[dict[str, Any]] | UnsetType, says("log probabilities of the tokens")
    ] = UNSET


class OutputItem(Struct):
    """A message, reasoning, or a function call."""

    id: str
    type: Annotated[Literal["message", "reasoning", "function_call"], says("item type")]
    status: Annotated[str | UnsetType, says("status of the item")] = UNSET
    role: str | UnsetType = UNSET
    content: Annotated[list[OutputPart] | UnsetType, says("content parts of a message")] = UNSET
    summary: Annotated[list[OutputPart] | UnsetType, says("reasoning text")] = UNSET
    encrypted_content: Annotated[
        str | UnsetType, says("reasoning for later requests; send it back unchanged")
    ] = UNSET
    call_id: Annotated[str | UnsetType, says("call ID, for the result of the call")] = UNSET
    namespace: Annotated[str | UnsetType, says("namespace of the function")] = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class InputTokens(Struct):
    """Details of the prompt tokens."""

    cached_tokens: Annotated[int, says("prompt tokens read from the cache")]


class OutputTokens(Struct):
    """Details of the generated tokens."""

    reasoning_tokens: Annotated[int, says("number of reasoning tokens")]


class ResponseUsage(Struct):
    """Token counts of the prompt and the response."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: Annotated[
        InputTokens | UnsetType, says("prompt tokens read from the cache")
    ] = UNSET
    output_tokens_details: Annotated[
        OutputTokens | UnsetType, says("number of reasoning tokens")
    ] = UNSET


class WholeResponse(Struct):
    """A response. The fields after `usage` repeat those of the request."""

    id: str
    object: Literal["response"]
    created_at: Annotated[int, says("creation time, in Unix seconds")]
    completed_at: Annotated[int | None, says("completion time, in Unix seconds")]
    status: Annotated[
        Literal["in_progress", "completed", "failed", "incomplete"], says("status of the response")
    ]
    error: Annotated[dict[str, Any] | None, says("the error, if the response failed")]
    incomplete_details: Annotated[dict[str, Any] | None, says("reason for an incomplete response")]
    model: str
    output: Annotated[list[OutputItem] | None, says("messages, reasoning and function calls")]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: Annotated[int | None, says("always null")]
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: Annotated[Any, says("as in the request")]
    reasoning: dict[str, Any] | None
    safety_identifier: Annotated[Any, says("as in the request")]
    service_tier: Annotated[str, says("always `default`")]
    store: Annotated[bool, says("true if the response is stored on disk")]
    background: Annotated[bool, says("as in the request; no effect")]
    temperature: float
    top_p: float
    top_logprobs: Annotated[int, says("number of alternatives returned per token")]
    presence_penalty: float
    frequency_penalty: float
    text: Annotated[dict[str, Any], says("text format, as in the request")]
    tool_choice: Any
    tools: list[dict[str, Any]]
    truncation: str
    user: Annotated[Any | UnsetType, says("as in the request")] = UNSET
    inspect: MaybeInspected = UNSET


class ResponseEvent(Struct):
    """An event of a streamed response. The fields depend on its type."""

    type: Annotated[str, says("event type, such as `response.output_text.delta`")]
    sequence_number: Annotated[int, says("event number, from 0")]
    response: Annotated[WholeResponse | UnsetType, says("the response so far")] = UNSET
    item: Annotated[OutputItem | UnsetType, says("output item")] = UNSET
    item_id: Annotated[str | UnsetType, says("ID of the item")] = UNSET
    output_index: Annotated[int | UnsetType, says("index of the item in the output")] = UNSET
    content_index: Annotated[int | UnsetType, says("index of the content part")] = UNSET
    summary_index: Annotated[int | UnsetType, says("index of the summary part")] = UNSET
    part: Annotated[OutputPart | UnsetType, says("content part")] = UNSET
    delta: Annotated[str | UnsetType, says("the added text")] = UNSET
    text: Annotated[str | UnsetType, says("the complete text")] = UNSET
    refusal: Annotated[str | UnsetType, says("the complete refusal")] = UNSET
    logprobs: Annotated[
        list[dict[str, Any]] | UnsetType, says("log probabilities of the tokens")
    ] = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    inspect: MaybeInspected = UNSET


class InputItems(Struct):
    """The input items of a response, newest first."""

    object: Literal["list"]
    data: Annotated[Sequence[Mapping[str, Any]], says("input items")]
    first_id: Annotated[str | None, says("ID of the first item")]
    last_id: Annotated[str | None, says("ID of the last item")]
    has_more: Annotated[bool, says("true if more items follow")]


class DeletedResponse(Struct):
    """A deleted response."""

    id: str
    object: Literal["response"]
    deleted: Annotated[bool, says("always true")]
