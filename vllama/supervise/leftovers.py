"""Leftovers of a dead supervisor: run files, and the engines that they name.

On Linux the guard ends the engine when the supervisor dies. This module is for the case that the
guard was killed too, and for platforms where a guard cannot follow every descendant. To be safe, a
process is ended only if its pid and start time match the file, or if its environment has the
scratch folder of that start, which is unique. Knows no event loop.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import psutil

from vllama.base import private
from vllama.supervise import shim, tree
from vllama.supervise.logs import slug

SCRATCH = "vllama-"
# A socket's path may have 107 bytes: this folder, our name of 16 bytes, and a UUID.
MAX_PATH_BYTES = 50
_KILL_S = 5.0
_SAME_START_S = 1.5
"""A tolerance, because start times depend on the wall clock, which may be adjusted."""


class Identity(msgspec.Struct, frozen=True):
    """The identity of a process, since pids are reused; `started_s` is in Unix seconds."""

    pid: int
    started_s: float

    @classmethod
    def of(cls, proc: psutil.Process) -> Identity:
        """Identify a running process. Raises psutil.Error if it has ended."""
        return cls(proc.pid, proc.create_time())

    def find(self) -> psutil.Process | None:
        """Return this process if it still runs."""
        proc = tree.find_process(self.pid)
        if proc is None or abs(proc.create_time() - self.started_s) > _SAME_START_S:
            return None
        return proc


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a run file; `engine` is None if it had ended by that time.

    `argv` is for people who look into the file. `shared` are files in /dev/shm that it had mapped.
    """

    name: str
    supervisor: Identity
    engine: Identity | None
    descendants: list[Identity]
    argv: list[str] = []
    scratch: str | None = None
    shared: list[str] = []

    def find(self) -> list[psutil.Process]:
        """Return all processes that still run: those in the file, and later ones of that start."""
        named = [
            proc for each in (self.engine, *self.descendants) if each and (proc := each.find())
        ]
        later = tree.find_by_environment(Path(self.scratch)) if self.scratch else ()
        return [*{*named, *later}]


class RunFile:
    """The file `<run_dir>/<engine pid>-<name>.json` of a running engine."""

    def __init__(
        self, run_dir: Path, *, name: str, pid: int, argv: Sequence[str], scratch: Path
    ) -> None:
        self.path = run_dir / f"{pid}-{slug(name)}.json"
        self._name = name
        self._pid = pid
        self._argv = list(argv[:3])
        self._scratch = scratch

    def write(self, known: Iterable[psutil.Process], shared: Iterable[str] = ()) -> None:
        """Write the file; the processes of the tree and `shared` memory go with the engine."""
        found = []
        for proc in known:
            with contextlib.suppress(psutil.Error):
                found.append(Identity.of(proc))
        record = RunRecord(
            name=self._name,
            supervisor=Identity.of(psutil.Process()),
            engine=next((one for one in found if one.pid == self._pid), None),
            descendants=[one for one in found if one.pid != self._pid],
            argv=self._argv,
            scratch=str(self._scratch),
            shared=sorted(shared),
        )
        private.replace(self.path, msgspec.json.encode(record))

    def remove(self) -> None:
        """Remove the file if it exists."""
        self.path.unlink(missing_ok=True)


def read_record(path: Path) -> RunRecord | None:
    """Return the record in `path`; None if it is invalid or has just been removed."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunRecord)
    except (OSError, ValueError, RecursionError):  # an error of msgspec is one of the last two
        return None


def sweep(run_dir: Path, *, term_s: float = 2.0) -> list[str]:
    """End the engines of dead supervisors and remove their files; return the engines' names.

    Files of running supervisors are left alone; invalid files are removed. Blocks for up to seconds
    per engine: each has `term_s` before SIGKILL.
    """
    ended = []
    for path in sorted(run_dir.glob("*.json")):
        record = read_record(path)
        if record is None:
            with contextlib.suppress(OSError):
                path.unlink()
            continue
        if record.supervisor.find() is not None:
            continue
        if _end(record, term_s):
            ended.append(record.name)
        if record.scratch:
            remove_scratch(Path(record.scratch))
        path.unlink(missing_ok=True)
    return ended


def list_leftovers(run_dir: Path) -> list[tuple[str, list[int]]]:
    """Return the name and pids of each engine that `sweep` would end; changes nothing."""
    leftovers = []
    for path in sorted(run_dir.glob("*.json")):
        record = read_record(path)
        if record is not None and record.supervisor.find() is None:
            pids = sorted(proc.pid for proc in record.find())
            leftovers += [(record.name, pids)] if pids else []
    return leftovers


def _end(record: RunRecord, term_s: float) -> bool:
    """Send TERM, then KILL, to all remaining processes; return whether there were any."""
    roots = record.find()
    procs = set(roots).union(*(tree.list_below(root) for root in roots)) if roots else set()
    # A group is certainly ours only if the engine itself leads it.
    group = record.engine.pid if record.engine and record.engine.find() else None
    shared = {*record.shared, *shim.list_shared_memory(proc.pid for proc in procs)}
    for number, limit_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, _KILL_S)):
        left = [proc for proc in procs if tree.is_alive(proc)]
        if not left:
            break
        if group is not None and _is_session_leader(group):
            procs.update(tree.list_session(group))
        for proc in procs:
            try:
                proc.send_signal(number)
            except psutil.Error:
                continue
        psutil.wait_procs(procs, timeout=limit_s)
    shim.remove_shared_memory(shared)
    return bool(roots)


def _is_session_leader(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False


def make_scratch_folder() -> Path:
    """Create a folder with a short path that only this user can enter. Raises OSError."""
    usual = tempfile.gettempdir()
    fits = len(os.fsencode(usual)) <= MAX_PATH_BYTES or os.name == "nt"
    return Path(tempfile.mkdtemp(prefix=SCRATCH, dir=usual if fits else "/tmp"))


def remove_scratch(folder: Path) -> None:
    """Remove a scratch folder if it exists; a folder with another name is not ours, and is kept."""
    if folder.name.startswith(SCRATCH):
        shutil.rmtree(folder, ignore_errors=True)
