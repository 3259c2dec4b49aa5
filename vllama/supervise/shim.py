"""The guard: a small program between supervisor and engine, so that no engine outlives either.

It is started as ``python -I -S shim.py --status-fd N --grace S [--second-term S] [--scratch DIR]
[--files N] [--oom-score N] [--memory BYTES] -- argv…`` with the read end of a pipe as stdin. The
supervisor holds the write end and never writes. When the supervisor dies, even by SIGKILL, the pipe
closes. The guard is a separate program that uses only the standard library and knows nothing about
the engine.

The engine's environment is passed encoded in one variable. Thus it does not affect the guard's
Python (LD_PRELOAD, PYTHONPATH), nor the guard's Python the environment (PEP 538 sets LC_CTYPE).

1. Become child subreaper (Linux), so that the guard inherits orphans of the engine, and closed to
   other processes of the user: its environment may have secrets.
2. Fork the engine into its own session; PDEATHSIG ends it if the guard is SIGKILLed.
3. Report ``pid N`` to the supervisor on the status fd, or ``error TEXT`` and exit with 127.
4. Wait for signals and for stdin. When the engine ends, report ``exit CODE`` on the status fd. A
   tree with more than ``--memory`` of its own (Linux) is stopped, as by Ctrl-Z, and reported as
   ``memory BYTES``: the supervisor ends it, after it has learned why. Where systemd lets the
   service divide its control group, the kernel holds the limit, too: ``memory 0``, then the exit.
5. After the end of stdin, SIGTERM, SIGINT, SIGHUP or the engine's end, send SIGTERM to its group
   and every descendant, again after the second-term time (default: half of the grace), and SIGKILL
   after the grace (at once on SIGUSR1), repeated every 50 ms until no process is left.
6. Remove the leftovers of the tree: the scratch folder, and shared memory that a killed process
   could not remove (engines with several processes leave hundreds of megabytes in /dev/shm).
7. Exit as the engine did: with the same code, or by the same signal.
"""

import binascii
import os
import resource
import select
import signal
import sys
import time

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from collections.abc import Iterable

ENV_VARIABLE = "VLLAMA_GUARD_ENV"
EXEC_FAILED = 127
TICK_S = 0.05
MEMORY_TICK_S = 0.1
FASTEST = 8 * 1024**3  # bytes in a second that no tree can take
SCAN_S, SCAN_SHARE = 1.0, 0.0005  # how often new processes are looked for, and what that may cost
ROUGH = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
EXACT = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
GROUPS = "/sys/fs/cgroup"  # where cgroup v2 is mounted
OWN_GROUP = "/proc/self/cgroup"
SERVER_GROUP = "server"  # the part of the service's group that has the server
STDIN = 0


# --- differences between platforms ----------------------------------------------------------

LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4  # 0: other processes of the user cannot read memory and environment
_PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> bool:
    """Call prctl; return whether it succeeded, which it does only on Linux."""
    if not LINUX:
        return False
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def raise_oom_score(least: int) -> None:
    """Ask the kernel to kill this process and its children before others (Linux)."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            if int(file.read()) < least:
                file.write(str(least))
    except OSError:
        pass


def read_own_group() -> str:
    """Return the path of this process's control group of version 2, "" without one."""
    with open(OWN_GROUP) as file:
        return next((line[3:-1] for line in file if line.startswith("0::")), "")


def make_group(limit: int) -> str:
    """Make a control group with a limit of memory; return its folder, "" where none can be made.

    The server has moved to a part of its own, see `guard.divide_control_group`.
    """
    try:
        parent, _, name = read_own_group().rpartition("/")
        if name != SERVER_GROUP:
            return ""
        folder = f"{GROUPS}{parent}/engine-{os.getpid()}"
        write(f"{GROUPS}{parent}/cgroup.subtree_control", "+memory")
        os.mkdir(folder)
        write(f"{folder}/memory.max", str(limit))
        write(f"{folder}/memory.oom.group", "1")
    except OSError:
        return ""
    return folder


