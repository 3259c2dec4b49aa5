"""A check, its findings, and how all checks run in parallel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from vllama.base.errors import VllamaError
from vllama.base.threads import begin

T = TypeVar("T")


class Severity(StrEnum):
    """Severity of a finding; only `FAILED` keeps something from working."""

    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a check found out: a sentence, and an imperative one that says what to do."""

    status: Severity
    text: str
    hint: str | None = None


def ok(text: str) -> Finding:
    """Find that something is as it should be."""
    return Finding(status=Severity.OK, text=text)


def warning(text: str, hint: str | None = None) -> Finding:
    """Find something that costs speed or comfort."""
    return Finding(status=Severity.WARNING, text=text, hint=hint)


def failure(text: str, hint: str | None = None) -> Finding:
    """Find something that keeps models from running."""
    return Finding(status=Severity.FAILED, text=text, hint=hint)


def skip(text: str) -> Finding:
    """Find that there is nothing to check."""
    return Finding(status=Severity.SKIPPED, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A question to this machine; `ask` may block, `limit_s` is how long it is waited for."""

    name: str
    ask: Callable[[], Iterable[Finding]]
    limit_s: float = 10.0


def run(checks: Sequence[Check]) -> list[tuple[str, Finding]]:
    """Ask all at once and return what they found, in the order of the checks; never raises.

    Takes no longer than the longest limit: a thread that hangs (a dead name server, a driver) is
    left behind, and does not keep the program from ending.
    """
    started_s = time.monotonic()
    running = [begin(_ask, check) for check in checks]
    found: list[tuple[str, Finding]] = []
    for check, asked in zip(checks, running, strict=True):
        left_s = started_s + check.limit_s - time.monotonic()
        found += [(check.name, finding) for finding in _wait(check, asked, max(0.0, left_s))]
    return found


class Once(Generic[T]):
    """Something that several checks want and only one of them has to find out."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._answer: list[T] = []

    def __call__(self) -> T:
        """Return it; raises what finding it out raises."""
        with self._lock:
            if not self._answer:
                self._answer.append(self._ask())
            return self._answer[0]


def _ask(check: Check) -> list[Finding]:
    return list(check.ask())


def _wait(check: Check, asked: Future[list[Finding]], limit_s: float) -> list[Finding]:
    try:
        return asked.result(limit_s)
    except VllamaError as error:
        return [failure(error.message, error.hint)]
    except Exception as error:  # a check must not take the others down
        if not asked.done():
            return [warning(f"no result within {check.limit_s:g} s")]
        return [warning(f"this check failed ({type(error).__name__}: {error})")]
