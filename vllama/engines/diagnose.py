"""From an engine's last lines and exit code to a cause and a hint. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence

from vllama.engines.base import FailurePattern
from vllama.engines.general_failures import GENERAL
from vllama.supervise.spec import Diagnosis, Exit, Fault

MAX_LINE = 300

SIGNALS = {
    signal.SIGKILL: (
        "it was killed (SIGKILL); if nobody did that, the system ran out of memory",
        "use a smaller model or context, or free memory",
    ),
    signal.SIGSEGV: ("it crashed in native code (SIGSEGV)", "update the engine"),
    signal.SIGABRT: ("it aborted in native code (SIGABRT)", "read the log above the last lines"),
    signal.SIGILL: (
        "it was built for another CPU (illegal instruction)",
        "install the engine again on this machine",
    ),
    signal.SIGBUS: (
        "it could not read its memory (SIGBUS), the model's file changed or the disk failed",
        None,
    ),
}
FAREWELL = re.compile(
    r"nanobind|^\s*- (?:leaked|skipped remainder)|resource_tracker|^\s*warnings\.warn\("
    r"|^INFO:\s+(?:Shutting down|Waiting for|Application shutdown|Finished server)"
)
FAULTS = {signal.SIGKILL: Fault.MEMORY, signal.SIGILL: Fault.MISMATCH}


def diagnose(patterns: Sequence[FailurePattern]) -> Callable[[Exit], Diagnosis]:
    """Return a function that explains an exit.

    By `patterns`, then by what any program may print (`GENERAL`), else by the exit code.
    """
    compiled = [(re.compile(pattern.pattern), pattern) for pattern in (*patterns, *GENERAL)]

    def explain(exit_: Exit) -> Diagnosis:
        # a long trace may have pushed the line that tells out of the last ones
        first = (exit_.first_error,) if exit_.first_error else ()
        newest, oldest = (*reversed(exit_.output), *first), (*first, *exit_.output)
        for regex, pattern in compiled:
            for line in oldest if pattern.oldest else newest:
                if match := regex.search(line):
                    groups = tuple(group or "" for group in match.groups())
                    return Diagnosis(
                        cause=pattern.cause.format(*groups),
                        hint=pattern.hint.format(*groups) if pattern.hint else None,
                        retryable=pattern.retryable,
                        fault=pattern.fault,
                    )
        return explain_exit(exit_)

    return explain


def explain_exit(exit_: Exit) -> Diagnosis:
    """Explain an exit that no pattern matches."""
    last = last_words(exit_.output)
    if exit_.stalled:
        return Diagnosis(
            cause=f"it made no progress while starting (last line: {last})",
            hint="give it more time with --load-timeout, or read its log",
        )
    if exit_.code is not None and exit_.code < 0:
        try:
            number = signal.Signals(-exit_.code)
        except ValueError:
            return Diagnosis(cause=f"it was ended by signal {-exit_.code}")
        if number is signal.SIGKILL and exit_.oom is False:
            return Diagnosis(cause="it was killed (SIGKILL), and not for want of memory")
        cause, hint = SIGNALS.get(number, (f"it was ended by {number.name}", None))
        return Diagnosis(cause=cause, hint=hint, fault=FAULTS.get(number))
    if exit_.code is None:
        return Diagnosis(cause=f"it cannot go on, and does not say why (last line: {last})")
    return Diagnosis(cause=f"it ended with exit code {exit_.code}: {last}")


def last_words(output: Sequence[str]) -> str:
    """Return the last line that says something, cut to a readable length.

    What Python, uvicorn and extension modules print whenever they end says nothing.
    """
    told = (text.strip() for text in reversed(output) if not FAREWELL.search(text))
    line = next(filter(None, told), "no output")
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"