def write(path: str, text: str) -> None:
    """Write to a file of a control group. Raises OSError."""
    with open(path, "w") as file:
        file.write(text)


def was_killed_at_limit(group: str) -> bool:
    """Return whether the kernel has killed the processes of a control group at its limit."""
    try:
        with open(f"{group}/memory.events") as file:
            return any(line.startswith("oom_kill ") and int(line.split()[1]) for line in file)
    except OSError:
        return False


def list_processes() -> list[tuple[int, int, int]]:
    """Return (pid, parent, group) of every process except zombies, from /proc on Linux or ps."""
    table: list[tuple[int, int, int]] = []
    if LINUX:
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    stat = file.read()
            except OSError:
                continue
            state, parent, group = stat[stat.rindex(b")") + 2 :].split(None, 3)[:3]
            if state not in (b"Z", b"X"):
                table.append((int(name), int(parent), int(group)))
        return table
    import subprocess

    command = ["/bin/ps", "-A", "-o", "pid=,ppid=,pgid="]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout
    for line in output.splitlines():
        pid, parent, group = line.split()
        table.append((int(pid), int(parent), int(group)))
    return table


def list_shared_memory(pids: "Iterable[int]") -> set[str]:
    """Return the files in /dev/shm that the processes have mapped (Linux).

    By their inodes, because who creates a semaphore has mapped it by a name that is deleted at once
    (glibc's `sem_open`).
    """
    inodes: set[int] = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", "rb") as file:
                lines = [line for line in file if b" /dev/shm/" in line]
        except OSError:
            continue
        inodes.update(int(line.split(None, 5)[4]) for line in lines)
    found = os.scandir("/dev/shm") if inodes else ()
    return {each.path for each in found if each.inode() in inodes}


def remove_shared_memory(paths: set[str]) -> None:
    """Remove the files that no process has mapped any more."""
    if not paths:
        return
    for path in paths - list_shared_memory(map(int, filter(str.isdigit, os.listdir("/proc")))):
        try:
            os.unlink(path)
        except OSError:
            pass


def remove_folder(folder: str) -> None:
    """Remove a folder with its contents, as far as possible; links are not followed."""
    for here, folders, files in os.walk(folder, topdown=False):
        for name in files + [n for n in folders if os.path.islink(os.path.join(here, n))]:
            try:
                os.unlink(os.path.join(here, name))
            except OSError:
                pass
        try:
            os.rmdir(here)
        except OSError:
            pass


# --------------------------------------------------------------------------------------------


def find_descendants(table: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
    """Return (pid, group) of all descendants of this process."""
    children: dict[int, list[tuple[int, int]]] = {}
    for pid, parent, group in table:
        children.setdefault(parent, []).append((pid, group))
    found: set[tuple[int, int]] = set()
    queue = [os.getpid()]
    while queue:
        below = children.pop(queue.pop(), [])
        found.update(below)
        queue += [pid for pid, _ in below]
    return found


def send(pid: int, number: int) -> None:
    """Signal a process, or a group as -pid, unless it has ended."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def start(argv: list[str], env: dict[bytes, bytes], group: str) -> int:
    """Fork and exec the engine; return its pid. Raises OSError if it cannot be executed.

    `group` is the folder of its control group, or "".
    """
    guard = os.getpid()
    error_r, error_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) and os.getppid() != guard:
                os._exit(EXEC_FAILED)
            signal.set_wakeup_fd(-1)
            for number in range(1, signal.NSIG):
                if signal.getsignal(number) not in (signal.SIG_DFL, None):
                    signal.signal(number, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), STDIN)
            if group:
                write(f"{group}/cgroup.procs", "0")  # 0: who writes it
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            os.write(error_w, b"%d" % (error.errno or 0))
        finally:
            os._exit(EXEC_FAILED)
    os.close(error_w)
    errno = os.read(error_r, 16)
    os.close(error_r)
    if errno:
        os.waitpid(pid, 0)
        raise OSError(int(errno), os.strerror(int(errno)))
    return pid


def read_sizes(pid: int, file: str, names: tuple[bytes, ...]) -> int:
    """Return the sum of some lines of a process's file in /proc, in bytes; 0 after its end."""
    try:
        with open(f"/proc/{pid}/{file}", "rb", buffering=0) as opened:
            lines = opened.read().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(names))


