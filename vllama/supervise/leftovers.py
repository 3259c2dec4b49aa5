"""What a dead supervisor left behind: run files, and the engines they name.

On Linux the guard ends the engine when the supervisor dies; this is for the case that the guard
was killed too, and for platforms where a guard cannot follow every descendant. A process is only
touched if pid and start time are those in the file, or if it was given the folder for temporary
files of that start, which no other has. Knows no event loop.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from vllama import private
from vllama.supervise import shim, tree
from vllama.supervise.logs import slug

SCRATCH = "vllama-"
# a socket's path may have 107 bytes: this one, our name of 16, and a UUID
LONGEST = 50
_KILL_S = 5.0
_SAME_START_S = 1.5  # start times are seen through the wall clock, which may be adjusted


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A process and not merely a pid: `started_s` is its start in Unix seconds."""

    pid: int
    started_s: float

    @classmethod
    def of(cls, proc: psutil.Process) -> Identity:
        """Identify a living process; raises `psutil.Error` if it is gone."""
        return cls(pid=proc.pid, started_s=proc.create_time())

    def find(self) -> psutil.Process | None:
        """Return that very process if it still runs."""
        found = tree.process(self.pid)
        if found is None or abs(found.create_time() - self.started_s) > _SAME_START_S:
            return None
        return found


class RunFile:
    """The file `<run_dir>/<engine pid>-<name>.json` of a running engine."""

    def __init__(
        self,
        run_dir: Path,
        *,
        name: str,
        pid: int,
        argv: Sequence[str],
        scratch: Path | None = None,
    ) -> None:
        self.path = run_dir / f"{pid}-{slug(name)}.json"
        self._name = name
        self._pid = pid
        self._argv = list(argv[:3])
        self._scratch = scratch

    def write(self, known: Iterable[psutil.Process]) -> None:
        """Write it; `known` are descendants to be ended too, whether or not the engine lives."""
        engine, others = None, []
        for proc in known:
            try:
                identity = asdict(Identity.of(proc))
            except psutil.Error:
                continue
            if proc.pid == self._pid:
                engine = identity
            else:
                others.append(identity)
        record = {
            "name": self._name,
            "supervisor": asdict(Identity.of(psutil.Process())),
            "engine": engine,
            "descendants": others,
            "argv": self._argv,
            "scratch": str(self._scratch) if self._scratch else None,
        }
        private.make_folder(self.path.parent)
        private.replace(self.path, json.dumps(record))

    def remove(self) -> None:
        """Remove it, if it is there."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a run file tells; `leader` is the engine itself, if it was alive then."""

    name: str
    supervisor: Identity
    leader: list[Identity]
    others: list[Identity]
    scratch: Path | None = None

    def find(self) -> list[psutil.Process]:
        """Return all that still run: those that are named, and those that came later."""
        named = [proc for each in (*self.leader, *self.others) if (proc := each.find())]
        return [*{*named, *(tree.told_of(self.scratch) if self.scratch else ())}]

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """Return the record in `path`; None if it is none, or has just been removed."""
        try:
            record = json.loads(path.read_text())
            return cls(
                name=str(record["name"]),
                supervisor=Identity(**record["supervisor"]),
                leader=[Identity(**record["engine"])] if record["engine"] else [],
                others=[Identity(**item) for item in record["descendants"]],
                scratch=Path(record["scratch"]) if record.get("scratch") else None,
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


def sweep(run_dir: Path, *, term_s: float = 2.0) -> list[str]:
    """End the engines whose supervisor is dead, remove their files; return the engines' names.

    The files of a supervisor that lives are left alone. Blocks, up to seconds for each engine
    that is slow to end: `term_s` is what it has before SIGKILL. A file that does not parse is
    removed.
    """
    ended = []
    for path in sorted(run_dir.glob("*.json")):
        record = Record.read(path)
        if record is None:
            path.unlink(missing_ok=True)
            continue
        if record.supervisor.find() is not None:
            continue
        if _end(record, term_s):
            ended.append(record.name)
        remove_scratch(record.scratch)
        path.unlink(missing_ok=True)
    return ended


def look(run_dir: Path) -> list[tuple[str, list[int]]]:
    """Return name and pids of each engine that `sweep` would end; touches nothing."""
    found = []
    for path in sorted(run_dir.glob("*.json")):
        record = Record.read(path)
        if record is not None and record.supervisor.find() is None:
            pids = sorted(proc.pid for proc in record.find())
            found += [(record.name, pids)] if pids else []
    return found


def _end(record: Record, term_s: float) -> bool:
    """TERM, then KILL all that is left of them; return whether there was anybody."""
    roots = record.find()
    procs = set(roots).union(*(tree.list_below(root) for root in roots)) if roots else set()
    # Only a group whose leader is the engine itself is known to be ours.
    group = next((item.pid for item in record.leader if item.find() is not None), None)
    shared = shim.shared_memory(proc.pid for proc in procs)
    for number, limit_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, _KILL_S)):
        left = [proc for proc in procs if tree.alive(proc)]
        if not left:
            break
        if group is not None and _leads(group):
            procs.update(tree.list_session(group))
        for proc in procs:
            try:
                proc.send_signal(number)
            except psutil.Error:
                continue
        psutil.wait_procs(procs, timeout=limit_s)
    shim.remove_shared_memory(shared)
    return bool(roots)


def _leads(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False


def make_scratch_folder() -> Path:
    """Make a folder that only this user can enter, with a short path; raises OSError."""
    usual = tempfile.gettempdir()
    fits = len(os.fsencode(usual)) <= LONGEST or os.name == "nt"
    return Path(tempfile.mkdtemp(prefix=SCRATCH, dir=usual if fits else "/tmp"))


def remove_scratch(folder: Path | None) -> None:
    """Remove such a folder, if it is there; one with another name was not made here."""
    if folder is not None and folder.name.startswith(SCRATCH):
        shutil.rmtree(folder, ignore_errors=True)
