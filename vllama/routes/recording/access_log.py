"""The line of the log about a request that has ended, as text and as fields of the JSON log."""

from __future__ import annotations

import logging

from vllama.base.outcome import Outcome
from vllama.routes.recording.running import RunningRequest

log = logging.getLogger("vllama.access")

MAX_PATH = 1000  # characters that stand in the log


def log_access(
    level: int, running: RunningRequest, took_s: float, outcome: Outcome, end: str
) -> None:
    """Log a request; `end` completes the line, and says how it ended if that was not well."""
    if not log.isEnabledFor(level):
        return
    request, rate = running.request, running.tokens_per_s
    path, status = request.path[:MAX_PATH], request.status
    prompt, completion = running.prompt_tokens, running.tokens
    counted = bool(prompt or completion)
    parts = (
        f"{request.method} {path} {status or '-'} {took_s:.3f}s",
        running.model,
        f"{prompt or '?'}+{completion} tokens" if counted else "",
        f"{rate:.1f} tokens/s" if rate else "",
        f"from {request.client_host}" if request.client_host else "",
        f"key {running.key}" if running.key else "",
    )
    fields = {
        "method": request.method,
        "path": path,
        "status": status,
        "outcome": outcome,
        "seconds": round(took_s, 3),
        "prompt_tokens": prompt,
        "completion_tokens": completion if counted else None,
        "tokens_per_s": round(rate, 1) if rate else None,
        "client": request.client_host or None,
        "key": running.key or None,
    }
    known = {name: value for name, value in fields.items() if value is not None}
    text = " ".join(part for part in parts if part)
    log.log(level, "%s%s", text, end, extra={"fields": known})