class MemoryWatch:
    """The memory of the tree that is its own: files that it has mapped do not count."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.pids: list[int] = []
        self.scan_at = self.read_at = 0.0

    def find_excess(self) -> int:
        """Return the bytes of the tree if they exceed the limit; 0 if not, or if it is too early.

        The exact sizes, in which pages that forks share count once, take the kernel longer.
        """
        now = time.monotonic()
        if now < self.read_at:
            return 0
        if now >= self.scan_at:
            self.pids = [pid for pid, _ in find_descendants(list_processes())]
            self.scan_at = now + max(SCAN_S, (time.monotonic() - now) / SCAN_SHARE)
        left = self.limit - sum(read_sizes(pid, "status", ROUGH) for pid in self.pids)
        self.read_at = now + min(SCAN_S, max(MEMORY_TICK_S, left / FASTEST))
        if left >= 0:
            return 0
        self.read_at = now + SCAN_S
        size = sum(read_sizes(pid, "smaps_rollup", EXACT) for pid in self.pids)
        return size if size > self.limit else 0


class TreeGuard:
    """Steps 4 and 5 of the module's docstring."""

    def __init__(
        self,
        *,
        engine: int,
        subreaper: bool,
        status_fd: int,
        wake_fd: int,
        grace_s: float,
        term_s: float,
        memory: MemoryWatch | None,
        group: str,
    ) -> None:
        self.group = group
        self.subreaper = subreaper
        self.known: set[tuple[int, int]] = set()  # including orphans that cannot be found again
        self.shared: set[str] = set()
        self.engine = engine
        self.status_fd = status_fd
        self.wake_fd = wake_fd
        self.grace_s = grace_s
        self.term_s = term_s
        self.memory = memory
        self.code: int | None = None
        self.ending_since: float | None = None
        self.terms = 0
        self.kill = False
        self.watch_stdin = True

    def run(self) -> int:
        """Return the engine's code (negative: signal) when its whole tree is gone."""
        while True:
            all_ended = self.reap()
            if self.code is not None:
                if all_ended:
                    return self.code
                self.end()
            if self.ending_since is not None:
                self.signal_tree(time.monotonic() - self.ending_since)
            elif self.memory is not None and (excess := self.memory.find_excess()):
                self.freeze(excess)
            self.wait()

    def reap(self) -> bool:
        """Reap ended children and report the engine's end; return whether all have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                return False
            if pid == self.engine:
                self.code = os.waitstatus_to_exitcode(status)
                if self.group and was_killed_at_limit(self.group):
                    report(self.status_fd, "memory 0")
                report(self.status_fd, f"exit {self.code}")
        if self.subreaper:
            return True
        try:
            os.killpg(self.engine, 0)  # without a subreaper, orphans cannot be waited for
        except OSError:
            return not self.known.intersection((p, g) for p, _, g in list_processes())
        return False

    def end(self) -> None:
        """Start to end the tree."""
        if self.ending_since is None:
            self.ending_since = time.monotonic()

    def freeze(self, excess: int) -> None:
        """Stop the tree where it is, and report why it has to be ended."""
        self.memory = None
        self.kill = True  # a stopped process does not end by SIGTERM
        self.signal_all(find_descendants(list_processes()), signal.SIGSTOP)
        report(self.status_fd, f"memory {excess}")

    def signal_tree(self, elapsed_s: float) -> None:
        """Send the signal that is due to the group, then to every descendant outside of it."""
        if self.kill or elapsed_s >= self.grace_s:
            number = signal.SIGKILL
        elif self.terms == 0 or (self.terms == 1 and elapsed_s >= self.term_s):
            number = signal.SIGTERM
            self.terms += 1
        else:
            return
        table = list_processes()
        self.known = find_descendants(table) | self.known.intersection((p, g) for p, _, g in table)
        # before each signal, because a process that is killed by it cannot be examined later
        self.shared |= list_shared_memory(pid for pid, _ in self.known)
        self.signal_all(self.known, number)

    def signal_all(self, known: "Iterable[tuple[int, int]]", number: int) -> None:
        """Signal the group, then every process outside of it."""
        send(-self.engine, number)
        for pid, group in known:
            if group != self.engine:
                send(pid, number)

    def wait(self) -> None:
        """Wait for a signal, the end of stdin or, while ending, the next tick."""
        fds = [self.wake_fd, STDIN] if self.watch_stdin else [self.wake_fd]
        timeout_s = None if self.ending_since is None else TICK_S
        if self.memory is not None and self.ending_since is None:
            timeout_s = max(0.0, self.memory.read_at - time.monotonic())
        ready, _, _ = select.select(fds, [], [], timeout_s)
        if STDIN in ready and not os.read(STDIN, 4096):
            self.watch_stdin = False
            self.end()
        if self.wake_fd in ready:
            signals = os.read(self.wake_fd, 4096)
            if any(number != signal.SIGCHLD for number in signals):
                self.end()
            if signal.SIGUSR1 in signals:
                self.kill = True


def report(status_fd: int, line: str) -> None:
    """Send a status line to the supervisor, if it is still alive."""
    try:
        os.write(status_fd, (line + "\n").encode("utf-8", "replace"))
    except OSError:
        pass


def exit_like(code: int) -> None:
    """Exit as the engine did."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        code = 128 - code
    os._exit(code)


