"""From an engine's last lines and its exit code to a cause and a hint. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from vllama.engines.base import FailurePattern
from vllama.engines.devices import REMEDY
from vllama.supervise.spec import Diagnosis, Exit, Fault

MAX_LINE = 300

SIGNALS = {
    signal.SIGKILL: (
        "it was killed (SIGKILL), probably because the system ran out of memory",
        "use a smaller model or context, or free memory",
    ),
    signal.SIGSEGV: ("it crashed in native code (SIGSEGV)", "update the engine"),
    signal.SIGABRT: ("it aborted in native code (SIGABRT)", "see the log above the last lines"),
    signal.SIGILL: (
        "it was built for another CPU (illegal instruction)",
        "reinstall the engine on this machine",
    ),
    signal.SIGBUS: (
        "it could not read its memory (SIGBUS): the model file changed, or the disk failed",
        None,
    ),
}
SIGNAL_FAULTS = {signal.SIGKILL: Fault.MEMORY, signal.SIGILL: Fault.MISMATCH}
# what Python, uvicorn and extension modules print whenever they end
SHUTDOWN_NOISE = re.compile(
    r"nanobind|^\s*- (?:leaked|skipped remainder)|resource_tracker|^\s*warnings\.warn\("
    r"|^INFO:\s+(?:Shutting down|Waiting for|Application shutdown|Finished server)"
)

Row = tuple[str, str, str | None, Fault | None]
"""The pattern, cause, hint and fault of a `FailurePattern`."""


def make_patterns(*rows: Row | FailurePattern) -> tuple[FailurePattern, ...]:
    """Return the patterns of a table; one that finds the port taken is retryable."""
    return tuple(
        row
        if isinstance(row, FailurePattern)
        else FailurePattern(
            pattern=row[0], cause=row[1], hint=row[2], fault=row[3], retryable=row[3] is Fault.PORT
        )
        for row in rows
    )


# What any program may print; tried after an engine's own patterns. A table with a pattern that
# matches any error has to name these before it.
GENERAL = make_patterns(
    (r"error while loading shared libraries: (\S+):"
     r"|(?:ImportError|OSError): (\S+): cannot open shared object file",
     "its library {0}{1} is missing", "reinstall the engine or the library", Fault.MISMATCH),
    (r"version [`']((?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found",
     "it was built for a newer system ({0})",
     "install a build for this system, or use another engine", Fault.MISMATCH),
    (r"undefined symbol: (\S+)",
     "its installed libraries do not match (no symbol {0})",
     "remove its environment and install it again", Fault.MISMATCH),
    (r"(?i)driver version is insufficient|NVIDIA driver on your system is too old"
     r"|forward compatibility was attempted on non supported HW",
     "the GPU driver is too old for this build",
     "update the driver, or install a build for an older one", Fault.MISMATCH),
    (r"No (?:CUDA|HIP) GPUs are available|CUDA unknown error|no (?:CUDA|ROCm)-capable device",
     "it finds no usable GPU", REMEDY, Fault.DEVICE),
    (r"(?i)no kernel image is available|the provided PTX was compiled with"
     r"|not compatible with the current PyTorch installation",
     "this build has no code for this GPU",
     "install a build for this GPU, or use another engine", Fault.MISMATCH),
    (r"Exec format error|cannot execute binary file", "it was built for another machine type",
     "reinstall the engine on this machine", Fault.MISMATCH),
    (r"(?i)out of memory|OutOfMemoryError|\bMemoryError\b|std::bad_alloc"
     r"|(?:cannot|can't) allocate memory|not enough memory|unable to mmap|\[metal::malloc\]",
     "the model and its context do not fit into memory",
     "use a smaller --context-length or a smaller model, or free memory", Fault.MEMORY),
    (r"(?:what\(\)|Error|died):\s+(?:\[Errno 11\] )?Resource temporarily unavailable"
     r"|can't start new thread"
     r"|pthread_create failed",
     "it could not start a thread: too little memory, or too many processes",
     "free memory, use a smaller --context-length, or increase the limits (ulimit -v, -u)",
     Fault.MEMORY),
    (r"(?i)address already in use|port \d+ is already in use",
     "its port was taken by another program", "try again: vllama uses a new port each time",
     Fault.PORT),
    (r"(?:ModuleNotFoundError|ImportError): (.+)", "its installation is incomplete ({0})",
     "remove its environment and install it again", Fault.MISMATCH),
    (r"(?i)(?:unrecognized arguments|no such option): (.+)", "it does not support the argument {0}",
     "correct engine_args (the arguments after '--')", None),
)  # fmt: skip


# Of pydantic (docs.pydantic.dev/latest/errors/errors): a line for the count, then the place of each
# error (none for a whole model), its sentence of one or more lines, and a link. A server may write
# its own words before each line.
REPORT = re.compile(r"(?:[\w.]*\.)?ValidationError: (\d+) validation errors? for .*")
_SERVER = re.compile(r"^(?:\([^)]*\) ?)?(?:ERROR [^\]]*\] ?)?")
_LINK = "For further information visit https://errors.pydantic.dev"
REFUSED = FailurePattern(pattern=r"ValidationError: (?!\d+ validation)(.{1,300})", cause="{0}")


def join_reports(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the lines with each ValidationError of pydantic's as one line, without its link."""
    joined: list[str] = []
    errors, place, sentence = 0, "", ""
    for line in lines:
        text = _SERVER.sub("", line)
        if match := REPORT.search(line):
            errors, place, sentence = int(match[1]), "", ""
            joined.append(f"{line[: match.start()]}ValidationError:")
        elif not errors:
            joined += [line] * (_LINK not in line)
        elif not (sentence or text.startswith("  ")):
            place = f"{text}: "
        else:
            part, end, _ = text.partition(" [type=") if _LINK not in line else ("", sentence, "")
            part = re.sub(r"^(?:Value error|Assertion failed), ", "", part.strip())
            sentence = f"{sentence} {part}".strip()
            if end:
                joined[-1] += f"{'' if joined[-1].endswith(':') else ';'} {place}{sentence}"
                errors, place, sentence = errors - 1, "", ""
    return tuple(joined)


