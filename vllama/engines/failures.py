"""From an engine's last lines and its exit code to a cause and a hint. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence

from vllama.engines.base import FailurePattern
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
SIGNAL_FAULTS = {signal.SIGKILL: Fault.MEMORY, signal.SIGILL: Fault.MISMATCH}
# what Python, uvicorn and extension modules print whenever they end
SHUTDOWN_NOISE = re.compile(
    r"nanobind|^\s*- (?:leaked|skipped remainder)|resource_tracker|^\s*warnings\.warn\("
    r"|^INFO:\s+(?:Shutting down|Waiting for|Application shutdown|Finished server)"
)

# What any program may print; tried after an engine's own patterns. A table with a pattern that
# matches any error has to name these before it.
GENERAL = (
    FailurePattern(
        pattern=r"error while loading shared libraries: (\S+):"
        r"|(?:ImportError|OSError): (\S+): cannot open shared object file",
        cause="its library {0}{1} is missing",
        hint="install the engine again, or the library",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"version [`']((?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found",
        cause="it was built for a newer system ({0})",
        hint="install a build for this system, or choose another engine",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"undefined symbol: (\S+)",
        cause="the parts of its installation do not fit each other (no symbol {0})",
        hint="remove its environment and install it again",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"(?i)driver version is insufficient|NVIDIA driver on your system is too old"
        r"|forward compatibility was attempted on non supported HW",
        cause="the driver of the GPU is too old for this build",
        hint="update the driver, or install a build for an older one",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"(?i)no kernel image is available|the provided PTX was compiled with"
        r"|not compatible with the current PyTorch installation",
        cause="this build has no code for this GPU",
        hint="install a build for this GPU, or choose another engine",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"Exec format error|cannot execute binary file",
        cause="it was built for another kind of machine",
        hint="install the engine again on this machine",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"(?i)out of memory|OutOfMemoryError|\bMemoryError\b|std::bad_alloc"
        r"|(?:cannot|can't) allocate memory|not enough memory|unable to mmap|\[metal::malloc\]",
        cause="the model and its context do not fit into memory",
        hint="use a smaller context (--ctx) or a smaller model, or free memory",
        fault=Fault.MEMORY,
    ),
    FailurePattern(
        pattern=r"(?:what\(\)|Error|died):\s+(?:\[Errno 11\] )?Resource temporarily unavailable"
        r"|can't start new thread"
        r"|pthread_create failed",
        cause="it could not start a thread: too little memory, or too many processes",
        hint="free memory, use a smaller context (--ctx), or raise the limits (ulimit -v, -u)",
        fault=Fault.MEMORY,
    ),
    FailurePattern(
        pattern=r"(?i)address already in use|port \d+ is already in use",
        cause="its port was taken by another program",
        hint="try again: vllama chooses another one each time",
        retryable=True,
        fault=Fault.PORT,
    ),
    FailurePattern(
        pattern=r"(?:ModuleNotFoundError|ImportError): (.+)",
        cause="its installation is not complete ({0})",
        hint="remove its environment and install it again",
        fault=Fault.MISMATCH,
    ),
    FailurePattern(
        pattern=r"(?i)(?:unrecognized arguments|no such option): (.+)",
        cause="it does not know the argument {0}",
        hint="correct engine_args (what stands after '--')",
    ),
)


def compile_failures(patterns: Sequence[FailurePattern]) -> Callable[[Exit], Diagnosis]:
    """Return a function that explains an exit: by `patterns`, by `GENERAL`, or by its code."""
    compiled = [(re.compile(pattern.pattern), pattern) for pattern in (*patterns, *GENERAL)]

    def explain(exit_: Exit) -> Diagnosis:
        # a long traceback may have pushed the telling line out of the last ones
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
    last = find_last_message(exit_.output)
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
        return Diagnosis(cause=cause, hint=hint, fault=SIGNAL_FAULTS.get(number))
    if exit_.code is None:
        return Diagnosis(cause=f"it cannot go on, and does not say why (last line: {last})")
    return Diagnosis(cause=f"it ended with exit code {exit_.code}: {last}")


def find_last_message(output: Sequence[str]) -> str:
    """Return the last line that says something, cut to `MAX_LINE` characters."""
    lines = (text.strip() for text in reversed(output) if not SHUTDOWN_NOISE.search(text))
    line = next(filter(None, lines), "no output")
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"
