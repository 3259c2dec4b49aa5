"""The line of the log about a request that has ended, as text and as fields of the JSON log."""

from __future__ import annotations

import logging

from vllama.dialects.events import EndedRow

log = logging.getLogger("vllama.access")


def log_access(level: int, row: EndedRow, end: str) -> None:
    """Log a request; `end` completes the line, and says how it ended if that was not well."""
    if not log.isEnabledFor(level):
        return
    prompt, counted = row.prompt_tokens, bool(row.prompt_tokens or row.tokens)
    parts = [f"{row.method} {row.path} {row.status or '-'} {row.seconds:.3f}s"]
    if row.model:
        parts.append(row.model)
    if counted:
        parts.append(f"{prompt or '?'}+{row.tokens} tokens")
    if row.tokens_per_s:
        parts.append(f"{row.tokens_per_s:.1f} tokens/s")
    if row.client:
        parts.append(f"from {row.client}")
    if row.key:
        parts.append(f"key {row.key}")
    fields = {
        "method": row.method,
        "path": row.path,
        "status": row.status,
        "outcome": row.outcome,
        "seconds": row.seconds,
        "prompt_tokens": prompt,
        "completion_tokens": row.tokens if counted else None,
        "tokens_per_s": row.tokens_per_s,
        "client": row.client or None,
        "key": row.key,
    }
    known = {name: value for name, value in fields.items() if value is not None}
    log.log(level, "%s%s", " ".join(parts), end, extra={"fields": known})
