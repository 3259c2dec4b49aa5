"""Errors across the border: ours in a client's dialect, an engine's in our tree.

Engines answer with OpenAI's object, FastAPI's `detail`, plain text, or pydantic's report with
source paths.

See docs/reference/ollama-api.md#conventions, #failures.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from vllama.base.errors import (
    BadRequest,
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
from vllama.chat.bodies import decode_value
from vllama.chat.engine.claims import clean_text

log = logging.getLogger(__name__)

NOTHING: Mapping[str, str] = MappingProxyType({})
_PASSED = re.compile(
    r"retry-after(-ms)?: (\d{1,9}+(\.\d{1,9}+)?|[A-Z][a-z]{2}, [\w: ]{20}+ GMT)|"
    r"(x-should-retry|(x|anthropic)-ratelimit-[a-z-]++): [ -~]{1,100}+",
    re.ASCII,
)


_OVERFLOW_TYPES = ("context_length_exceeded", "exceed_context_size_error")
_OVERFLOW_WORDS = (
    "maximum context length",
    "exceed context window",
    "exceeds the available context",
    "longer than the maximum model length",
    "longer than the context",
    "context length exceeded",
    "exceeds the context length",
    "context size has been exceeded",
)
_VALIDATION = re.compile(r"validation errors?\b", re.IGNORECASE)
_QUOTED = re.compile(r"'([^']*+)'|\"([^\"]*+)\"")

_BUSY = {429: 429, 503: 503, 529: 503}  # 529: Anthropic's, "overloaded"
_CLIENT_FAULTS = (400, 404, 413, 415, 422)  # 404: the engine's own, not a missing model of ours

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
    """What went wrong, and what to do."""

    error: Annotated[str, says("what went wrong, and what to do")]
    hint: str = ""
    signin_url: Annotated[str, says("where to sign in")] = ""


class ErrorDetails(Struct):
    """What went wrong, and what to do."""

    message: Annotated[str, says("what went wrong, and what to do")]
    type: Annotated[str, says("the kind of error")]
    param: Annotated[Any, says("the field that is wrong, if one is")]
    code: Annotated[str | None, says("the error, for programs")]


class OpenAIError(Struct):
    """An error in OpenAI's form."""

    error: Annotated[ErrorDetails, says("the error")]


class AnthropicErrorDetails(Struct):
    """What went wrong, and what to do."""

    type: Annotated[str, says("the kind of error")]
    message: Annotated[str, says("what went wrong, and what to do")]


class AnthropicError(Struct, tag="error"):
    """An error in Anthropic's form, also within a stream."""

    error: Annotated[AnthropicErrorDetails, says("the error")]
    request_id: Annotated[str | UnsetType | None, says("the request's id")] = UNSET


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


def clean_engine_error(
    status: int, body: bytes, headers: Mapping[str, str] = NOTHING
) -> VllamaError:
    """Turn an engine's error reply into ours: what the client did wrong is a BadRequest.

    A 5xx that reports a validation is the client's fault as well (llama.cpp's Python server).
    Clients are told what it says of when to come again.
    """
    kind, message, counts, code = _read(body)
    if status in (401, 403):  # the text may quote the key
        log.warning("an engine refuses our key (HTTP %d): %s", status, clean_text(message))
        return UpstreamError(
            f"the upstream refused the key of this server (HTTP {status})",
            hint="the operator has to correct that upstream's key in the settings",
        )
    lowered = message.lower()
    if kind in _OVERFLOW_TYPES or any(words in lowered for words in _OVERFLOW_WORDS):
        return ContextOverflow(clean_text(message) + counts)
    if _VALIDATION.search(message):
        return BadRequest(_validation(message))
    text = clean_text(message)
    if status in _CLIENT_FAULTS:
        return BadRequest(text or f"the engine refused the request with status {status}")
    if status == 501:
        return CapabilityMissing(text or "the engine does not support this request")
    if not text or text.lower() == "internal server error":
        text = f"the engine failed with status {status} and gave no reason"
    error = UpstreamError(text, status=_BUSY.get(status, 502))
    error.headers = {k: x for k, x in headers.items() if _PASSED.fullmatch(f"{k}: {x}")}
    if error.status != 502:
        error.code = code
    return error


def _text(error: VllamaError) -> str:
    """Return message and hint; texts that clients match exactly stay as they are."""
    exact = isinstance(error, ModelNotFound | CapabilityMissing | InvalidModelRef)
    return error.message if exact else error.sentence()


def _read(body: bytes) -> tuple[str, str, str, str | None]:
    """Return (type, message, numbers worth keeping, code) of any of the shapes."""
    try:
        value = decode_value(body)
    except (ValueError, RecursionError):
        return "", _plain(body), "", None
    if not isinstance(value, dict):
        return "", value if isinstance(value, str) else "", "", None
    error = value.get("error", value)
    match error:
        case str():
            return "", error, "", None
        case {"message": str(message)}:
            kinds = (error.get("type"), error.get("code"), error.get("object"))
            known = [kind for kind in kinds if isinstance(kind, str)]
            kind = next((k for k in known if k in _OVERFLOW_TYPES), known[0] if known else "")
            code = error.get("code")
            return kind, message, _counts(error, message), code if isinstance(code, str) else None
    return "", _detail(value.get("detail")), "", None


def _plain(body: bytes) -> str:
    text = body[:8000].decode(errors="replace")
    return "" if text.lstrip().startswith("<") else text


def _counts(error: Mapping[str, Any], message: str) -> str:
    """Name the prompt's and the context's size, if the message does not."""
    prompt, context = error.get("n_prompt_tokens"), error.get("n_ctx")
    if not isinstance(prompt, int) or not isinstance(context, int):
        return ""
    if str(prompt) in message and str(context) in message:
        return ""
    return f" (prompt: {prompt} tokens, context: {context})"


def _detail(detail: object) -> str:
    """Read FastAPI's `detail`: a string, or a list of what is wrong where."""
    if isinstance(detail, str):
        return detail
    if not isinstance(detail, list):
        return ""
    problems = []
    for item in detail:
        if isinstance(item, Mapping):
            where = item.get("loc")
            names = [str(n) for n in where if n != "body"] if isinstance(where, list) else []
            problems.append(f"{'.'.join(names)}: {item.get('msg', 'invalid')}".lstrip(": "))
    return "; ".join(problems)


def _validation(message: str) -> str:
    """Shorten pydantic's report to `field: what is wrong`."""
    problems = []
    for report in message[:20_000].split("'loc': (")[1:]:
        where, _, rest = report.partition(")")
        between, _, said = rest.partition("'msg': ")
        quoted = _QUOTED.match(said)
        if quoted is None or "{" in between or "}" in between:  # it is another entry's
            continue
        names = [part.strip(" '\"") for part in where.split(",")]
        field = ".".join(name for name in names if name and name != "body")
        problem = quoted[1] or quoted[2] or "invalid"
        problems.append(f"{field}: {problem}" if field else problem)
    return clean_text("; ".join(dict.fromkeys(problems)) or message)
