"""Which API a path belongs to: it decides the form of errors, and is a label of metrics."""

from __future__ import annotations

from enum import StrEnum


class Dialect(StrEnum):
    """The APIs that clients speak; `NONE` for routes that are no part of one, such as /health."""

    OLLAMA = "ollama"
    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    NONE = ""


_BY_PREFIX = (
    ("/v1/messages", Dialect.ANTHROPIC),
    ("/v1/responses", Dialect.RESPONSES),
    ("/v1/systemone", Dialect.OLLAMA),  # so does Ollama
    ("/v1/", Dialect.OPENAI),
    ("/v2/", Dialect.OPENAI),
    ("/rerank", Dialect.OPENAI),
    ("/score", Dialect.OPENAI),
    ("/api/", Dialect.OLLAMA),
)


def find_dialect(path: str) -> Dialect:
    """Return the dialect of a path, also of one that does not exist."""
    for prefix, dialect in _BY_PREFIX:
        if path.startswith(prefix):
            return dialect
    return Dialect.NONE
