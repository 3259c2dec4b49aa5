"""A worker: does what is costly, or a stranger's program, in a process of its own.

A chat template is a stranger's program. Jinja's sandbox keeps it from files and from Python; this
process keeps it from the server's time and memory. It is started with a socket as stdin and speaks
`wire` on it. When the server ends, however it does, so does the socket, and with it the worker; one
that is busy just then is ended by its limits.
"""

from __future__ import annotations

import pickle
import resource
import signal
import sys

import vllama.chat.templates.jinja.chat_template  # noqa: F401  # most jobs need it, and it takes a while
from vllama.base.errors import BadRequest, TemplateRefused, TemplateTooCostly, TemplateTooDeep
from vllama.chat.templates.jinja.wire import HEAD, JOB, MEMORY_BYTES, MEMORY_PER_BYTE, MIB, Outcome

VERDICTS = {
    TemplateRefused: Outcome.REFUSED,
    TemplateTooCostly: Outcome.COSTLY,
    TemplateTooDeep: Outcome.DEEP,
}
KEPT_BYTES = 32 * MIB
"""A worker that has grown by more than this ends, so that no job takes from the next."""


def main() -> None:
    """Answer jobs until the socket ends, or the process has grown too large."""
    jobs, answers = sys.stdin.buffer, open(0, "wb", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the server that stops may still need it
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the server has ended, and wants no answer
    limit(resource.RLIMIT_CORE, 0)
    size = measure_mapped_bytes()
    answers.write(HEAD.pack(Outcome.DONE.value, False, 0))
    answers.flush()
    ends = False
    while not ends and (head := jobs.read(JOB.size)):
        cpu_s, job_bytes = JOB.unpack(head)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # its signal ends C code as well
        if size:
            limit(resource.RLIMIT_AS, size + MEMORY_BYTES + MEMORY_PER_BYTE * job_bytes)
        verdict, text = answer(jobs.read(job_bytes))
        ends = verdict is Outcome.COSTLY or measure_mapped_bytes() > size + KEPT_BYTES
        answers.write(HEAD.pack(verdict.value, ends, len(text)))
        answers.write(text)
        answers.flush()


def answer(job: bytes) -> tuple[Outcome, bytes]:
    """Do one job: say how it went, and the result or the reason in UTF-8."""
    try:
        return Outcome.DONE, pickle.loads(job)().encode("utf-8", "replace")
    except MemoryError:
        return Outcome.COSTLY, f"it used more than {MEMORY_BYTES // MIB} MiB of memory".encode()
    except BadRequest as error:
        return VERDICTS.get(type(error), Outcome.FAILED), error.message.encode("utf-8", "replace")


def limit(kind: int, value: int) -> None:
    """Set a limit of this process, as far as whoever started the server allows."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def measure_mapped_bytes() -> int:
    """Return the size of the address space; 0 except on Linux, which alone limits it as well."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


if __name__ == "__main__":
    main()
