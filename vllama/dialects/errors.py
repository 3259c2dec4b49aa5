"""Errors in a client's dialect.

See docs/reference/ollama-api.md#conventions, #failures.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from vllama.base.errors import (
    CapabilityMissing,
    ContextOverflow,
    InvalidModelRef,
    LimitReached,
    ModelNotFound,
    Unauthorized,
    UpstreamError,
    VllamaError,
)
from vllama.base.meaning import says

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "invalid_request_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_OPENAI_CODES = {
    ContextOverflow: "context_length_exceeded",
    LimitReached: "rate_limit_exceeded",
    Unauthorized: "invalid_api_key",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


class OllamaError(Struct, omit_defaults=True):
    """An error message, with a hint."""

    error: Annotated[str, says("error message, with a hint")]
    hint: str = ""
    signin_url: Annotated[str, says("sign-in URL")] = ""


class ErrorDetails(Struct):
    """An error message, with a hint."""

    message: Annotated[str, says("error message, with a hint")]
    type: Annotated[str, says("error type")]
    param: Annotated[Any, says("name of the invalid field, if any")]
    code: Annotated[str | None, says("machine-readable error code")]


class OpenAIError(Struct):
    """An error in OpenAI's format."""

    error: Annotated[ErrorDetails, says("the error")]


class AnthropicErrorDetails(Struct):
    """An error message, with a hint."""

    type: Annotated[str, says("error type")]
    message: Annotated[str, says("error message, with a hint")]


class AnthropicError(Struct, tag="error"):
    """An error in Anthropic's format, also within a stream."""

    error: Annotated[AnthropicErrorDetails, says("the error")]
    request_id: Annotated[str | UnsetType | None, says("request ID")] = UNSET


ErrorBody = OllamaError | OpenAIError | AnthropicError


def make_ollama_error(error: VllamaError, text: str | None = None) -> OllamaError:
    """Return Ollama's object; `hint` repeats the end of the text, for those who show it apart."""
    text = _text(error) if text is None else text
    hint = error.hint or ""
    return OllamaError(text, hint if text.endswith(hint) else "")


def make_openai_error(error: VllamaError) -> OpenAIError:
    """Return OpenAI's object."""
    own = error.code if isinstance(error, UpstreamError) else None
    code = next((name for kind, name in _OPENAI_CODES.items() if isinstance(error, kind)), own)
    kind = _OPENAI_TYPES.get(error.status, "api_error")
    return OpenAIError(ErrorDetails(_text(error), kind, None, code))


def make_anthropic_error(error: VllamaError, request_id: str = "") -> AnthropicError:
    """Return Anthropic's object; an id is made of the text if none is given."""
    text = _text(error)
    made = hashlib.blake2b(text.encode(errors="replace"), digest_size=12).hexdigest()
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
    return AnthropicError(AnthropicErrorDetails(kind, text), request_id or f"req_{made}")


def _text(error: VllamaError) -> str:
    """Return message and hint; texts that clients match exactly stay as they are."""
    exact = isinstance(error, ModelNotFound | CapabilityMissing | InvalidModelRef)
    return error.message if exact else error.sentence()
