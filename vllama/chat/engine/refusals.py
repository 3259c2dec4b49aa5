"""An engine's refusals as errors of our tree: replies with another status, and events in a stream.

Engines answer with OpenAI's object, FastAPI's `detail`, plain text, or pydantic's report with
source paths.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from vllama.base.errors import (
    BadRequest,
    CapabilityMissing,
    ContextOverflow,
    UpstreamError,
    VllamaError,
)
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
_WORDS = ("message", "msg", "error", "errors", "detail", "title", "reason", "innererror")
_TAGS = re.compile(r"<(style|script)\b[^<>]*+>[^<]*+|<[^<>]*+>", re.IGNORECASE)
_THROWN = re.compile(r"(?:Field ('[a-z0-9_.]{1,80}+'): )?\[json\.exception\.[a-z0-9_.]{1,40}+\] ")

_BUSY = {429: 429, 503: 503, 529: 503}  # 529: Anthropic's, "overloaded"
_CLIENT_FAULTS = (400, 404, 413, 415, 422)  # 404: the engine's own, not a missing model of ours


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
    if thrown := _THROWN.search(message):  # llama.cpp's
        message = f"cannot read {thrown[1] or 'the request'}: {message[thrown.end() :]}"
    lowered = message.lower()
    if kind in _OVERFLOW_TYPES or any(words in lowered for words in _OVERFLOW_WORDS):
        return ContextOverflow(clean_text(message) + counts)
    if "empty grammar stack" in lowered:  # of llama.cpp, with status 500
        return BadRequest("cannot keep to the grammar: no text fits it")
    if _VALIDATION.search(message):
        return BadRequest(_validation(message))
    text = clean_text(message)
    if status in _CLIENT_FAULTS:
        refused = BadRequest(text or f"the engine refused the request with status {status}")
        refused.status = 413 if status == 413 else 400
        return refused
    if 300 <= status < 400:
        place = re.sub(r"[^!-~]", "", headers.get("location", ""))[:300] or "an unnamed place"
        return UpstreamError(
            f"the engine sent a redirect (HTTP {status}) to {place}, which is not followed",
            hint="the operator has to correct that upstream's address in the settings",
        )
    if status == 501:
        return CapabilityMissing(text or "the engine does not support this request")
    if not text or text.lower() == "internal server error":
        text = f"the engine failed with status {status} and gave no reason"
    error = UpstreamError(text, status=_BUSY.get(status, 502))
    error.headers = {k: x for k, x in headers.items() if _PASSED.fullmatch(f"{k}: {x}")}
    if error.status != 502:
        error.code = code
    return error


def _read(body: bytes) -> tuple[str, str, str, str | None]:
    """Return (type, message, numbers worth keeping, code) of any of the shapes."""
    try:
        value = decode_value(body)
    except (ValueError, RecursionError):
        return "", _plain(body), "", None
    value = value[0] if isinstance(value, list) and value else value  # Gemini's is a list
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
    return "", _detail(value.get("detail")) or find_words(error), "", None


def find_words(error: object, depth: int = 8) -> str:
    """Return the words of an error in any form, or an empty string."""
    match error:
        case str():
            return error
        case dict():
            error = [error.get(name) for name in _WORDS]
    inner = error if isinstance(error, list) and depth else []
    return next((text for one in inner if (text := find_words(one, depth - 1))), "")


def _plain(body: bytes) -> str:
    text = body[:8000].decode(errors="replace")
    return _TAGS.sub(" ", text) if text.lstrip().startswith("<") else text


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
