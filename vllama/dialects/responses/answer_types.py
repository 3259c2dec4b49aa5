"""The fields of `/v1/responses` and its events.

What has `UNSET` as its default may be missing.

See docs/reference/ollama-api.md#responses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class OutputPart(Struct):
    """Text of an answer, or a summary of its thinking."""

    type: Literal["output_text", "summary_text"]
    text: str
    annotations: list[Any] | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET


class OutputItem(Struct):
    """A message, thinking, or a call of a function."""

    id: str
    type: Literal["message", "reasoning", "function_call"]
    status: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    content: list[OutputPart] | UnsetType = UNSET
    summary: list[OutputPart] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class InputTokens(Struct):
    """Those of the prompt that needed no work."""

    cached_tokens: int


class OutputTokens(Struct):
    """Those of the thinking."""

    reasoning_tokens: int


class ResponseUsage(Struct):
    """Tokens of the prompt and of the answer."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokens | UnsetType = UNSET
    output_tokens_details: OutputTokens | UnsetType = UNSET


class Response(Struct):
    """A response. The fields after `usage` repeat those of the request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "failed", "incomplete"]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    model: str
    output: list[OutputItem] | None
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: Any
    reasoning: dict[str, Any] | None
    safety_identifier: Any
    service_tier: str
    store: bool
    background: bool
    temperature: float
    top_p: float
    top_logprobs: int
    presence_penalty: float
    frequency_penalty: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    truncation: str
    user: Any | UnsetType = UNSET


class ResponseEvent(Struct):
    """A step of a streamed response; the fields depend on its type."""

    type: str
    sequence_number: int
    response: Response | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET
    part: OutputPart | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class InputItems(Struct):
    """The input of a response, the newest first."""

    object: Literal["list"]
    data: Sequence[Mapping[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(Struct):
    """A response that is forgotten."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]
