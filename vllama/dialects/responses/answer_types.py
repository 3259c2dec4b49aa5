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
    """Text of a response, or of a refusal, or a summary of its thinking."""

    type: Annotated[Literal["output_text", "refusal", "summary_text"], says("what it is")]
    text: str | UnsetType = UNSET
    refusal: Annotated[str | UnsetType, says("why the model refuses")] = UNSET
    annotations: Annotated[list[dict[str, Any]] | UnsetType, says("always empty")] = UNSET
    logprobs: Annotated[
        list[dict[str, Any]] | UnsetType, says("the log probabilities of the tokens")
    ] = UNSET


class OutputItem(Struct):
    """A message, thinking, or a call of a function."""

    id: str
    type: Annotated[Literal["message", "reasoning", "function_call"], says("what it is")]
    status: Annotated[str | UnsetType, says("how far it is")] = UNSET
    role: str | UnsetType = UNSET
    content: Annotated[list[OutputPart] | UnsetType, says("the parts of a message")] = UNSET
    summary: Annotated[list[OutputPart] | UnsetType, says("the thinking of a `reasoning`")] = UNSET
    encrypted_content: Annotated[
        str | UnsetType, says("the thinking, to be sent back as it is")
    ] = UNSET
    call_id: Annotated[str | UnsetType, says("the call's id, which its result names")] = UNSET
    namespace: Annotated[str | UnsetType, says("the namespace of the function")] = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class InputTokens(Struct):
    """Those of the prompt that needed no work."""

    cached_tokens: Annotated[int, says("the tokens that needed no work")]


class OutputTokens(Struct):
    """Those of the thinking."""

    reasoning_tokens: Annotated[int, says("the tokens of the thinking")]


class ResponseUsage(Struct):
    """Tokens of the prompt and of the response."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: Annotated[
        InputTokens | UnsetType, says("how many tokens of the prompt needed no work")
    ] = UNSET
    output_tokens_details: Annotated[
        OutputTokens | UnsetType, says("how many tokens were thinking")
    ] = UNSET


class WholeResponse(Struct):
    """A response. The fields after `usage` repeat those of the request."""

    id: str
    object: Literal["response"]
    created_at: Annotated[int, says("when it was begun, in Unix seconds")]
    completed_at: Annotated[int | None, says("when it was complete, in Unix seconds")]
    status: Annotated[
        Literal["in_progress", "completed", "failed", "incomplete"], says("how far it is")
    ]
    error: Annotated[dict[str, Any] | None, says("the error that it ended with")]
    incomplete_details: Annotated[dict[str, Any] | None, says("why it is incomplete")]
    model: str
    output: Annotated[list[OutputItem] | None, says("messages, thinking and calls")]
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
    store: Annotated[bool, says("whether it outlives the server")]
    background: Annotated[bool, says("as in the request, without effect")]
    temperature: float
    top_p: float
    top_logprobs: Annotated[int, says("how many alternatives to each token are given")]
    presence_penalty: float
    frequency_penalty: float
    text: Annotated[dict[str, Any], says("the form of the text, as in the request")]
    tool_choice: Any
    tools: list[dict[str, Any]]
    truncation: str
    user: Annotated[Any | UnsetType, says("as in the request")] = UNSET
    inspect: MaybeInspected = UNSET


class ResponseEvent(Struct):
    """A step of a streamed response; the fields depend on its type."""

    type: Annotated[str, says("the step, such as `response.output_text.delta`")]
    sequence_number: Annotated[int, says("the event's number, from 0")]
    response: Annotated[WholeResponse | UnsetType, says("the response so far")] = UNSET
    item: Annotated[OutputItem | UnsetType, says("an item of the output")] = UNSET
    item_id: Annotated[str | UnsetType, says("the item that it is about")] = UNSET
    output_index: Annotated[int | UnsetType, says("the item's place in the output")] = UNSET
    content_index: Annotated[int | UnsetType, says("the part's place in its item")] = UNSET
    summary_index: Annotated[int | UnsetType, says("the part's place in the summary")] = UNSET
    part: Annotated[OutputPart | UnsetType, says("a part of an item")] = UNSET
    delta: Annotated[str | UnsetType, says("what is added")] = UNSET
    text: Annotated[str | UnsetType, says("the whole text")] = UNSET
    refusal: Annotated[str | UnsetType, says("the whole refusal")] = UNSET
    logprobs: Annotated[
        list[dict[str, Any]] | UnsetType, says("the log probabilities of the tokens")
    ] = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    inspect: MaybeInspected = UNSET


class InputItems(Struct):
    """The input of a response, the newest first."""

    object: Literal["list"]
    data: Annotated[Sequence[Mapping[str, Any]], says("the items")]
    first_id: Annotated[str | None, says("the id of the first one")]
    last_id: Annotated[str | None, says("the id of the last one")]
    has_more: Annotated[bool, says("whether there are more")]


class DeletedResponse(Struct):
    """A response that is forgotten."""

    id: str
    object: Literal["response"]
    deleted: Annotated[bool, says("always true")]
