"""All that supervision needs to know of a process: values only.

Knows no model, engine or dialect: it could describe any server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec


class State(StrEnum):
    """States of a supervised process (the state machine is in `supervisor`)."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process listens, and the key it wants as a bearer token (None: none).

    `prefix` stands before every path; only servers that we did not start have one.
    `keeps_connections` False: it closes a connection after an answer, whatever it promised.
    """

    scheme: str = "http"
    host: str = "127.0.0.1"
    port: int
    api_key: str | None = None
    prefix: str = ""
    keeps_connections: bool = True

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A POST of JSON that a process must answer with 200 before it counts as ready."""

    path: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpProbe:
    """Ready when GET `path` answers with one of `ready_statuses`.

    If `verify_path` is set, one more GET there with the key must answer 200: it proves that
    the answering process is ours and not a stranger on the same port. `first_work` is for a server
    that listens before it can work: what it has to do once; it has `stall_timeout_s` for that.
    """

    path: str
    ready_statuses: frozenset[int] = frozenset({200})
    verify_path: str | None = None
    first_work: Work | None = None
    interval_s: float = 0.05
    timeout_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """How to stop: TERM, after `term_s` TERM again, after `second_term_s` more KILL the tree."""

    term_s: float = 1.0
    second_term_s: float = 2.0
    kill_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When and how often to restart after an unasked exit while serving.

    `delays_s[n]` is waited before restart n+1; after the last one the process is `failed`.
    A process that was ready for longer than it took to start, and for `healthy_after_s` at
    least, has its count reset. `start_retries` is how often a start is tried again when the
    diagnosis says that trying again can help (a taken port).
    """

    delays_s: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
    healthy_after_s: float = 5.0
    start_retries: int = 3
    cool_down_s: float = 15.0


class Fault(StrEnum):
    """Kinds of causes that a start in another way may avoid."""

    MEMORY = "memory"
    ARCHITECTURE = "architecture"
    QUANTISATION = "quantisation"
    MISMATCH = "mismatch"
    PORT = "port"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a process ended, for the user; `retryable`: the same start may go well another time.

    `fault` is its kind, None where nothing is known that would help.
    """

    cause: str
    hint: str | None = None
    retryable: bool = False
    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How one attempt ended: `code` as from `subprocess` (negative: signal), None: never ended.

    `stalled` tells that we ended it because it made no progress. `output` are its last lines,
    `first_error` the first line of all that names an error or exception. `oom`: whether the kernel
    has killed anything for want of memory while it ran; None: unknown.
    """

    code: int | None
    output: tuple[str, ...] = ()
    first_error: str | None = None
    stalled: bool = False
    was_ready: bool = False
    oom: bool | None = None


def plain_diagnosis(exit_: Exit) -> Diagnosis:
    """Diagnose without any knowledge of the program: exit code and last line."""
    last = next((line for line in reversed(exit_.output) if line.strip()), "no output")
    if exit_.stalled:
        return Diagnosis(cause=f"made no progress while starting (last line: {last.strip()})")
    if exit_.code is not None and exit_.code < 0:
        return Diagnosis(cause=f"ended by signal {-exit_.code}")
    return Diagnosis(cause=f"exit code {exit_.code}: {last.strip()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """One start of one process.

    `env` is the child's whole environment. `stall_timeout_s` ends a start during which the log
    did not grow for that long; None waits for ever. `diagnose` turns an exit into a cause.
    `progress` returns a value whose change counts as progress as well (bytes fetched, say).
    `hopeless` is a regular expression: after a line of output that matches it the process will
    never be ready, although it may go on (it is then ended and diagnosed like an exit).
    `fatal` is one as well: after such a line a process that serves has failed for good, though it
    may go on, and is restarted as after a crash.
    `hold_port` False is for a server that binds without SO_REUSEADDR (see `ports`).
    `scratch_variables` are set to a folder of its own for what it leaves behind (sockets, temporary
    files), which is removed with it; its path is short enough for a socket in it.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    endpoint: Endpoint
    probe: HttpProbe
    cwd: Path | None = None
    grace: Grace = field(default_factory=Grace)
    stall_timeout_s: float | None = 300.0
    diagnose: Callable[[Exit], Diagnosis] = plain_diagnosis
    progress: Callable[[], object] | None = None
    hopeless: str | None = None
    fatal: str | None = None
    hold_port: bool = True
    scratch_variables: tuple[str, ...] = ("TMPDIR",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The record of one start; `ended_s` and the rest are None while it runs.

    Times are Unix seconds. `log_path` is where its output lies.
    """

    number: int
    started_s: float
    log_path: Path
    pid: int | None = None
    ready_s: float | None = None
    ended_s: float | None = None
    exit: Exit | None = None
    diagnosis: Diagnosis | None = None
