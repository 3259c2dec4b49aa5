"""Makes an environment with uv, tries it, removes it.

An environment is complete when it has its marker, which is written last. A half-made one is
continued: installed packages stay, and downloads are in uv's cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten

from filelock import FileLock, Timeout

from vllama.base import private
from vllama.base.errors import EngineStartFailed, EnvironmentFailed
from vllama.machine.environments.installer import (
    TORCH_BACKEND,
    build_installer_env,
    explain_failure,
    install_command,
    prepare_uv,
    venv_command,
)
from vllama.machine.environments.layout import (
    MARKER,
    Step,
    find_existing,
    get_python,
    list_arguments,
    list_requirements,
    list_site_packages,
    mark_complete,
)
from vllama.supervise.aio import finish
from vllama.supervise.logs import LogRing, Tailer
from vllama.supervise.process import Child
from vllama.supervise.spec import Grace

__all__ = ["Step", "find_existing", "install_steps", "remove", "try_command"]

LOG = "install.log"
SCRATCH = "tmp-"
"""How the folders in an environment begin that hold temporary files while a command runs."""
GRACE = Grace(term_s=2.0, second_term_s=1.0, kill_s=5.0)
UNREACHABLE = "Failed to fetch"
"""In uv's words."""
LOCK_EVERY_S = 0.2

OnLine = Callable[[str], object]


async def install_steps(
    folder: Path,
    steps: Sequence[Step],
    *,
    python: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
    extra_env: Mapping[str, str] | None = None,
    trial: Sequence[str] = (),
    on_line: OnLine | None = None,
) -> Path:
    """Make an environment in several calls of uv, in order; see `make_environment`.

    `python` is the interpreter of the environment (default: our own); `extra_env` is added to what
    uv may see of `environ` (default: ours). `trial` is a command of the environment that has to
    succeed, see `try_command`.

    1. Take the lock: two programs must not install into one environment.
    2. Make the environment, or mend a half-made one.
    3. Install; a call that was done before finds everything there.
    4. Try what was installed.
    5. Write the marker.
    """
    wanted = list_requirements(steps), list_arguments(steps)
    if find_existing(folder, *wanted) is not None:
        return get_python(folder)
    told = on_line or (lambda line: None)
    environ = dict(os.environ) if environ is None else environ
    uv, env, no_index = prepare_uv(environ, extra_env)
    try:
        private.make_folder(folder)
        async with locked(folder, told):  # 1
            if find_existing(folder, *wanted) is not None:
                return get_python(folder)
            remove_temporary(folder)
            run = _Runner(folder=folder, env=env, on_line=told)
            if not get_python(folder).exists():
                await run.call(venv_command(uv, folder, python or sys.executable))  # 2
            remove_half_installed(folder)
            with _incomplete(folder) as changed:  # 3
                for step in steps:
                    extra_args = [*no_index, *step.extra_args]
                    await run.install(install_command(uv, folder, step.requirements, extra_args))
                    changed()
            if trial:
                told(f"trying {shorten(' '.join(trial), 60, placeholder='…')}")
                await try_command(folder, trial, environ=env)  # 4
            mark_complete(folder, steps)  # 5
    except OSError as error:
        raise make_error(folder, f"{error.strerror or error} ('{error.filename}')") from None
    return get_python(folder)


async def try_command(
    folder: Path, command: Sequence[str], *, environ: Mapping[str, str] | None = None
) -> None:
    """Run a command of an environment (`python` or another of its programs, and arguments).

    Raises EnvironmentFailed, with its last line, if it does not succeed; nothing to run succeeds.
    """
    if not command:
        return
    program = (find_existing(folder) or get_python(folder).parent) / command[0]
    env = build_installer_env(dict(os.environ) if environ is None else environ)
    run = _Runner(folder=folder, env=env, on_line=lambda line: None)
    ring, code = await run.run([str(program), *command[1:]])
    if code != 0:
        last = next((line for line in reversed(ring.tail(20)) if line.strip()), "no output")
        raise EnvironmentFailed(
            f"the engine installed in '{folder}' does not start: {last.strip()}",
            hint=f"see its full output in {folder / LOG}",
        )


def remove(folder: Path) -> None:
    """Remove an environment, complete or not. Raises EnvironmentFailed if that is not possible."""
    if folder.exists():
        with removing(folder):
            (folder / MARKER).unlink(missing_ok=True)  # a removal that is broken off counts as one
            shutil.rmtree(folder)


@contextlib.contextmanager
def removing(folder: Path) -> Iterator[None]:
    """Hold an environment's lock while something of it is removed. Raises EnvironmentFailed."""
    try:
        with FileLock(_lock_file(folder), timeout=0):
            yield
    except Timeout:
        raise EnvironmentFailed(
            f"cannot remove '{folder}': another vllama is installing there",
            hint="wait until it finishes",
        ) from None
    except OSError as error:
        raise EnvironmentFailed(f"cannot remove '{folder}': {error.strerror or error}") from None


