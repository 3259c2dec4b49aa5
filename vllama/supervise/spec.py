"""The description of a process to supervise: values only.

Knows no model, engine or dialect; it could describe any server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from vllama.base.errors import VllamaError
from vllama.base.units import format_amounts


class State(StrEnum):
    """States of a supervised process (the state machine is in `supervisor`)."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"


SCRATCH = "{scratch}"
SOCKET = f"{SCRATCH}/engine.sock"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a process, and the key that it requires as a bearer token, if any.

    `socket` is the path of a Unix socket that it listens on instead of the port; `SCRATCH` in it
    stands for the folder of `LaunchSpec.scratch_variables`, which nobody else can enter.

    `prefix` precedes every path; only external servers have one. `keeps_connections` False: the
    server closes the connection after an answer, even if it promised to keep it alive.

    External servers only (`is_elsewhere`): `upstream` is the name that the user gave the server
    ("": none), `model` is the model's name there (None: as everywhere), `weight` the
    share of the requests that it gets, `concurrent` the most requests at once (None: no limit), and
    GET `health_path` (None: the usual one) is asked every `health_interval_s`. `is_spare`: the
    server counts as ready without it. `is_node`: it is a vllama of this cluster. `certificates` is
    a file: a server that shows none of these is not used ("": the system decides).
    """

    scheme: str = "http"
    host: str = "127.0.0.1"
    port: int
    socket: str = ""
    api_key: str | None = None
    prefix: str = ""
    keeps_connections: bool = True
    upstream: str = ""
    model: str | None = None
    weight: int = 1
    concurrent: int | None = None
    health_path: str | None = None
    health_interval_s: float = 5.0
    is_spare: bool = False
    is_elsewhere: bool = False
    is_node: bool = False
    certificates: str = ""

    @property
    def title(self) -> str:
        """Title for clients: never its address."""
        if not self.is_elsewhere:
            return "the engine"
        kind = "node" if self.is_node else "upstream"
        return f"the {kind} '{self.upstream}'" if self.upstream else f"the {kind}"

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        if self.socket:
            return f"unix:{self.socket}"
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

    If `verify_path` is set, another GET there with the key must answer 200. That proves that our
    process answers, and not another program on the same port. `first_work` is for a server that
    listens before it can work: a request that it has to answer first, within `stall_timeout_s`.
    """

    path: str
    ready_statuses: frozenset[int] = frozenset({200})
    verify_path: str | None = None
    first_work: Work | None = None
    interval_s: float = 0.05
    timeout_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """Steps of a stop: TERM, again after `term_s`, KILL the tree after another `second_term_s`."""

    term_s: float = 1.0
    second_term_s: float = 2.0
    kill_s: float = 5.0


class Fault(StrEnum):
    """The kinds of causes that another plan may avoid."""

    MEMORY = "memory"
    ARCHITECTURE = "architecture"
    QUANTIZATION = "quantization"
    MISMATCH = "mismatch"
    DEVICE = "device"
    REMOTE = "remote"
    PORT = "port"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a process ended, for the user; `retryable`: the same start may succeed the next time.

    `fault` is the kind of the cause, None if no other plan would help.
    """

    cause: str
    hint: str | None = None
    retryable: bool = False
    fault: Fault | None = None


class LaunchFailed(VllamaError):
    """A launch spec cannot be made; `fault` says what may avoid that."""

    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Exit of one attempt: `code` as from `subprocess` (negative: signal), None: still running.

    `stalled`: it was ended because it made no progress. `output` are its last lines, `first_error`
    the first of all lines that names an error or exception. `excess_bytes`: its memory, if that was
    more than its limit. `oom`: whether the kernel killed any process for lack of memory meanwhile;
    None if unknown.
    """

    code: int | None
    output: tuple[str, ...] = ()
    first_error: str | None = None
    stalled: bool = False
    excess_bytes: int | None = None
    oom: bool | None = None


def diagnose_plainly(exit_: Exit) -> Diagnosis:
    """Diagnose by exit code and last line, without any knowledge of the program."""
    last = next((line for line in reversed(exit_.output) if line.strip()), "no output")
    if exit_.stalled:
        return Diagnosis(cause=f"made no progress while starting (last line: {last.strip()})")
    if exit_.code is not None and exit_.code < 0:
        return Diagnosis(cause=f"killed by signal {-exit_.code}")
    return Diagnosis(cause=f"exit code {exit_.code}: {last.strip()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """One start of one process.

    `env` is the child's whole environment. `diagnose` turns an exit into a cause.

    `stall_timeout_s` ends a start whose log has not grown for that long; None waits for ever.

    `hopeless` and `fatal` are regular expressions for lines of output after which a process is of
    no use although it may keep running. After a `hopeless` line it will never be ready; it is ended
    and diagnosed as after an exit. After a `fatal` line while serving, it is restarted as after a
    crash.

    `scratch_variables` are set to a folder for its sockets and temporary files, which is removed
    after its end. The path of the folder is short enough for a socket in it. In `argv` and in the
    endpoint's `socket`, `SCRATCH` stands for it.

    `silence` is the fault of a process that hangs or makes no progress while starting.

    A tree that takes more than `memory_limit_bytes`, without the files that it has mapped, is ended
    (Linux only; None: no limit).
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    endpoint: Endpoint
    probe: HttpProbe
    cwd: Path | None = None
    grace: Grace = field(default_factory=Grace)
    stall_timeout_s: float | None = 300.0
    diagnose: Callable[[Exit], Diagnosis] = diagnose_plainly
    silence: Fault | None = None
    hopeless: str | None = None
    fatal: str | None = None
    scratch_variables: tuple[str, ...] = ("TMPDIR",)
    memory_limit_bytes: int | None = None

    def explain(self, exit_: Exit) -> Diagnosis:
        """Return why the process has ended."""
        if exit_.excess_bytes is None:
            return self.diagnose(exit_)
        took, limit = format_amounts(exit_.excess_bytes, self.memory_limit_bytes or 0)
        took = f"{took} of memory, more" if exit_.excess_bytes else "more memory"
        return Diagnosis(cause=f"it used {took} than its limit of {limit}")

    def place(self, scratch: Path) -> LaunchSpec:
        """Return the start with that folder for its sockets and temporary files."""
        socket = self.endpoint.socket.replace(SCRATCH, str(scratch))
        return replace(
            self,
            argv=tuple(word.replace(SCRATCH, str(scratch)) for word in self.argv),
            env={**self.env, **dict.fromkeys(self.scratch_variables, str(scratch))},
            endpoint=msgspec.structs.replace(self.endpoint, socket=socket),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The record of one start; `ended_s` and later fields are None while it runs.

    Times are Unix seconds. `log_path` is the log with its output.
    """

    number: int
    started_s: float
    log_path: Path
    pid: int | None = None
    ready_s: float | None = None
    ended_s: float | None = None
    exit: Exit | None = None
    diagnosis: Diagnosis | None = None