def compile_failures(patterns: Sequence[FailurePattern]) -> Callable[[Exit], Diagnosis]:
    """Return a function that explains an exit: by `patterns`, by `GENERAL`, or by its code."""
    rows = (*patterns, *GENERAL, REFUSED)
    compiled = [(re.compile(pattern.pattern), pattern) for pattern in rows]

    def explain(exit_: Exit) -> Diagnosis:
        # a long traceback may have pushed the telling line out of the last ones
        first = (exit_.first_error,) if exit_.first_error else ()
        exit_ = replace(exit_, output=join_reports(exit_.output))
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
            hint="allow more time with --load-timeout, or see its log",
        )
    if exit_.code is not None and exit_.code < 0:
        try:
            number = signal.Signals(-exit_.code)
        except ValueError:
            return Diagnosis(cause=f"it was killed by signal {-exit_.code}")
        if number is signal.SIGKILL and exit_.oom is False:
            return Diagnosis(cause="another process killed it (SIGKILL); enough memory was free")
        cause, hint = SIGNALS.get(number, (f"it was killed by {number.name}", None))
        return Diagnosis(cause=cause, hint=hint, fault=SIGNAL_FAULTS.get(number))
    if exit_.code is None:
        return Diagnosis(cause=f"it failed without stating a reason (last line: {last})")
    return Diagnosis(cause=f"it exited with code {exit_.code}: {last}")


def find_last_message(output: Sequence[str]) -> str:
    """Return the last line that says something, cut to `MAX_LINE` characters."""
    lines = (text.strip() for text in reversed(output) if not SHUTDOWN_NOISE.search(text))
    line = next(filter(None, lines), "no output")
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"