def remove_packages(folder: Path) -> None:
    """Remove the environment of Python's that lay in a folder, which has something else now."""
    for name in ("bin", "include", "lib", "lib64", "share", "pyvenv.cfg"):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove_temporary(folder: Path) -> None:
    """Remove the temporary files of an installer that was killed together with its guard."""
    for left in folder.glob(f"{SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)


def remove_half_installed(folder: Path) -> None:
    """Remove the metadata of packages that a kill left half-installed.

    uv writes a package's RECORD last, but takes any metadata folder for an installed package.
    """
    for site in list_site_packages(folder):
        for info in site.glob("*.dist-info"):
            if not (info / "RECORD").exists():
                shutil.rmtree(info)


def make_error(folder: Path, reason: str, hint: str | None = None) -> EnvironmentFailed:
    """Return the error of a failed installation."""
    return EnvironmentFailed(
        f"cannot install into '{folder}': {reason}",
        hint=hint or f"the installer's output is in {folder / LOG}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runner:
    """Runs the installer as a guarded child: in a session of its own, which ends with vllama.

    Its temporary files (compilers write gigabytes) go to a folder in the environment, which the
    guard removes as well.
    """

    folder: Path
    env: Mapping[str, str]
    on_line: OnLine

    async def call(self, argv: Sequence[str]) -> None:
        """Run the installer to its end. Raises EnvironmentFailed with its cause."""
        ring, code = await self.run(argv)
        if code != 0:
            raise make_error(self.folder, *explain_failure(ring.tail(ring.total), code))

    async def install(self, argv: Sequence[str]) -> None:
        """Run an installation to its end. Raises EnvironmentFailed with its cause.

        uv looks for PyTorch at an index of PyTorch's own, if it is told to choose the build. Many
        networks have a mirror of the package index and nothing else: there the index's own build
        is taken, which does as well, but may be larger.
        """
        ring, code = await self.run(argv)
        reason, hint = explain_failure(ring.tail(ring.total), code)
        if code != 0 and TORCH_BACKEND in self.env and UNREACHABLE in reason:
            self.on_line("cannot reach PyTorch's own index: using its default build")
            env = {name: value for name, value in self.env.items() if name != TORCH_BACKEND}
            await replace(self, env=env).call(argv)
        elif code != 0:
            raise make_error(self.folder, reason, hint)

    async def run(self, argv: Sequence[str]) -> tuple[LogRing, int]:
        """Run a command to its end; return its lines and its code."""
        log = self.folder / LOG
        log.write_bytes(b"")
        ring = LogRing()
        ring.on_line = self.on_line
        scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=self.folder))
        try:
            child = await Child.spawn(
                argv,
                env={**self.env, "TMPDIR": str(scratch)},
                log_path=log,
                cwd=self.folder,
                grace=GRACE,
                scratch=scratch,
            )
        except EngineStartFailed as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise make_error(self.folder, error.message) from None
        return ring, await run_to_end(child, Tailer(log, ring))


async def run_to_end(child: Child, tailer: Tailer) -> int:
    """Read a child's output until it ends; return its code.

    Of all that it has started nothing is left, also if this is canceled.
    """
    tailing = asyncio.ensure_future(tailer.run())
    try:
        code = await child.wait()
    finally:
        tailing.cancel()
        await finish(_end(child))
        await asyncio.wait({tailing})
    tailer.finish()
    return code


async def _end(child: Child) -> None:
    """TERM, then KILL all that is left of a tool and of what it has started, such as compilers."""
    if not child.gone.done():
        await child.terminate()
        await asyncio.wait({child.gone}, timeout=GRACE.term_s)
    await child.kill_tree(GRACE.kill_s)


@contextlib.asynccontextmanager
async def locked(folder: Path, on_line: OnLine) -> AsyncIterator[None]:
    """Hold the environment's lock, which lies beside it, for `remove`, and stays there."""
    lock = FileLock(_lock_file(folder))
    told = False
    while True:
        try:
            lock.acquire(timeout=0)
            break
        except Timeout:
            if not told:
                on_line("waiting for another vllama installation")
            told = True
            await asyncio.sleep(LOCK_EVERY_S)
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _incomplete(folder: Path) -> Iterator[Callable[[], None]]:
    """Take the marker away; put it back if the installer refuses before anything has changed.

    So an engine whose upgrade fails, for want of a network say, goes on being there.
    """
    marker = folder / MARKER
    old = marker.read_text() if find_existing(folder) else ""
    marker.unlink(missing_ok=True)
    steps_done: list[None] = []
    try:
        yield lambda: steps_done.append(None)
    except EnvironmentFailed:
        if old and not steps_done:
            marker.write_text(old)
        raise


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")