def main(args: list[str]) -> None:
    """Run the guard with the arguments of the command line."""
    split = args.index("--")
    options = dict(zip(args[:split:2], args[1:split:2], strict=True))
    argv = args[split + 1 :]
    status_fd = int(options["--status-fd"])
    grace_s = float(options["--grace"])
    os.set_inheritable(status_fd, False)
    if "--files" in options:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(options["--files"]), hard))
    if "--oom-score" in options:
        raise_oom_score(int(options["--oom-score"]))
    prctl(PR_SET_DUMPABLE, 0)  # only now, because this gives its files in /proc to root
    pairs = binascii.a2b_base64(os.environ[ENV_VARIABLE]).split(b"\0")
    env = dict(pair.split(b"=", 1) for pair in pairs if pair)

    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_r, False)
    os.set_blocking(wake_w, False)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    for name in ("SIGCHLD", "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"):
        signal.signal(getattr(signal, name), lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    subreaper = prctl(_PR_SET_CHILD_SUBREAPER, 1)
    limit = int(options.get("--memory", 0)) if LINUX else 0
    group = make_group(limit) if limit else ""
    try:
        engine = start(argv, env, group)
    except OSError as error:
        report(status_fd, f"error cannot run '{argv[0]}': {error.strerror}")
        os._exit(EXEC_FAILED)
    report(status_fd, f"pid {engine}")
    guard = TreeGuard(
        engine=engine,
        subreaper=subreaper,
        status_fd=status_fd,
        wake_fd=wake_r,
        grace_s=grace_s,
        term_s=float(options.get("--second-term", grace_s / 2)),
        memory=MemoryWatch(limit) if limit else None,
        group=group,
    )
    code = guard.run()
    remove_shared_memory(guard.shared)
    if scratch := options.get("--scratch"):
        remove_folder(scratch)
    if group:
        try:
            os.rmdir(group)
        except OSError:
            pass
    exit_like(code)


if __name__ == "__main__":
    main(sys.argv[1:])
