"""What an engine litters goes with it: its folder, and shared memory of who was killed."""

from __future__ import annotations

import asyncio
import json
import mmap
import multiprocessing
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervise.conftest import ENV, LIMIT_S, SHORT, Lab, eventually
from vllama.supervise import shim
from vllama.supervise.guard import Command, Guard
from vllama.supervise.leftovers import make_scratch_folder, remove_scratch, sweep
from vllama.supervise.process import Child

SHARED = Path("/dev/shm")
needs_shared_memory = pytest.mark.skipif(not SHARED.is_dir(), reason="there is no /dev/shm")

# litters its folder, maps shared memory (in a child that ends at TERM without removing it), takes
# no notice of TERM itself, and stays
LITTERER = """if True:
    import mmap, os, signal, sys
    child = os.fork()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if child else signal.SIG_DFL)
    if child:
        while True:
            signal.pause()
    marker, scratch, shared = sys.argv[1:]
    os.makedirs(scratch + "/a/b")
    open(scratch + "/a/b/file", "w").close()
    os.symlink("/etc", scratch + "/link")
    with open(shared, "w+b") as file:
        file.truncate(4096)
        held = mmap.mmap(file.fileno(), 4096)
    print("littered", flush=True)
    signal.pause()
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a name for shared memory of this test."""
    path = SHARED / f"vllama-test-{uuid.uuid4().hex}"
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def scratch() -> Iterator[Path]:
    folder = make_scratch_folder()
    yield folder
    remove_scratch(folder)


def litterer(marker: Path, scratch: Path, shared: Path) -> tuple[str, ...]:
    words = (str(marker), str(scratch), str(shared))
    return (sys.executable, "-I", "-S", "-c", LITTERER, *words)


def littered(log_path: Path) -> None:
    eventually(lambda: "littered" in log_path.read_text())


def test_a_folder_for_a_socket_is_private_and_has_a_short_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    made = make_scratch_folder()
    assert made.stat().st_mode & 0o077 == 0
    assert len(str(made / str(uuid.uuid4()))) < 108  # the limit of a socket's path
    remove_scratch(made)
    assert not made.exists()


def test_a_folder_of_another_name_is_left_alone(tmp_path: Path) -> None:
    remove_scratch(tmp_path)
    assert tmp_path.is_dir()


@needs_shared_memory
def test_shared_memory_that_somebody_holds_stays(shared: Path) -> None:
    with shared.open("w+b") as file:
        file.truncate(mmap.PAGESIZE)
        held = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    found = shim.list_shared_memory([os.getpid(), 2**22 + 1])
    assert str(shared) in found
    shim.remove_shared_memory({str(shared)})
    assert shared.exists()
    held.close()
    shim.remove_shared_memory({str(shared)})
    assert not shared.exists()


@needs_shared_memory
def test_a_semaphore_is_its_creator_s() -> None:
    lock = multiprocessing.get_context("spawn").Lock()
    path = f"/dev/shm/sem.{lock._semlock.name.lstrip('/')}"  # type: ignore[attr-defined]
    assert path in shim.list_shared_memory([os.getpid()])
    del lock
    assert path not in shim.list_shared_memory([os.getpid()])


@pytest.mark.slow
@needs_shared_memory
def test_who_is_killed_leaves_nothing(tmp_path: Path, scratch: Path, shared: Path) -> None:
    async def main() -> None:
        log_path = tmp_path / "log"
        argv = litterer(tmp_path, scratch, shared)
        child = await Child.spawn(argv, env=ENV, log_path=log_path, grace=SHORT, scratch=scratch)
        await asyncio.to_thread(littered, log_path)
        assert await child.kill_tree(LIMIT_S) == ()

    asyncio.run(main())
    assert not scratch.exists() and not shared.exists()
    assert Path("/etc").is_dir()


@needs_shared_memory
def test_who_was_killed_by_others_leaves_nothing(tmp_path: Path, shared: Path) -> None:
    """The whole tree at once, so that no maps are left to read when its end is seen."""

    async def main() -> None:
        log_path = tmp_path / "log"
        argv = litterer(tmp_path, tmp_path, shared)
        child = await Child.spawn(argv, env=ENV, log_path=log_path, grace=SHORT)
        await asyncio.to_thread(littered, log_path)
        assert str(shared) in child.remember_shared_memory()
        os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
        assert await child.kill_tree(LIMIT_S) == ()

    asyncio.run(main())
    assert not shared.exists()


@pytest.mark.slow
@needs_shared_memory
def test_the_guard_clears_up_when_the_supervisor_dies(
    tmp_path: Path, scratch: Path, shared: Path
) -> None:
    log_path = tmp_path / "log"
    command = Command(
        argv=litterer(tmp_path, scratch, shared),
        env=ENV,
        log_path=log_path,
        cwd=None,
        grace=SHORT,
        scratch=scratch,
    )
    with Guard(command) as guard:  # leaving it closes the pipe, as the supervisor's death does
        guard.read_pid(LIMIT_S)
        littered(log_path)
    assert not scratch.exists() and not shared.exists()


@pytest.mark.slow
@pytest.mark.parametrize("variables", [(), ("OTHER",)])
def test_every_engine_has_a_folder_that_goes_with_it(lab: Lab, variables: tuple[str, ...]) -> None:
    if not Path("/proc/self/environ").exists():
        pytest.skip("needs /proc")
    seen: list[Path] = []
    names = ("TMPDIR", *variables)

    async def main() -> None:
        process = lab.process(**({"scratch_variables": names} if variables else {}))
        async with asyncio.TaskGroup() as group:
            group.create_task(process.run())
            await process.ensure_ready()
            text = await asyncio.to_thread(Path(f"/proc/{process.pid}/environ").read_text)
            env = dict(pair.split("=", 1) for pair in text.split("\0") if pair)
            assert {env[name] for name in names} == {env["TMPDIR"]}
            seen.append(Path(env["TMPDIR"]))
            assert seen[0].is_dir()
            (seen[0] / "socket").touch()
            await process.stop()

    asyncio.run(main())
    assert not seen[0].exists()


@needs_shared_memory
def test_a_successor_removes_what_a_killed_guard_could_not(
    tmp_path: Path, scratch: Path, shared: Path
) -> None:
    shared.touch()
    dead = {"pid": 2**22 + 1, "started_s": 1.0}
    record = {"name": "m", "supervisor": dead, "engine": dead, "descendants": [],
              "scratch": str(scratch), "shared": [str(shared)]}  # fmt: skip
    (tmp_path / "1-m.json").write_text(json.dumps(record))
    assert sweep(tmp_path) == []
    assert not scratch.exists() and not shared.exists() and not list(tmp_path.iterdir())
